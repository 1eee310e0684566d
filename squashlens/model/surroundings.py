"""What else in this process has a say in what a model computes: PyTorch's modes, and functions put in others' place.

A proof compares the bridge with the plain model in the same surroundings, so it cannot see them: both are changed
alike. Modes are refused. Functions that another package put in the place of a library's, as faster kernels do, are
named in the provenance, and the model is then *verified as it stands*, not as its checkpoint describes it.
"""

import functools
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from squashlens._typing import Bridge
from squashlens.errors import InputError
from squashlens.model.fingerprint import modules

# Where functions may come from that a library's module has among its own.
LIBRARIES = {"torch", "transformers", "transformer_lens", "accelerate", "huggingface_hub", "numpy", "einops", "peft"}
LIBRARIES |= {
    "jaxtyping",
    "beartype",
    "kernels",
    "packaging",
    "torchao",
    "safetensors",
    "tqdm",
    "typing_extensions",
    "squashlens",
    *sys.stdlib_module_names,
}

_OWN = ("torch.", "squashlens.")  # modes of PyTorch choose a device, count, or look; ours are those of certificates


def require_no_modes() -> None:
    """Refuse contexts of PyTorch's that change results or derivatives of everything that runs inside them."""
    active = [kind for kind in ("cpu", "cuda", "mps") if torch.is_autocast_enabled(kind)]
    if active:
        raise InputError(
            f"Autocast is on for {active[0]}, which runs parts of the model in another dtype than results would say.",
            "Leave `torch.autocast`, and load the model in the dtype it should run in.",
        )
    saved = torch._C._autograd._top_saved_tensors_default_hooks(True)  # pyright: ignore[reportAttributeAccessIssue]
    packing = [] if saved is None else [saved[0]]
    for mode in (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack(), *packing):
        kind = mode if callable(mode) and hasattr(mode, "__qualname__") else type(mode)
        if not str(kind.__module__).startswith(_OWN):
            raise InputError(
                f"{kind.__qualname__} is in force, which can change what PyTorch's functions and derivatives give.",
                "Leave its `with` block before measuring.",
            )


def replaced_functions(model: Bridge) -> list[str]:
    """Functions of PyTorch's and of the model's own code in whose place another package has put one of its own."""
    return sorted(set(_replaced(model)))


def _replaced(model: Bridge) -> Iterator[str]:
    kinds = {base for _, module in modules(model) for base in type(module).__mro__ if base is not object}
    files = {kind.__module__ for kind in kinds} | {"torch", "torch.nn.functional"}
    holders: list[tuple[str, str, dict[str, Any]]] = [
        (name, name, vars(sys.modules[name])) for name in files if name in sys.modules
    ]
    holders += [(kind.__module__, f"{kind.__module__}.{kind.__qualname__}", dict(vars(kind))) for kind in kinds]
    for home, shown, names in holders:
        allowed = LIBRARIES | {home.partition(".")[0]}
        for name, value in names.items():
            origin = _origin(value)
            if origin is not None and origin.partition(".")[0] not in allowed:
                yield f"{shown}.{name}: {origin}.{getattr(value, '__qualname__', name)}"


def _origin(value: object) -> str | None:
    """The module that a function was written in; `None` for what is no function."""
    while isinstance(value, functools.partial):
        value = value.func
    if isinstance(value, type) or not callable(value):
        return None
    origin = getattr(value, "__module__", None)
    return origin if isinstance(origin, str) else None
