"""Compare two computations of the same numbers, with the tolerances of this package."""

import torch
from jaxtyping import Bool
from torch import Tensor

from squashlens._typing import SHORT, dtype_name, full_name, short_repr
from squashlens.errors import InputError

# The largest allowed difference, relative to the largest entry, by the dtype of the model.
# For two implementations, such as the bridge and the plain model: float64 models still run norms and softmax in
# float32, and in half precision the order of operations alone makes a difference.
TOLERANCE = {
    torch.float64: 1e-5,
    torch.float32: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 6e-2,
}
# For two passes of one implementation, such as a shared and a separate one: the same operations in another order. Half
# precision allows no smaller tolerance.
SAME_OPERATIONS = TOLERANCE | {torch.float64: 1e-6, torch.float32: 2e-5}
# For two results of a model that runs entirely in float64 (`wide`): derivatives, relative to a norm, or what the bridge
# and the plain model compute. What float32 alone made different is smaller there, by 2⁻²⁹.
IN_FLOAT64 = 1e-8
# For rotary frequencies, entry by entry. Computed on another device or in another order, they may differ in their last
# bits.
FREQUENCIES = 1e-5


def dtype_to_run_in(given: torch.dtype | str) -> torch.dtype:
    """The dtype of a name ("bfloat16" or "bf16"), or the given dtype. Raises for one without a tolerance."""
    named = {dtype_name(dtype): dtype for dtype in TOLERANCE}
    dtype = named.get(full_name(given)) if isinstance(given, str) else given
    if dtype not in TOLERANCE:
        allowed = ", ".join((*named, *SHORT))
        raise InputError(
            f"dtype={short_repr(given)} is not supported.", f"Use one of {allowed}."
        )
    return dtype


def agree(
    ours: Tensor,
    theirs: Tensor,
    dtype: torch.dtype,
    *,
    size: Tensor | None = None,
    dim: int | tuple[()] = (),
    tolerance: dict[torch.dtype, float] = TOLERANCE,
) -> bool:
    """Whether two results of the same computation differ at most by rounding, for a model of this dtype.

    The options are those of `difference`. Tensors of different shapes, or with NaN, do not agree.

    >>> truth = torch.tensor([1.0, -2.0])
    >>> agree(truth + 1e-5, truth, torch.float32), agree(truth + 1e-3, truth, torch.float32)
    (True, False)
    """
    if ours.shape != theirs.shape:
        return False
    error, allowed = difference(
        ours, theirs, dtype, size=size, dim=dim, tolerance=tolerance
    )
    return bool((error <= allowed).all())  # false for NaN too


def difference(
    ours: Tensor,
    theirs: Tensor,
    dtype: torch.dtype,
    *,
    size: Tensor | None = None,
    dim: int | tuple[()] = (),
    tolerance: dict[torch.dtype, float] = TOLERANCE,
) -> tuple[Tensor, Tensor]:
    """The largest difference of two results along `dim` (by default of all entries), and the largest allowed one.

    Allowed is `tolerance[dtype]` times the largest entry of `size` along `dim`; by default `size` is `theirs`.
    """
    expected = theirs.detach().to(ours.device).double()
    error = (ours.detach().double() - expected).abs().amax(dim=dim)
    scale = expected if size is None else size.detach().to(ours.device).double()
    return error, tolerance[dtype] * scale.abs().amax(dim=dim)


def is_finite(tensor: Tensor) -> Bool[Tensor, ""]:
    """Whether all entries are finite, on the tensor's device: in one pass and without copies."""
    return torch.stack(torch.aminmax(tensor)).isfinite().all()


def has_nan(tensor: Tensor) -> Bool[Tensor, ""]:
    """Whether any entry is NaN, on the tensor's device: the least entry is NaN then, and takes one pass and no copy."""
    return tensor.detach().amin().isnan()
