"""The path sum of Theorem 5.1, composed one row at a time.

With one block's sensitivity bounded by ``m (α_ji / β₁ + δ_ji)``, the chain rule over L blocks sums over
every way to walk from query n down to token i, one attention matrix per block. Only row n of that product
is needed, so a row vector is swept from the top block to the bottom: O(L n²), never O(L n³).

Source: Barbero et al. 2024, Theorem 5.1 / B.5. The printed sum has L interior nodes where L matrices leave
L − 1; the matrix product here is the reading the proof supports.
"""

from collections.abc import Iterable, Iterator

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor


def sweep(
    row: Float[Tensor, "*#prompt position"],
    patterns: Iterable[Float[Tensor, "*#prompt query key"]],
    *,
    attention_scale: float = 1.0,
    gain: float = 1.0,
) -> Iterator[Float[Tensor, "..."]]:
    """Multiply a row by ``gain · (attention_scale · A + I)`` for each pattern, yielding every row on the way.

    The patterns come top-down: the block next to the output first. In the theorem's terms
    ``attention_scale = 1/β₁`` and ``gain = σ_ψ/β₂ + 1``; with ``gain = ½`` the product stays row-stochastic.

    >>> A = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    >>> [r.tolist() for r in sweep(torch.tensor([0.0, 1.0]), [A, A])]
    [[0.5, 1.5], [1.75, 2.25]]
    """
    for pattern in patterns:
        weighted = gain * row
        attended = einsum(weighted, pattern.to(row.dtype), "... query, ... query key -> ... key")
        row = attention_scale * attended + weighted
        yield row


def uniform_attention(n: int, window: int | None = None) -> Float[Tensor, "query key"]:
    """The null model: every query spreads its attention evenly over what it may see.

    ``α_ji = 1 / min(j + 1, w)`` for ``j − w < i ≤ j`` (0-based), else 0; the query itself counts in the
    window w, as Hugging Face has it. Row-stochastic, float64.

    >>> uniform_attention(3, window=2).tolist()
    [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]
    """
    query, key = torch.arange(n)[:, None], torch.arange(n)[None, :]
    visible = key <= query
    if window is not None:
        visible &= key > query - window
    seen = visible.double()
    return seen / seen.sum(dim=-1, keepdim=True)
