"""Through which tokens and heads influence reaches a query: the strongest paths, and the ways of each cell."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from squashlens.measure.squashing.walks import strongest, top_down, without, written_out
from squashlens.model.anatomy import n_blocks, pattern_site
from squashlens.model.memory import require_room
from squashlens.records.labels import Variable
from squashlens.run.run import Run
from squashlens.theory.spread import first_has_nearly_all, first_share

PATHS, RANKS = 5, 3  # strongest paths of a query, and most important ways of a cell
LONGEST = 1024  # tokens of a prompt whose patterns are kept whole
STAYS = -1  # in place of a head: through the residual connection


class Traces:
    """Paths into the queries `traced`, the ways of each cell, and the heads' attention, from one pass that is watched.

    The path that stays at the query is left out. Where nearly all paths start at the first token, as with an attention
    sink or in a deep model, these are left out too, and their share is kept. Shares are of the paths that remain.

    The path bound obeys ``B⁽ℓ⁾_i = Σ_j 2 (α_ji + δ_ji) B⁽ℓ⁺¹⁾_j``, so that the terms divided by the sum are shares of
    the ways from cell (ℓ, i): one for each later token j that reads it, and one for its residual connection.

    A head moves attention times the norm of the value; attention alone in models without a hook point on values.
    """

    def __init__(
        self,
        session: Run,
        traced: Sequence[int],
        bounds: Float[np.ndarray, "query layer position"],
    ) -> None:
        top, n = n_blocks(session.model), session.positions
        require_room(
            top * n * n * 8,
            torch.device("cpu"),
            "The attention patterns",
            "Use a shorter prompt.",
        )
        shape = (len(traced), top, n, RANKS)
        self.session, self.traced = session, [*traced]
        self.above = torch.from_numpy(np.ascontiguousarray(bounds))
        self.share = torch.full(shape, torch.nan, dtype=torch.float64)
        self.position, self.head = (
            torch.full(shape, -1, dtype=torch.int64) for _ in range(2)
        )
        self.sizes = dict[int, Tensor]()  # by block: norms of values
        self.means = dict[int, Tensor]()  # … the pattern over heads
        self.largest = dict[
            int, Tensor
        ]()  # … the head that moves most, for each query and key
        self.attention = dict[
            int, Tensor
        ]()  # … the heads' attention of the traced queries

    def watched(self) -> list[tuple[str, Callable[[Tensor], None]]]:
        """The hook points of patterns and values of all blocks, and what reads them."""
        blocks, hooks = range(self.share.shape[1]), self.session.model.hook_dict
        named = [
            (f"blocks.{block}.attn.hook_v", partial(self._values, block))
            for block in blocks
        ]
        named = [(name, look) for name, look in named if name in hooks]
        return named + [
            (pattern_site(block), partial(self._take, block)) for block in blocks
        ]

    def _values(
        self, block: int, values: Float[Tensor, "prompt position group d"]
    ) -> None:
        if values.ndim == 4:  # latent attention has others
            self.sizes[block] = values[0].detach().float().norm(dim=-1).T.cpu()

    def _take(
        self, block: int, pattern: Float[Tensor, "prompt head query key"]
    ) -> None:
        """Split the path bound of each cell below `block` by what it goes through."""
        heads = pattern[0].detach().float().cpu()
        self.means[block], mean = heads.mean(dim=0), heads.double().mean(dim=0)
        self.attention[block] = heads[:, self.traced].transpose(0, 1).clone()
        sizes = self.sizes.get(block, torch.ones(1, heads.shape[-1]))
        largest = (
            heads * sizes.repeat_interleave(len(heads) // len(sizes), dim=0)[:, None]
        ).argmax(dim=0)
        self.largest[block] = largest.short()
        for at, query in enumerate(self.traced):
            seen = slice(0, query + 1)
            reach = self.above[at, block + 1, seen]
            attended = 2 * mean[seen, seen] * reach[:, None]
            terms = torch.cat(
                [attended, 2 * reach[None]]
            )  # the last row: through the residual connection
            shares = terms / terms.sum(dim=0)
            best = shares.topk(min(RANKS, len(terms)), dim=0)
            k, here = len(best.indices), torch.arange(query + 1)
            stays = best.indices == query + 1
            to = torch.where(stays, here, best.indices)
            head = torch.where(stays, STAYS, largest[seen, seen][to, here])
            for kept, values in (
                (self.share, best.values),
                (self.position, to),
                (self.head, head),
            ):
                kept[at, block, seen, :k] = values.T.to(kept.dtype)

    def variables(self) -> tuple[dict[str, Variable], dict[str, Any]]:
        """The variables of a map and their coordinates, after the pass."""
        (count, top), session = self.share.shape[:2], self.session
        down = [self.means[block] for block in reversed(range(top))]
        uniform = [
            written_out(session, pattern)
            for pattern in top_down(session, "uniform", 0, top)
        ]
        places = torch.full((count, PATHS, top + 1), -1, dtype=torch.int64)
        weight, share, over_null = (
            torch.full((count, PATHS), torch.nan, dtype=torch.float64) for _ in range(3)
        )
        sink = np.zeros(count)
        for at, query in enumerate(self.traced):
            seen = slice(0, query + 1)
            starts = self.above[at, 0, seen].numpy()
            sink[at] = first_share(starts) if first_has_nearly_all(starts) else 0.0
            first = [0] if sink[at] else []
            own = without([each[seen, seen] for each in down], first)
            weights, paths, null = strongest(
                own, [each[seen, seen] for each in uniform], query, PATHS + 1
            )
            others = (
                (paths != query).any(dim=1).nonzero()[:PATHS, 0]
            )  # without the path that stays at the query
            k = len(others)
            places[at, :k], weight[at, :k], over_null[at, :k] = (
                paths[others],
                weights[others],
                (weights / null)[others],
            )
            share[at, :k] = (
                weights[others] * 2.0**top / starts[len(first) : query].sum()
            )
        below, above = places[..., :-1], places[..., 1:]
        moved = torch.stack(
            [
                self.largest[block][above[..., block], below[..., block]]
                for block in range(top)
            ],
            dim=-1,
        )
        by_path, by_cell = ("traced", "path"), ("traced", "block", "position", "rank")
        attention = torch.stack([self.attention[block] for block in range(top)], dim=1)
        variables: dict[str, Variable] = {
            "path_position": (
                (*by_path, "layer"),
                places,
                "position of the path in each layer",
                "position",
            ),
            "path_head": (
                (*by_path, "block"),
                torch.where(below == above, STAYS, moved),
                "head that moves most where the path changes its token, else -1",
                "1",
            ),
            "path_weight": (
                by_path,
                weight,
                "product of attention and residual weights",
                "1",
            ),
            "path_share": (
                by_path,
                share,
                "share of the weight of all paths from these tokens",
                "1",
            ),
            "path_over_null": (
                by_path,
                over_null,
                "weight over that of the same path under uniform attention",
                "1",
            ),
            "path_sink": (
                ("traced",),
                sink,
                "share of the paths from the first token, which were left out",
                "1",
            ),
            "way_share": (
                by_cell,
                self.share,
                "share of the cell's paths that take this way",
                "1",
            ),
            "way_position": (
                by_cell,
                self.position,
                "token that the way leads to",
                "position",
            ),
            "way_head": (
                by_cell,
                self.head,
                "head that moves most on the way, or -1 for the residual",
                "1",
            ),
            "head_attention": (
                ("traced", "block", "head", "position"),
                attention,
                "attention of a head",
                "1",
            ),
        }
        return variables, {
            "traced": np.array(self.traced),
            "path": np.arange(PATHS),
            "rank": np.arange(RANKS),
        }
