"""Through which tokens and heads influence reaches a query: the strongest paths, and the ways of each cell."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens.measure.squashing.walks import strongest, without, written_out_down
from squashlens.model.anatomy import pattern_site
from squashlens.model.memory import require_room
from squashlens.records.labels import Variable, arrays_of
from squashlens.run.forward import forward
from squashlens.run.run import Run
from squashlens.theory.spread import first_has_nearly_all, first_share

PATHS = 5  # strongest paths of a query
RANKS = 3  # most important ways of a cell
LONGEST = 1024  # tokens of a prompt whose patterns are kept whole
STAYS = -1  # in place of a head: through the residual connection
BY_PATH = ("traced", "path")
BY_CELL = ("traced", "block", "position", "rank")


def traces_of(run: Run, traced: Sequence[int], bounds: xr.DataArray) -> xr.Dataset:
    """Paths into the queries `traced`, the ways of each cell, and the heads' attention.

    `bounds` are their path bounds (query, layer, position). The path that stays at the query is left out. Where nearly
    all paths start at the first token, as with an attention sink or in a deep model, these are left out too, and their
    share is kept. Shares are of the paths that remain.

    The path bound obeys ``B⁽ℓ⁾_i = Σ_j 2 (α_ji + δ_ji) B⁽ℓ⁺¹⁾_j``, so that the terms divided by the sum are shares of
    the ways from cell (ℓ, i): one for each later token j that reads it, and one for its residual connection.

    A head moves attention times the norm of the value; attention alone in models without a hook point on values.
    """
    n = run.positions
    require_room(
        run.n_blocks * n * n * 8,
        torch.device("cpu"),
        "The attention patterns",
        "Use a shorter prompt.",
    )
    attention = HeadsOf(run, traced)
    above = torch.from_numpy(np.ascontiguousarray(bounds))
    variables = attention.variables() | _ways(attention, above)
    variables |= _paths(attention, above)
    coords = {"traced": list(traced), "path": range(PATHS), "rank": range(RANKS)}
    return xr.Dataset(arrays_of(variables), coords)


class HeadsOf:
    """The attention of one pass, by block.

    `mean` is the mean over heads, `largest` the number of the head that moves most, and `of_traced` the attention of
    every head at the traced queries.
    """

    def __init__(self, run: Run, traced: Sequence[int]) -> None:
        self.run = run
        self.traced = list(traced)
        self.mean: dict[int, Float[Tensor, "query key"]] = {}
        self.largest: dict[int, Float[Tensor, "query key"]] = {}
        self.of_traced: dict[int, Float[Tensor, "traced head key"]] = {}
        self._value_norms: dict[int, Float[Tensor, "group position"]] = {}
        watch: list[Any] = []  # values come before the pattern of their block
        for block in range(run.n_blocks):
            values = f"blocks.{block}.attn.hook_v"
            if values in run.model.hook_dict:
                watch.append((values, partial(self._see_values, block)))
            watch.append((pattern_site(block), partial(self._see_pattern, block)))
        forward(run, run.ids, watch)

    def _see_values(
        self, block: int, values: Float[Tensor, "prompt position group d"]
    ) -> None:
        """Keep the norms of the value vectors of a block."""
        if values.ndim == 4:  # latent attention has others
            self._value_norms[block] = values[0].detach().float().norm(dim=-1).T.cpu()

    def _see_pattern(
        self, block: int, pattern: Float[Tensor, "prompt head query key"]
    ) -> None:
        """Keep of the pattern of a block what the map shows; it comes after the values."""
        heads = pattern[0].detach().float().cpu()  # (head, query, key)
        self.mean[block] = heads.double().mean(dim=0)
        # A copy, so that the whole pattern can be freed.
        self.of_traced[block] = heads[:, self.traced].transpose(0, 1).clone()
        moved = heads
        if block in self._value_norms:
            norms = self._value_norms[block]
            # Several heads may share the values of a group.
            norms = norms.repeat_interleave(len(heads) // len(norms), dim=0)
            moved = heads * norms[:, None]
        self.largest[block] = moved.argmax(dim=0)

    def variables(self) -> dict[str, Variable]:
        """The attention of each head from the traced queries, for a Dataset."""
        blocks = [self.of_traced[block] for block in range(self.run.n_blocks)]
        over = ("traced", "block", "head", "position")
        stacked = torch.stack(blocks, dim=1)
        return {"head_attention": (over, stacked, "attention of a head", "1")}


def _ways(
    attention: HeadsOf, above: Float[Tensor, "traced layer position"]
) -> dict[str, Variable]:
    """The most important ways of each cell: their shares of its paths, and where they lead through which head.

    `above` are the path bounds of the traced queries; `traces_of` has the equation.
    """
    run = attention.run
    shape = (len(attention.traced), run.n_blocks, run.positions, RANKS)
    share = torch.full(shape, torch.nan, dtype=torch.float64)
    position = torch.full(shape, -1)
    head = torch.full(shape, -1)
    for row, query in enumerate(attention.traced):
        visible = slice(0, query + 1)
        cells = torch.arange(query + 1)
        for block in range(run.n_blocks):
            mean = attention.mean[block][visible, visible]  # (later token, cell)
            bound = above[row, block + 1, visible]
            attended = 2 * mean * bound[:, None]
            # The last row: through the residual connection.
            terms = torch.cat([attended, 2 * bound[None]])
            best = (terms / terms.sum(dim=0)).topk(min(RANKS, len(terms)), dim=0)
            # All (rank, cell), and transposed in the result.
            stays = best.indices == query + 1
            to = torch.where(stays, cells, best.indices)
            moving = attention.largest[block][to, cells]
            k = len(to)
            share[row, block, visible, :k] = best.values.T
            position[row, block, visible, :k] = to.T
            head[row, block, visible, :k] = torch.where(stays, STAYS, moving).T
    shares = "share of the cell's paths that take this way"
    heads = "head that moves most on the way, or -1 for the residual"
    return {
        "way_share": (BY_CELL, share, shares, "1"),
        "way_position": (BY_CELL, position, "token that the way leads to", "position"),
        "way_head": (BY_CELL, head, heads, "1"),
    }


def _paths(
    attention: HeadsOf, above: Float[Tensor, "traced layer position"]
) -> dict[str, Variable]:
    """The strongest paths into each query, without the one that stays there.

    `above` are the path bounds of the traced queries: at layer 0, the weight of all paths from each token, times 2 to
    the number of blocks.
    """
    run = attention.run
    top = run.n_blocks
    # Patterns from the top block down, as `strongest` takes them.
    down = [attention.mean[block].float() for block in reversed(range(top))]
    uniform = written_out_down(run, "uniform", 0, top)
    shape = (len(attention.traced), PATHS)
    places = torch.full((*shape, top + 1), -1)
    heads = torch.full((*shape, top), STAYS)
    weight = torch.full(shape, torch.nan, dtype=torch.float64)
    share = weight.clone()
    over_null = weight.clone()
    sink = np.zeros(len(attention.traced))
    for row, query in enumerate(attention.traced):
        visible = slice(0, query + 1)
        starts = above[row, 0, visible].numpy()
        avoided = []
        if first_has_nearly_all(starts):
            sink[row] = first_share(starts)
            avoided = [0]
        patterns = without([pattern[visible, visible] for pattern in down], avoided)
        null = [pattern[visible, visible] for pattern in uniform]
        # One more than are drawn, since the path that stays at the query may be among them.
        weights, paths, null_weights = strongest(patterns, null, query, PATHS + 1)
        others = (paths != query).any(dim=1).nonzero()[:PATHS, 0]
        k = len(others)
        places[row, :k] = paths[others]
        weight[row, :k] = weights[others]
        over_null[row, :k] = (weights / null_weights)[others]
        total = starts[len(avoided) : query].sum()  # of all paths that may be drawn
        share[row, :k] = weights[others] * 2.0**top / total
        for block in range(top):
            start = paths[others, block]
            to = paths[others, block + 1]
            moving = attention.largest[block][to, start]
            heads[row, :k, block] = torch.where(to == start, STAYS, moving)
    at = "position of the path in each layer"
    moves = "head that moves most where the path changes its token, else -1"
    product = "product of attention and residual weights"
    shares = "share of the weight of all paths from these tokens"
    null = "weight over that of the same path under uniform attention"
    sinks = "share of the paths from the first token, which were left out"
    return {
        "path_position": ((*BY_PATH, "layer"), places, at, "position"),
        "path_head": ((*BY_PATH, "block"), heads, moves, "1"),
        "path_weight": (BY_PATH, weight, product, "1"),
        "path_share": (BY_PATH, share, shares, "1"),
        "path_over_null": (BY_PATH, over_null, null, "1"),
        "path_sink": (("traced",), sink, sinks, "1"),
    }
