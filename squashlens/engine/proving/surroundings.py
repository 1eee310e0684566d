"""Find other things in this process that change what a model computes: PyTorch modes, and replaced functions.

The comparison of the bridge with the plain model cannot detect them, since they change both models. A mode raises an
error. Functions of a library that another package has replaced, for example by faster kernels, are named in the
provenance, and the model is then *verified as it stands*, not against its checkpoint.
"""

import functools
import operator
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from squashlens.engine.proving.fingerprint import Walk
from squashlens.errors import InputError

# Packages whose functions may appear in the modules of a library without counting as replaced.
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

_OWN = ("torch.", "squashlens.")  # PyTorch's own modes select a device, count or read; ours belong to certificates


def require_no_modes() -> None:
    """Raise an error inside PyTorch contexts that change results or derivatives."""
    require_no_meta()
    active = [kind for kind in ("cpu", "cuda", "mps") if torch.is_autocast_enabled(kind)]
    if active:
        raise InputError(
            f"Autocast is on for {active[0]}, which runs parts of the model in another dtype than results say.",
            "Leave `torch.autocast`, and load the model in the dtype of the run.",
        )
    saved = torch._C._autograd._top_saved_tensors_default_hooks(True)  # pyright: ignore[reportAttributeAccessIssue]
    packing = [] if saved is None else [saved[0]]
    for mode in (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack(), *packing):
        kind = mode if callable(mode) and hasattr(mode, "__qualname__") else type(mode)
        if not str(kind.__module__).startswith(_OWN):
            raise InputError(
                f"The mode {kind.__qualname__} is active, which can change what PyTorch functions compute.",
                "Leave its `with` block before measuring.",
            )


def require_no_meta() -> None:
    """Raise an error if new tensors have no data, as inside `torch.device("meta")`."""
    if torch.empty(0).is_meta:
        raise InputError(
            "The default device of PyTorch is meta, whose tensors have no data.",
            "Leave `with torch.device('meta')`, or set another default device.",
        )


def replaced_functions(walk: Walk) -> list[str]:
    """The functions of PyTorch and of the model's code that another package has replaced."""
    return sorted(set(_replaced(walk)))


# The values of each module and class in which nothing was replaced. They are compared by identity, which is faster than
# looking up again where each comes from.
_unchanged: dict[str, list[object]] = {}


def _replaced(walk: Walk) -> Iterator[str]:
    classes = {type(module) for _, module in walk.modules}
    kinds = {base for each in classes for base in each.__mro__ if base is not object}
    files = {kind.__module__ for kind in kinds} | {"torch", "torch.nn.functional"}
    holders: list[tuple[str, str, dict[str, Any]]] = [
        (name, name, vars(sys.modules[name])) for name in files if name in sys.modules
    ]
    holders += [(kind.__module__, f"{kind.__module__}.{kind.__qualname__}", dict(vars(kind))) for kind in kinds]
    for home, label, names in holders:
        values, known = list(names.values()), _unchanged.get(label, [])
        if len(values) == len(known) and all(map(operator.is_, values, known)):
            continue
        found = list(_foreign(home, label, names))
        if not found:
            _unchanged[label] = values
        yield from found


def _foreign(home: str, label: str, names: dict[str, Any]) -> Iterator[str]:
    allowed = LIBRARIES | {home.partition(".")[0]}
    for name, value in names.items():
        origin = _origin(value)
        if origin is not None and origin.partition(".")[0] not in allowed:
            yield f"{label}.{name}: {origin}.{getattr(value, '__qualname__', name)}"


def _origin(value: object) -> str | None:
    """The module that defines a function; `None` for other objects."""
    while isinstance(value, functools.partial):
        value = value.func
    if isinstance(value, type) or not callable(value):
        return None
    origin = getattr(value, "__module__", None)
    return origin if isinstance(origin, str) else None
