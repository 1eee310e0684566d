"""The function of a hook: how it is called, what it may return, and how it is named.

TransformerLens calls every hook as `fn(tensor, hook=point)`. A function of the tensor alone is also accepted. The model
continues with its result, so it must be a tensor of the same shape, dtype and device. Anything else would cause wrong
numbers, or an error far from the hook.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from squashlens.errors import InputError


def takes_point(function: Callable[..., Any], name: str) -> bool:
    """Whether a function is called as ``fn(tensor, hook=point)`` rather than as ``fn(tensor)``.

    A function that can be called in both ways is called with `hook`. Functions without a signature, such as PyTorch's
    own, get only the tensor. Raises an error for any other signature.
    """
    try:
        signature = inspect.signature(function.forward if isinstance(function, torch.nn.Module) else function)
    except (ValueError, TypeError):
        return False
    for options in ({"hook": None}, {}):
        with contextlib.suppress(TypeError):
            signature.bind(None, **options)
            return bool(options)
    raise InputError(
        f"{name}: a hook is called as fn(tensor) or fn(tensor, hook=…), but this function takes {signature}.",
        "Give it one parameter, or name the second one `hook`; set other parameters with `functools.partial`.",
    )


def function_name(function: object) -> str:
    """The qualified name of a function, also inside a `functools.partial`; for other objects, the name of the type."""
    function = without_partials(function)
    return getattr(function, "__qualname__", type(function).__qualname__)


def without_partials(function: object) -> Any:
    """A function without the arguments that `functools.partial` gave it."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def require_like(before: object, after: object, name: str, site: str) -> None:
    """Raise an error if a hook's result is not a tensor like its input, has new NaN entries, or has a backward hook."""
    if any(getattr(tensor, "_backward_hooks", None) for tensor in (before, after)):
        raise InputError(
            f"The hook {name} at {site} calls `register_hook`, which changes derivatives but not the model's output.",
            "Return an edited tensor instead: the derivative then follows.",
        )
    if after is before or not isinstance(before, Tensor):
        return
    if not isinstance(after, Tensor):
        raise InputError(
            f"The hook {name} at {site} returned a {type(after).__name__}, not a tensor.",
            "Return the tensor that the model should continue with, or None to keep the given one.",
        )
    for what in ("shape", "dtype", "device", "layout"):
        given, found = getattr(before, what), getattr(after, what)
        if given != found:
            raise InputError(
                f"The hook {name} at {site} returned a tensor of {what} {_plain(found)}, but got one of {what} "
                f"{_plain(given)}.",
                "Return a tensor like the input"
                + (": `.to(tensor)` sets dtype and device." if what in ("dtype", "device") else "."),
            )
    if has_nan(after) and not has_nan(before):
        raise InputError(
            f"The hook {name} at {site} returned NaN, but got numbers.",
            "Correct its arithmetic: 0/0, inf − inf and roots of negative numbers give NaN.",
        )


def has_nan(tensor: Tensor) -> bool:
    """Whether any entry is NaN; for most tensors the sum, which is cheap, shows that there is none."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    tensor = tensor.detach()
    return not bool(tensor.sum().isfinite()) and bool(tensor.isnan().any())


def _plain(value: object) -> str:
    return str(tuple(value)) if isinstance(value, torch.Size) else str(value).removeprefix("torch.")
