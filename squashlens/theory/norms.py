"""Matrix norms of Jacobian blocks, each formula once."""

import torch
from jaxtyping import Float
from torch import Tensor


def spectral_norms(blocks: Float[Tensor, "*position out in"]) -> Float[Tensor, "*position"]:
    """The largest singular value of each block, ``‖J‖₂ = √λ_max(J Jᵀ)``, exact, in float64.

    Forming the Gram matrix squares the condition number, which spoils small singular values and leaves the
    largest as accurate as the arithmetic.

    >>> spectral_norms(torch.tensor([[[3.0, 0.0], [0.0, 4.0]]])).tolist()
    [4.0]
    """
    wide = blocks.double()
    gram = wide @ wide.mT if wide.shape[-2] <= wide.shape[-1] else wide.mT @ wide
    return torch.linalg.eigvalsh(gram)[..., -1].clamp(min=0).sqrt()


def squared_frobenius(rows: Float[Tensor, "cotangent *position in"]) -> Float[Tensor, "*position"]:
    """Σ over rows and coordinates of the squares: what a batch of VJPs adds to ``‖J‖_F²``. float64.

    >>> squared_frobenius(torch.tensor([[[3.0, 4.0]]])).tolist()
    [25.0]
    """
    return rows.double().square().sum(dim=(0, -1))
