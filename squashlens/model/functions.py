"""The function of a hook: how it is called, what it may return, and how it is named.

TransformerLens calls every hook as `fn(tensor, hook=point)`. A function of the tensor alone is taken as well. What it
returns goes on in the model, so it must be a tensor of the same shape, dtype and device; anything else would fail far
from the hook, or would be measured as if it were the model.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from squashlens.errors import InputError

_ANYTHING = object()


def takes_point(function: Callable[..., Any], name: str) -> bool:
    """Whether a function is called as ``fn(tensor, hook=point)`` (true) or as ``fn(tensor)``; others are refused.

    A function that can be called in both ways is given the hook point. Functions without a signature, such as PyTorch's
    own, are given the tensor alone.
    """
    try:
        signature = inspect.signature(function.forward if isinstance(function, torch.nn.Module) else function)
    except (ValueError, TypeError):
        return False
    if _binds(signature, hook=_ANYTHING):
        return True
    if _binds(signature):
        return False
    raise InputError(
        f"{name}: a hook is called as fn(tensor) or as fn(tensor, hook=…), and this function takes {signature}.",
        "Give it one parameter, or call the second one `hook`; fix others with `functools.partial`.",
    )


def _binds(signature: inspect.Signature, **options: object) -> bool:
    try:
        signature.bind(_ANYTHING, **options)
    except TypeError:
        return False
    return True


def function_name(function: object) -> str:
    """A function's qualified name; that of the function inside a `functools.partial`; of an object, its type's."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", type(function).__qualname__)


def require_like(before: object, after: object, name: str, site: str) -> None:
    """Refuse what a hook returned where it is not a tensor like the one that it was given, or has new NaN entries, and
    a hook that changes the derivative alone."""
    if any(getattr(tensor, "_backward_hooks", None) for tensor in (before, after)):
        raise InputError(
            f"The hook {name} at {site} calls `register_hook`: the derivative is then not that of the model.",
            "Return an edited tensor: the edit has a derivative of its own.",
        )
    if after is before or not isinstance(before, Tensor):
        return
    if not isinstance(after, Tensor):
        raise InputError(
            f"The hook {name} at {site} returned {_article(after)}, not a tensor.",
            "Return the tensor that the model is to go on with, or None to leave it as it is.",
        )
    for what in ("shape", "dtype", "device", "layout"):
        given, found = getattr(before, what), getattr(after, what)
        if given != found:
            raise InputError(
                f"The hook {name} at {site} returned a tensor of {what} {_plain(found)}; it was given {what} "
                f"{_plain(given)}.",
                "Return a tensor like the one given"
                + (": `.to(tensor)` gives it the same dtype and device." if what in ("dtype", "device") else "."),
            )
    if has_nan(after) and not has_nan(before):
        raise InputError(
            f"The hook {name} at {site} returned NaN where it was given numbers.",
            "Correct its arithmetic: 0/0, inf − inf and roots of negative numbers give NaN.",
        )


def has_nan(tensor: Tensor) -> bool:
    """Whether any entry is NaN; the sum, which is cheap, says for most tensors that none is."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    tensor = tensor.detach()
    return not bool(tensor.sum().isfinite()) and bool(tensor.isnan().any())


def _article(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _plain(value: object) -> str:
    return str(tuple(value)) if isinstance(value, torch.Size) else str(value).removeprefix("torch.")
