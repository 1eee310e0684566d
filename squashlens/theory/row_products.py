"""How products of rows with attention are computed: by a kernel where one can be used, else by blocks of rows.

The kernel (`squashlens.theory.row_kernel`) is compiled for the device at hand, on which nobody may have tried it. So
before its first use there, for each dtype, head size and kind of attention, it computes a small product that blocks of
rows compute in float64. Unless every entry agrees, it is not used, and a warning says why.
"""

import importlib
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from squashlens._typing import dtype_name
from squashlens.remarks import remark

if TYPE_CHECKING:
    from squashlens.theory.attention import Attention

Kernel = Callable[["Attention", Tensor, slice], Tensor]
DEVICES = ("cuda",)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Largest difference of an entry, relative to the entry, since all terms of its sum are positive. Rounding in float32
# causes about 1e-6, products in TF32 about 1e-3.
TOLERANCE = 2e-5
# Two prompts of three key blocks, the last of them ragged, and rows that start and end within a block of queries.
LENGTH, WITHIN, WINDOW, CAP = 300, slice(37, 290), 70, 3.0


def kernel_of(attention: "Attention") -> Kernel | None:
    """The kernel, if it supports this attention and has been found correct on its device; `None` otherwise."""
    queries, keys = attention.queries, attention.keys
    graph = torch.is_grad_enabled() and (queries.requires_grad or keys.requires_grad)
    if queries.device.type not in DEVICES or queries.dtype not in DTYPES or keys.dtype != queries.dtype or graph:
        return None
    if attention.mask is not None or queries.shape[2] != keys.shape[2]:
        return None
    kernel = _imported()
    if kernel is None:
        return None
    # Neither lengths nor numbers of heads are compiled in, so what is tested is the program that is used.
    kind = attention.cap is not None, attention.window is not None, attention.sinks is not None
    return kernel if _agrees(kernel, queries.device, queries.dtype, queries.shape[-1], *kind) else None


@cache
def _imported() -> Kernel | None:
    """The kernel, or `None` without Triton."""
    try:
        return importlib.import_module("squashlens.theory.row_kernel").pushed_by_head
    except ImportError as error:
        _warn("every GPU", f"Triton cannot be imported ({error})")
        return None


@cache
def _agrees(
    kernel: Kernel, device: torch.device, dtype: torch.dtype, size: int, capped: bool, windowed: bool, sunk: bool,
) -> bool:  # fmt: skip
    """Whether the kernel gives the products that blocks of rows give in float64, for one row and for several."""
    from squashlens.theory.attention import Attention

    generator = torch.Generator("cpu").manual_seed(0)  # on the CPU, so that every device is asked the same

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=generator.device)

    probe = Attention(
        drawn(2, 4, LENGTH, size).to(device, dtype), drawn(2, 2, LENGTH, size).to(device, dtype), 2 * size**-0.5,
        CAP if capped else None, WINDOW if windowed else None, drawn(4).to(device) if sunk else None,
    )  # fmt: skip
    rows = torch.zeros(3, 2, 4, LENGTH, dtype=torch.float64, device=generator.device)
    rows[..., WITHIN].uniform_(generator=generator)
    rows = rows.to(device)
    expected = probe.double().pushed_in_blocks(rows, WITHIN)
    reason = None
    try:
        for chosen in (slice(1), slice(3)):
            found = kernel(probe, rows[chosen], WITHIN)
            error = (found - expected[chosen]).abs() - TOLERANCE * expected[chosen]
            if not bool((error <= 0).all()):  # also for NaN
                reason = f"it differs by {error.max().item():.1g} from what blocks of rows give in float64"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a compiler raises
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
    if reason is not None:
        kind = [name for name, there in (("cap", capped), ("window", windowed), ("sinks", sunk)) if there]
        about = f"{dtype_name(dtype)}, head size {size}" + "".join(f", {name}" for name in kind)
        _warn(f"{device} ({about})", reason)
    return reason is None


def _warn(where: str, reason: str) -> None:
    remark(
        f"The kernel for products of rows with attention is not used on {where}: {reason}. Blocks of rows give the "
        "same numbers in more time."
    )
