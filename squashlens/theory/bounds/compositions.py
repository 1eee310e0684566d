"""The path sum of Theorem 5.1 for many queries at once: products of triangular patterns, block by block of rows.

A query sees no later token, so the product of two patterns is triangular too. Rows of a pattern that are multiplied are
computed once for all queries that see them: about n³/3 operations instead of n³ for each head.
"""

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens.theory.attention import Attention
from squashlens.theory.bounds.paths import Pattern

ROWS = 256  # of a whole pattern that are multiplied together


def compositions(
    queries: Int[Tensor, " chosen"], n: int, patterns: Iterable[Pattern], gain: float
) -> Iterator[Float[Tensor, "chosen position"]]:
    """The rows of some queries, in ascending order, of ``∏ gain (A + I)``: after no pattern, after one, after two, ….

    The patterns are those of one prompt of n tokens, averaged over heads, from the top block down. The product of rows
    with the queries and keys of a block is on the device of these.

    >>> A = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    >>> [rows.tolist() for rows in compositions(torch.tensor([1]), 2, [A, A], 1.0)]
    [[[0.0, 1.0]], [[0.5, 1.5]], [[1.75, 2.25]]]
    """
    rows = torch.nn.functional.one_hot(queries, n).double()
    yield rows
    for pattern in patterns:
        added = _through(queries, rows, pattern)
        rows = gain * (rows.to(added.device) + added)
        yield rows


def _through(
    queries: Int[Tensor, " chosen"], rows: Float[Tensor, "chosen position"], pattern: Pattern
) -> Float[Tensor, "chosen position"]:
    """The product of rows, of which each is zero after its query, with a pattern."""
    if isinstance(pattern, Attention):
        blocks = ((here, keys, pattern.weights(here, keys)[0][0].mean(dim=(0, 1))) for here, keys in pattern.blocks())
    elif isinstance(pattern, Tensor):
        blocks = _parts(pattern.reshape(pattern.shape[-2:]))
    else:
        return pattern.pushed(rows)
    # The rows go to the device, which nobody waits for; the pattern's rows would have to come from it, part by part.
    rows = rows.to(pattern.queries.device if isinstance(pattern, Attention) else pattern.device)
    found = torch.zeros_like(rows)
    for here, keys, weights in blocks:
        first = int(torch.searchsorted(queries, here.start))  # earlier queries do not see these rows
        if first < len(queries):
            found[first:, keys] += rows[first:, here] @ weights.to(rows.dtype)
    return found


def _parts(pattern: Float[Tensor, "query key"]) -> Iterator[tuple[slice, slice, Tensor]]:
    """The rows of a whole pattern, with the keys that they may see."""
    for start in range(0, len(pattern), ROWS):
        stop = min(len(pattern), start + ROWS)
        yield slice(start, stop), slice(0, stop), pattern[start:stop, :stop]
