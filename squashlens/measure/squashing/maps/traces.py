"""The strongest attention paths into some queries, and the ways by which every cell reaches them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from squashlens.engine.anatomy import n_blocks, pattern_site
from squashlens.engine.memory import require_room
from squashlens.engine.running.forward import forward
from squashlens.measure.session import Session
from squashlens.measure.squashing._attention import patterns_of, written_out
from squashlens.measure.squashing.walks import strongest, without
from squashlens.records.results import Variable
from squashlens.theory.statistics.sinks import first_share, has_sink

PATHS, RANKS = 5, 3  # strongest paths of a query, and most important ways of a cell
LONGEST = 1024  # tokens of a prompt whose patterns are kept whole
STAYS = -1  # in place of a head: through the residual connection


def traces(
    session: Session, traced: Sequence[int], bounds: Float[np.ndarray, "query layer position"]
) -> tuple[dict[str, Variable], dict[str, Any]]:
    """Paths into the queries `traced`, and the ways of each cell; `bounds` are their path bounds from every layer.

    Where the first token is an attention sink, the strongest paths all start there. Those of other tokens are kept
    then, with the share of the paths that were left out.

    The path bound obeys ``B⁽ℓ⁾_i = Σ_j 2 (α_ji + δ_ji) B⁽ℓ⁺¹⁾_j``, so that the terms divided by the sum are shares of
    the ways from cell (ℓ, i): one for each later token j that reads it, and one for its residual connection.
    """
    top, n = n_blocks(session.model), session.positions
    require_room(top * n * n * 8, torch.device("cpu"), "The attention patterns", "Use a shorter prompt.")
    above = torch.from_numpy(np.ascontiguousarray(bounds))
    ways = _Ways(traced, above, top)
    means: dict[int, Tensor] = {}
    for block, pattern in _by_head(session, ways.take).items():
        means[block] = pattern
    down = [means[block] for block in reversed(range(top))]
    null = patterns_of(session, "uniform", range(top))
    uniform = [written_out(session, null[block]) for block in reversed(range(top))]
    places = torch.full((len(traced), PATHS, top + 1), -1, dtype=torch.int64)
    weight, share, over_null = (torch.full((len(traced), PATHS), torch.nan, dtype=torch.float64) for _ in range(3))
    sink = np.zeros(len(traced))
    for at, query in enumerate(traced):
        seen = slice(0, query + 1)
        starts = above[at, 0, seen].numpy()
        sink[at] = first_share(starts) if has_sink(starts) else 0.0
        own = without([one[seen, seen] for one in down], [0] if sink[at] else [])
        found = strongest(own, [one[seen, seen] for one in uniform], query, PATHS)
        k = len(found.weights)
        places[at, :k], weight[at, :k], over_null[at, :k] = found.places, found.weights, found.weights / found.null
        share[at, :k] = found.weights * 2.0**top / above[at, 0].sum()
    by_path, by_cell = ("traced", "path"), ("traced", "block", "position", "rank")
    variables: dict[str, Variable] = {
        "path_position": ((*by_path, "layer"), places, "position of the path in each layer", "position"),
        "path_weight": (by_path, weight, "product of attention and residual weights", "1"),
        "path_share": (by_path, share, "share of all paths' weight", "1"),
        "path_over_null": (by_path, over_null, "weight over that of the same path under uniform attention", "1"),
        "path_sink": (("traced",), sink, "share of the paths from the first token, which were left out", "1"),
        "way_share": (by_cell, ways.share, "share of the cell's paths that take this way", "1"),
        "way_position": (by_cell, ways.position, "token that the way leads to", "position"),
        "way_head": (by_cell, ways.head, "head with the largest weight on the way, or -1 for the residual", "1"),
    }
    coords = {"traced": np.array(traced), "path": np.arange(PATHS), "rank": np.arange(RANKS)}
    return variables, coords


class _Ways:
    """The most important ways of every cell to each query, from the patterns of one block at a time."""

    def __init__(self, traced: Sequence[int], above: Float[Tensor, "query layer position"], top: int) -> None:
        shape = (len(traced), top, above.shape[-1], RANKS)
        self.traced, self.above = traced, above
        self.share = torch.full(shape, torch.nan, dtype=torch.float64)
        self.position, self.head = (torch.full(shape, -1, dtype=torch.int64) for _ in range(2))

    def take(self, block: int, pattern: Float[Tensor, "head query key"]) -> None:
        """Split the path bound of each cell below `block` by what it goes through."""
        mean, (_, largest) = pattern.double().mean(dim=0), pattern.max(dim=0)
        for at, query in enumerate(self.traced):
            seen = slice(0, query + 1)
            reach = self.above[at, block + 1, seen]
            attended = 2 * mean[seen, seen] * reach[:, None]
            terms = torch.cat([attended, 2 * reach[None]])  # the last row: through the residual connection
            shares = terms / terms.sum(dim=0)
            best = shares.topk(min(RANKS, len(terms)), dim=0)
            k, here = len(best.indices), torch.arange(query + 1)
            stays = best.indices == query + 1
            to = torch.where(stays, here, best.indices)
            head = torch.where(stays, STAYS, largest[seen, seen][to, here])
            for kept, values in ((self.share, best.values), (self.position, to), (self.head, head)):
                kept[at, block, seen, :k] = values.T.to(kept.dtype)


def _by_head(
    session: Session, take: Callable[[int, Float[Tensor, "head query key"]], None]
) -> dict[int, Float[Tensor, "query key"]]:
    """The patterns of all blocks, averaged over heads; `take` gets them by head, one block at a time."""
    means: dict[int, Tensor] = {}

    def keep(block: int) -> Callable[[Tensor], None]:
        def read(pattern: Tensor) -> None:
            heads = pattern[0].detach().float().cpu()
            means[block] = heads.mean(dim=0)
            take(block, heads)

        return read

    blocks = range(n_blocks(session.model))
    held = {} if session.capture is None else session.capture.patterns
    if all(block in held for block in blocks):
        for block in blocks:
            keep(block)(held[block])
    else:
        with torch.no_grad():
            forward(session.model, session.ids, [(pattern_site(block), keep(block)) for block in blocks])
    return means
