"""Refuse PyTorch modes that change what functions compute, for the bridge and the plain model alike."""

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from squashlens.errors import InputError

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
