"""The path sum of Theorem 5.1, computed one row at a time.

The sensitivity of one block is bounded by ``m (α_ji / β₁ + δ_ji)``. By the chain rule, the bound for L blocks sums over
all paths from query n down to token i, with one attention matrix for each block. Only row n of this matrix product is
needed, so a row vector is multiplied by the matrices from the top block to the bottom: O(L n²) instead of O(L n³).

Source: Barbero et al. 2024, Theorem 5.1 / B.5. The printed sum has L interior nodes, but L matrices have L − 1; the
proof supports the matrix product.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float, Int
from torch import Tensor

from squashlens.theory.attention import Attention, by_rows, nonzero_range


@dataclass(frozen=True)
class Uniform:
    """The uniform baseline, without its matrix: every query attends equally to all keys that it may see.

    ``α_ji = 1 / (min(j + 1, w) + s)`` for ``j − w < i ≤ j`` (0-based), else 0. The window w includes the query itself.
    With a learned sink, a key without a value, s is 1; without one it is 0.
    """

    window: int | None = None
    sink: bool = False

    def pushed(self, rows: Float[Tensor, "... query"]) -> Float[Tensor, "... key"]:
        """``r A``: each entry divided by the number of keys that its query sees, and summed over the queries."""
        n = rows.shape[-1]
        n_keys = torch.arange(1, n + 1, dtype=rows.dtype, device=rows.device)
        if self.window is not None:
            n_keys = n_keys.clamp(max=self.window)
        return Visible(self.window).pushed(rows / (n_keys + self.sink))


@dataclass(frozen=True)
class Visible:
    """The pattern of ones for every visible key, without its matrix, to count paths; a product takes O(n)."""

    window: int | None = None

    def pushed(self, rows: Float[Tensor, "... query"]) -> Float[Tensor, "... key"]:
        """``r A``: for each key the sum over the queries that see it."""
        # Σ_{i ≤ j < i + w} r_j, summed in blocks of length w: a difference of two cumulative sums would lose digits.
        if self.window is None or self.window >= rows.shape[-1]:
            return rows.flip(-1).cumsum(-1).flip(-1)
        n = rows.shape[-1]
        w = self.window
        # whole parts of w, and one more of zeros after the last
        padded = torch.nn.functional.pad(rows, (0, (-n) % w + w))
        parts = padded.unflatten(-1, (-1, w))
        # from i to the end of its part
        behind = parts.flip(-1).cumsum(-1).flip(-1)[..., :-1, :]
        # from the start of the next part to before i + w
        ahead = parts.cumsum(-1)[..., 1:, :].roll(1, -1)
        ahead[..., 0] = 0
        return (behind + ahead).flatten(-2)[..., :n]


# A pattern A averaged over heads, or what gives its products with rows: ``pushed(r) = r A``.
Pattern = Float[Tensor, "*#prompt query key"] | Attention | Uniform | Visible


def pushed(
    rows: Float[Tensor, "... query"], pattern: Pattern, within: slice | None = None
) -> Float[Tensor, "... key"]:
    """The product ``r A`` of rows with a pattern; outside the slice `within` the rows are zero."""
    if isinstance(pattern, Tensor):
        weights = pattern.to(rows.dtype)
        return einsum(rows, weights, "... query, ... query key -> ... key")
    if isinstance(pattern, Attention):
        return pattern.pushed(rows, within)
    return pattern.pushed(rows)


def _where(row: Float[Tensor, "... position"]) -> slice:
    """The positions between which a row is not zero."""
    return nonzero_range(row.reshape(-1, row.shape[-1]).any(dim=0))


def _after(pattern: Pattern, within: slice, n: int) -> slice:
    """Where a row of n numbers, and its product with a pattern, may be other than zero, if the row is so in a slice.

    It follows from the pattern: to look at rows on a device, the host would have to wait for it at every block.
    """
    return pattern.reached(within) if isinstance(pattern, Attention) else slice(0, n)


def sweep(
    row: Float[Tensor, "*#prompt position"],
    patterns: Iterable[Pattern],
    *,
    attention_scale: float = 1.0,
    gain: float = 1.0,
) -> Iterator[Float[Tensor, "..."]]:
    """The row itself, and then the row after each further factor ``gain · (attention_scale · A + I)``, A a pattern.

    The patterns are in descending order, from the block next to the output. Each row is where its pattern is, which may
    be another device than that of the first row. In the theorem's notation,
    ``attention_scale = 1/β₁`` and ``gain = σ_ψ/β₂ + 1``; with ``gain = ½`` the product stays row-stochastic.
    """
    n = row.shape[-1]
    within = _where(row)
    yield row
    for pattern in patterns:
        weighted = gain * row
        attended = pushed(weighted, pattern, within)
        row = attention_scale * attended + weighted.to(attended.device)
        within = _after(pattern, within, n)
        yield row


def compositions(
    queries: Int[Tensor, " chosen"], n: int, patterns: Iterable[Pattern], gain: float
) -> Iterator[Float[Tensor, "chosen position"]]:
    """The rows of some queries, in ascending order, of ``∏ gain (A + I)``: after no pattern, after one, after two, ….

    The patterns are those of one prompt of n tokens, averaged over heads, from the top block down. Rows of a pattern
    are computed once for all queries that see them: about n³/3 operations instead of n³ for each head.
    """
    rows = torch.nn.functional.one_hot(queries, n).double()
    yield rows
    for pattern in patterns:
        added = _through(queries, rows, pattern)
        rows = gain * (rows.to(added.device) + added)
        yield rows


def _through(
    queries: Int[Tensor, " chosen"],
    rows: Float[Tensor, "chosen position"],
    pattern: Pattern,
) -> Float[Tensor, "chosen position"]:
    """The product of rows, of which each is zero after its query, with a pattern."""
    if not isinstance(pattern, Attention | Tensor):
        return pattern.pushed(rows)
    like = pattern.queries if isinstance(pattern, Attention) else pattern
    # The rows go to the device, which nobody waits for; the pattern's rows would have to come from it, part by part.
    rows = rows.to(like.device)
    product = torch.zeros_like(rows)
    for block, keys, weights in by_rows(pattern):
        first = int(torch.searchsorted(queries, block.start))  # they are in order
        if first < len(queries):  # earlier queries do not see these rows
            mean = weights.mean(dim=0).to(rows.dtype)
            product[first:, keys] += rows[first:, block] @ mean
    return product


def by_hops(
    row: Float[Tensor, "*#prompt position"], patterns: Iterable[Pattern]
) -> Float[Tensor, "hop ..."]:
    """The last row of `sweep`, split by the number of times that a path goes through attention, from 0 to L hops.

    With tA in place of A, the product is a polynomial in t, and entry k of the result is the coefficient of t^k.
    """
    rows = row[None]
    within = _where(row)
    for pattern in patterns:
        attended = pushed(rows, pattern, within)
        rows = rows.to(attended.device)
        within = _after(pattern, within, row.shape[-1])
        # With k hops after this block: k before it and past attention, or k − 1 and one through it.
        none = torch.zeros_like(rows[:1])
        rows = torch.cat([rows, none]) + torch.cat([none, attended])
    return rows


def heaviest_paths(
    patterns: Sequence[Float[Tensor, "query key"]], query: int, k: int
) -> tuple[Float[Tensor, " path"], Int[Tensor, "path layer"]]:
    """The k paths into `query` with the largest weights: weights in descending order, and positions in each layer.

    A path has one position for each layer, from the bottom up; its weight is the product of ``α_ji + δ_ji``. The k-best
    Viterbi algorithm works from the top, in O(L n² k): of all paths from a position up to the query, only the k
    heaviest can be part of the result. Paths of weight 0 are left out. The patterns are in descending order, as in
    `sweep`.
    """
    n = patterns[0].shape[-1]
    # (position, rank): the heaviest paths from each position up to the query
    weights = torch.zeros(n, 1, dtype=torch.float64)
    weights[query] = 1.0
    steps: list[tuple[Tensor, Tensor]] = []  # position and rank one layer above
    for pattern in patterns:
        edges = pattern.double() + torch.eye(n, dtype=torch.float64)
        ranks = weights.shape[1]
        # (key, query, rank): every extension to a key of one of the best paths that end at a query
        longer = edges.T[:, :, None] * weights[None]
        best = longer.flatten(1).topk(min(k, longer[0].numel()), dim=1)
        steps.append((best.indices // ranks, best.indices % ranks))
        weights = best.values
    ranks = weights.shape[1]
    heaviest = weights.flatten().topk(min(k, weights.numel()))
    exists = heaviest.values > 0
    place = heaviest.indices[exists] // ranks
    rank = heaviest.indices[exists] % ranks
    # back up to the query, along the steps that were chosen
    walk = [place]
    for place_above, rank_above in reversed(steps):
        above = (place, rank)
        place = place_above[above]
        rank = rank_above[above]
        walk.append(place)
    return heaviest.values[exists], torch.stack(walk, dim=1)
