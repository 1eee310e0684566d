"""The path bound with measured constants: a certified bound for this model at this input.

Each pair of neighbouring layers has a matrix of edges ``e_ji ≥ ‖∂v'_j/∂v_i‖₂``, the norms of a block's Jacobian. By the
chain rule and the triangle inequality, row n of the product of these matrices is at least ``‖∂y_n/∂v_i‖₂``. Whatever is
frozen is frozen in every edge. The last block includes the final norm and ends at y, so that the final norm needs no
constant of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Target
from squashlens.bars import bar
from squashlens.errors import UnsoundModelError
from squashlens.hooks.freeze import freezing
from squashlens.measure.squashing.jacobians.products import require_causal
from squashlens.model.memory import require_room
from squashlens.model.premises import why_not_block_by_block
from squashlens.run.budget import cotangents_on_graph
from squashlens.run.derivatives import visibility
from squashlens.run.derivatives.exact import (
    CERTIFIES,
    Jittered,
    certifying,
    require_one_device,
)
from squashlens.run.derivatives.spans import Span, open_spans, vjps
from squashlens.run.run import Run
from squashlens.theory.norms import missing_sizes, spectral_norms, with_rounding
from squashlens.theory.probes import PROBES, normals

FAILURE = 5e-7  # probability that the probes miss what rounding did
Stretch = tuple[
    int, Target
]  # consecutive blocks: the layer at which they start, and the one at which they end


def certified_rows(
    run: Run,
    targets: Mapping[Target, int],
    from_layer: int,
    query: int,
    freeze: Sequence[str],
    *,
    n_composed: int,
    vjp_batch_size: int | None,
    seed: int,
) -> tuple[dict[Target, Float[Tensor, "prompt position"]], dict[str, Any]]:
    """For each target the row `query` of the product of edge matrices, and what its certificate says.

    Every edge is computed once, and all bounds hold together, except with the certificate's failure probability.
    """
    chains: dict[Target, list[Stretch]] = {
        to: _stretches(from_layer, top, to, n_composed) for to, top in targets.items()
    }
    if any(len(chain) > 1 for chain in chains.values()) and (
        reason := why_not_block_by_block(run.model)
    ):
        whole = run.n_blocks
        raise UnsoundModelError(reason, f"Use n_composed={whole}, or `jacobian_norms`.")
    # The row needs all edges, except in the last stretch, where it needs only those into the query.
    wanted = {chain[-1]: range(query, query + 1) for chain in chains.values()}
    wanted |= {
        stretch: range(query + 1) for chain in chains.values() for stretch in chain[:-1]
    }
    wanted = dict(sorted(wanted.items(), key=lambda item: item[0][0], reverse=True))
    work = _Work(
        run, wanted, freeze, max(map(len, chains.values())), seed, vjp_batch_size
    )
    start = torch.nn.functional.one_hot(torch.tensor(query), run.positions).double()
    rows: dict[Target, list[Tensor]] = {to: [] for to in targets}
    require_one_device(run)
    with certifying(run):
        work.require_fits()
        for ids in run.ids:
            for parts in rows.values():
                parts.append(start)
            for stretch, edges in work.matrices(ids[None]):
                for to, chain in chains.items():
                    if stretch in chain:
                        rows[to][-1] = rows[to][-1] @ edges
    return {to: torch.stack(parts) for to, parts in rows.items()}, work.certificate()


def _stretches(from_layer: int, top: int, to: Target, group: int) -> list[Stretch]:
    """The stretches of `group` blocks, counted from the top, in order from the bottom."""
    bounds = sorted({from_layer, *range(top, from_layer, -group)})
    ends: list[Target] = [*bounds[1:-1], to]
    return list(zip(bounds[:-1] or bounds, ends, strict=True))


@dataclass
class _Work:
    """The stretches, from the top down, with the queries of their edges, and what rounding did in any of them.

    A path has up to `steps` edges, whose allowances for rounding multiply.
    """

    run: Run
    wanted: Mapping[Stretch, range]
    freeze: Sequence[str]
    steps: int
    seed: int
    batch_size: int | None
    rounding: float = 0.0

    def require_fits(self) -> None:
        """Raise if the Jacobian's rows of one query do not fit."""
        n, d = self.run.positions, self.run.width
        cheaper = (
            "`jacobian_norms(method='sketch_upper')` is certified too, and takes less."
        )
        require_room(
            8 * n * d * d,
            self.run.device,
            "The rows of one query",
            f"Use a shorter prompt. {cheaper}",
        )

    def matrices(
        self, ids: Tensor
    ) -> Iterator[tuple[Stretch, Float[Tensor, "query key"]]]:
        """The edges of every stretch on one prompt, as matrices on the CPU."""
        run, n = self.run, self.run.positions
        hooks = freezing(self.freeze)
        batch = self.batch_size or cotangents_on_graph(run, 1, n)
        tops: dict[Target, int] = {
            to: run.n_blocks if to == "y" else to for _, to in self.wanted
        }
        blocks = range(min(bottom for bottom, _ in self.wanted), max(tops.values()))
        seen = visibility.visibilities(run, ids, hooks, blocks)
        for (bottom, to), queries in bar(
            self.wanted.items(), desc="path bound", unit="stretch"
        ):
            plain, jittered = (
                open_spans(run, ids, hooks, [bottom], tops[to], within=within)[bottom]
                for within in (None, Jittered(run.device, self.seed))
            )
            edges = _edges(run, plain, to, queries, batch)
            crossed = range(bottom, tops[to])
            rounding = visibility.derivative_rounding(run, seen, crossed, n)
            rounding += self._rounded_away(
                plain, jittered, to, edges[queries.start : queries.stop], queries, batch
            )
            self.rounding = max(self.rounding, rounding)
            reached = visibility.tokens_reaching(
                seen, crossed, torch.eye(n, dtype=torch.bool)
            )
            yield (bottom, to), with_rounding(edges.cpu(), reached, rounding)

    def _rounded_away(
        self,
        plain: Span,
        jittered: Span,
        to: Target,
        edges: Float[Tensor, "query key"],
        queries: range,
        batch: int,
    ) -> float:
        """The most that rounding did to a block Δ_ji of the derivative, relative to the largest edge r_j of its row.

        The derivative of the same pass with `Jittered` results is multiplied by the same random directions, divided by
        r_j, at all queries at once. With Δ_i the matrix of all Δ_ji/r_j on top of each other, `missing_sizes` of the
        difference is at least ``‖Δ_i‖₂ ≥ ‖Δ_ji‖₂/r_j``. Raises if it leaves no digit.
        """
        largest = edges.amax(dim=-1).clamp(min=torch.finfo(edges.dtype).tiny)
        directions = normals(self.seed)(PROBES, len(queries), self.run.width).to(
            largest
        )
        pulled = []
        for span in (plain, jittered):
            output = span.outputs[to]
            cotangents = output.new_zeros(PROBES, *output.shape)
            cotangents[:, 0, list(queries)] = (directions / largest[:, None]).to(output)
            products = vjps(self.run, output, [span.leaf], cotangents, batch)
            pulled.append(torch.cat([rows for (rows,) in products])[:, 0])
        chance = FAILURE / (len(self.wanted) * len(self.run.ids))
        lost = float(missing_sizes(pulled[1] - pulled[0], chance).max())
        visibility.require_digits(lost)
        return lost

    def certificate(self) -> dict[str, Any]:
        """What is certified, with which allowance for rounding and which failure probability."""
        return {
            "certifies": CERTIFIES,
            "rounding_per_step": self.rounding,
            "rounding": (1 + self.rounding) ** self.steps - 1,
            "failure_probability": FAILURE,
        }


def _edges(
    run: Run, span: Span, to: Target, queries: range, batch: int
) -> Float[Tensor, "query key"]:
    """The norms ‖∂v'_j/∂v_i‖ of a stretch of blocks, from d vector–Jacobian products for each query j."""
    output, leaf = span.outputs[to], span.leaf
    every = torch.eye(output.shape[-1], dtype=output.dtype, device=output.device)[
        :, None
    ]
    edges = torch.zeros(
        leaf.shape[1], leaf.shape[1], dtype=torch.float64, device=leaf.device
    )
    for j in bar(queries, desc="edges", unit="token", leave=False):
        with torch.enable_grad():
            alone = output[:, j]
        products = (
            require_causal(run, part, j)
            for (part,) in vjps(run, alone, [leaf], every, batch)
        )
        rows = torch.cat([*products])[:, 0]
        edges[j, : j + 1] = torch.cat(
            [spectral_norms(rows[None, :, i]) for i in range(j + 1)]
        )
    return edges
