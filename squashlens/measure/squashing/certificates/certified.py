"""The path bound with measured constants: a certified bound for this model at this input.

Each pair of neighbouring layers has a matrix of edges ``e_ji ≥ ‖∂v'_j/∂v_i‖₂``. By the chain rule and the triangle
inequality, row n of the product of these matrices is at least ``‖∂y_n/∂v_i‖₂``. Whatever is frozen is frozen in every
edge. The last block includes the final norm and ends at y, so that the final norm needs no constant of its own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import EdgeKind, Target
from squashlens.bars import bar, write
from squashlens.engine.anatomy import device_of, dtype_of, n_blocks, width
from squashlens.engine.budget import cotangents, cotangents_on_graph, local_bytes, tell, tokens_at_a_time
from squashlens.engine.differentiating import visibility
from squashlens.engine.differentiating.chunks import LocalBlock, local_block
from squashlens.engine.differentiating.dissection import OpenBlock, open_blocks
from squashlens.engine.differentiating.exact import CERTIFIES, Jittered, certifying, require_one_device
from squashlens.engine.differentiating.replay import Replay, record, require_replayable
from squashlens.engine.differentiating.spans import Span, open_spans
from squashlens.engine.hooking.freeze import freezing
from squashlens.engine.hooking.hook import Hook, Recipe
from squashlens.engine.memory import human, require_room
from squashlens.engine.proving.premises import why_not_block_by_block
from squashlens.errors import UnsoundModelError
from squashlens.measure.session import Session
from squashlens.measure.squashing.certificates.edges import (
    edges_by_autograd,
    edges_of,
    maps_of,
    missing,
    pulled_through,
    require_small,
    share_of,
)
from squashlens.measure.squashing.certificates.local import local_edges, require_apart, require_local_form
from squashlens.theory.bounds.edge_bounds import with_rounding
from squashlens.theory.bounds.local_edges import LocalEdges
from squashlens.theory.bounds.path_sums import Pattern, pushed
from squashlens.theory.lanczos import certified_spectral_norms, lanczos_steps
from squashlens.theory.norms import missing_sizes, spectral_norms
from squashlens.theory.probes import PROBES, normals

SMALL = 512  # matrices up to this size get an exact norm; for larger ones Lanczos is several times faster
FEW = 64  # an operator with up to this many columns is applied to every unit vector
INFLATION = 0.10  # most that Lanczos may add to a bound, over all steps of a path
FAILURE = 5e-7  # failure probability of Lanczos, and of the probes for missing parts of the edges; 1e-6 together
Stretch = tuple[int, Target]  # consecutive blocks: the layer at which they start, and the one at which they end


@dataclass(frozen=True, kw_only=True)
class Edges:
    """How the edges of a certified path bound are computed: keywords of `certified_bound`, which describes them."""

    edges: EdgeKind = "analytic"
    n_composed: int = 1
    vjp_batch_size: int | None = None
    seed: int


@dataclass
class Norms:
    """Spectral norms of stacks of matrices: exact for small ones, certified upper bounds by Lanczos for large ones.

    `total` is the number of norms that must all hold. `steps` is the number of norms along a path, whose inflations
    multiply.
    """

    total: int
    steps: int
    seed: int
    failure: float = 0.0

    def __call__(self, blocks: Float[Tensor, "many out in"]) -> Float[Tensor, " many"]:
        if min(blocks.shape[-2:]) <= SMALL or not len(blocks):
            return spectral_norms(blocks)
        wide = blocks.double()
        return self.of(lambda x: (wide.mT @ (wide @ x[..., None]))[..., 0], len(wide), wide.shape[-1], wide.device)

    def of(self, gram: Callable[[Tensor], Tensor], many: int, d: int, device: torch.device) -> Float[Tensor, " many"]:
        """Norms of operators with d columns that are given by their products ``JᵀJ x``."""
        found = certified_spectral_norms(
            gram, many, d, seed=self.seed,
            inflation=self._inflation(d), failure=FAILURE, norms=self.total, device=device,
        )  # fmt: skip
        self.failure = max(self.failure, found.failure_probability)
        return found.upper

    def vectors(self, d: int) -> int:
        """The largest number of vectors of d coordinates in the Lanczos basis of an operator."""
        return lanczos_steps(d, self.total, self._inflation(d), FAILURE) + 1

    def _inflation(self, d: int) -> float:
        return 0.0 if d <= FEW else (1 + INFLATION) ** (1 / self.steps) - 1


Rows = Float[Tensor, "prompt query position"]


def certified_rows(
    session: Session, targets: Mapping[Target, int], from_layer: int, queries: Sequence[int], options: Edges,
    freeze: Sequence[str] = (),
) -> tuple[dict[Target, dict[int, Rows]], dict[str, Any]]:  # fmt: skip
    """For each target the rows `queries` of the product of edge matrices, from every layer where a stretch starts.

    Every edge is computed once, and all bounds hold together, except with the certificate's failure probability.
    """
    group = options.n_composed
    chains: dict[Target, list[Stretch]] = {to: _stretches(from_layer, top, to, group) for to, top in targets.items()}
    if any(len(chain) > 1 for chain in chains.values()) and (reason := why_not_block_by_block(session.model)):
        whole = n_blocks(session.model)
        raise UnsoundModelError(reason, f"Use edges='exact' with n_composed={whole}, or `jacobian_norms`.")
    # Rows of the product need all edges, except in the last stretch, where they need only those into the queries.
    n, wanted = max(queries) + 1, {chain[-1]: range(min(queries), max(queries) + 1) for chain in chains.values()}
    wanted |= {stretch: range(n) for chain in chains.values() for stretch in chain[:-1]}
    wanted = dict(sorted(wanted.items(), key=lambda item: item[0][0], reverse=True))
    steps = max(map(len, chains.values()))
    each = 2 if options.edges == "local" else n  # norms per query
    total = len(session.ids) * sum(len(rows) * each for rows in wanted.values())
    start = torch.nn.functional.one_hot(torch.tensor(queries), session.positions).double()
    found: dict[Target, dict[int, list[Tensor]]] = {to: {} for to in targets}
    require_one_device(session.model)
    with certifying(session.model):
        work = _Work(session, wanted, freeze, norms := Norms(total, steps, options.seed))
        size = None
        if from_layer < n_blocks(session.model):  # else the only stretch is the final norm
            if options.edges == "local":
                size = _tokens_at_a_time(session, freeze, norms, options.vjp_batch_size)
            else:
                _check_cost(session, group, wanted, n)
        for prompt in range(len(session.ids)):
            rows: dict[Target, Tensor] = dict.fromkeys(targets, start)
            for stretch, matrix in _matrices(work, prompt, options) if size is None else _local(work, prompt, size):
                for to, chain in chains.items():
                    if stretch in chain:
                        rows[to] = pushed(rows[to], matrix)
                        found[to].setdefault(stretch[0], []).append(rows[to])
                del matrix
    stacked: dict[Target, dict[int, Rows]] = {
        to: {bottom: torch.stack(parts) for bottom, parts in one.items()} for to, one in found.items()
    }
    return stacked, work.certificate()


@dataclass
class _Work:
    """The inputs that all stretches share, and the facts of the certificate, collected while stretches are computed."""

    session: Session
    wanted: Mapping[Stretch, range]
    freeze: Sequence[str]
    norms: Norms
    rounding: float = 0.0
    missing: float = 0.0

    def stretches(self) -> Iterable[tuple[Stretch, range]]:
        """The stretches from the top down, and the queries of their edges, with a progress bar."""
        return bar(self.wanted.items(), desc="path bound", unit="stretch")

    def allowance(self, seen: Mapping[int, visibility.Visibility], stretch: Stretch) -> float:
        """The relative allowance for rounding in one stretch."""
        bottom, to = stretch
        top = n_blocks(self.session.model) if to == "y" else to
        found = visibility.derivative_rounding(self.session.model, seen, range(bottom, top), self.session.positions)
        self.rounding = max(self.rounding, found)
        return found

    def jitter(self) -> Jittered:
        """A context in which results are moved by rounding."""
        return Jittered(device_of(self.session.model), self.norms.seed)

    @property
    def chance(self) -> float:
        """The share of one stretch on one prompt in the failure probability of the probes."""
        return FAILURE / (len(self.wanted) * len(self.session.ids))

    def completed(
        self, edges: Float[Tensor, "query key"], lost: Float[Tensor, "query key"]
    ) -> Float[Tensor, "query key"]:
        """The edges plus what the probes found missing, which the certificate then states."""
        self.missing = max(self.missing, share_of(lost, edges))
        return (edges + lost).cpu()

    def certificate(self) -> dict[str, Any]:
        """What is certified, with which allowance for rounding and which failure probability."""
        return {
            "certifies": CERTIFIES,
            "rounding_per_step": self.rounding,
            "rounding": (1 + self.rounding) ** self.norms.steps - 1,
            "failure_probability": self.norms.failure + FAILURE,
            "norms": "exact" if not self.norms.failure else f"Lanczos, inflated by at most {INFLATION:.0%} in all",
            "missing": self.missing,
        }


def _stretches(from_layer: int, top: int, to: Target, group: int) -> list[Stretch]:
    """The stretches of `group` blocks, counted from the top, in order from the bottom."""
    bounds = sorted({from_layer, *range(top, from_layer, -group)})
    ends: list[Target] = [*bounds[1:-1], to]
    return list(zip(bounds[:-1] or bounds, ends, strict=True))


StretchEdges = Iterator[tuple[Stretch, Pattern]]  # the edges of each stretch, from the top down


def _matrices(work: _Work, prompt: int, options: Edges) -> StretchEdges:
    """The edges of every stretch on one prompt, as matrices on the CPU."""
    session, wanted, edges, group = work.session, work.wanted, options.edges, options.n_composed
    model, ids, hooks = session.model, session.ids[prompt : prompt + 1], freezing(work.freeze)
    batch = options.vjp_batch_size or cotangents_on_graph(model, 1, session.positions)
    bottoms = sorted({bottom for bottom, _ in wanted})
    tops = {to: n_blocks(model) if to == "y" else to for _, to in wanted}
    blocks = range(bottoms[0], max(tops.values()))
    seen = visibility.visibilities(model, ids, hooks, blocks)
    allowed = suppress(UnsoundModelError) if edges == "exact" else nullcontext()  # blocks of another form
    cut: dict[int, OpenBlock] = {}
    if group == 1 and len(blocks):
        with allowed:
            cut = open_blocks(model, ids, hooks, blocks, batch)
    jittered: dict[int, Span] = {}
    if group == 1:
        jittered = open_spans(model, ids, hooks, bottoms, max(tops.values()), within=work.jitter())
    for (bottom, to), queries in work.stretches():
        rounding = work.allowance(seen, (bottom, to))
        moved = jittered.get(bottom) or open_spans(model, ids, hooks, [bottom], tops[to], within=work.jitter())[bottom]
        found: Tensor | None = None
        if bottom in cut:
            with allowed:
                maps = maps_of(cut[bottom], to, work.freeze, queries)
                derived = edges_of(maps, edges, queries, work.norms)
                lost = missing(bottom, moved, to, maps.pulled, derived, queries, work.chance, batch, work.norms.seed)
                require_small(model, bottom, lost, derived)
                found = work.completed(derived, lost)
        if found is None:
            if group == 1 and bottom < n_blocks(model):
                write(f"path bound: block {bottom} has an unknown form; its edges are computed by autograd")
            found = _by_autograd(work, hooks, ids, (bottom, to), tops[to], moved, batch)
        leading = visibility.tokens_reaching(
            seen, range(bottom, tops[to]), torch.eye(session.positions, dtype=torch.bool)
        )
        yield (bottom, to), with_rounding(found, leading, rounding)


def _by_autograd(
    work: _Work, hooks: Sequence[Hook | Recipe], ids: Tensor, stretch: Stretch, top: int, jittered: Span, batch: int
) -> Float[Tensor, "query key"]:
    """The edges of a stretch of any form by autograd, plus an allowance for rounding."""
    (bottom, to), queries = stretch, work.wanted[stretch]
    span = open_spans(work.session.model, ids, hooks, [bottom], top)[bottom]
    found = edges_by_autograd(span, to, queries, work.norms, batch)
    known = pulled_through(span, to, batch)
    lost = missing(bottom, jittered, to, known, found, queries, work.chance, batch, work.norms.seed)
    visibility.require_digits(share_of(lost, found))
    return work.completed(found, lost)


def _local(work: _Work, prompt: int, size: int) -> StretchEdges:
    """The local edges of every stretch on one prompt, as factors per token, computed for `size` tokens at a time."""
    model, norms = work.session.model, work.norms
    ids, hooks, top = work.session.ids[prompt : prompt + 1], freezing(work.freeze), n_blocks(model)
    lowest = min(bottom for bottom, _ in work.wanted)
    replay = record(model, ids, hooks, lowest, top)
    with work.jitter():
        jittered = record(model, ids, hooks, lowest, top)
    for (bottom, to), queries in work.stretches():
        block = local_block(replay, bottom, to)
        require_apart(block, norms.seed)
        seen = {bottom: visibility.Visibility(block.attention.largest_product(), block.attention.queries.shape[-1])}
        edges = local_edges(block, queries, size, norms.of, work.allowance(seen, (bottom, to)))
        require_local_form(block, edges, {queries[-1], queries[len(queries) // 2]}, norms.seed)
        edges = _raised(work, block, jittered, edges, queries)
        del block  # it needs much memory, and otherwise would live until the next block has been made
        yield (bottom, to), edges
        del edges


def _raised(work: _Work, block: LocalBlock, jittered: Replay, edges: LocalEdges, queries: range) -> LocalEdges:
    """Local edges with an allowance for what jittered results change, relative to the diagonal edge of each row."""
    model, own = work.session.model, edges.diagonal[queries.start : queries.stop]
    directions = normals(work.norms.seed)(PROBES, len(queries), width(model)).to(own) / own[:, None]

    def pulled(replay: Replay, within: AbstractContextManager[Any]) -> Tensor:
        with within:
            leaf, leaving = replace(block, replay=replay).whole()
        span, batch = Span(leaf, {block.to: leaving}), cotangents(model, 1, leaf.shape[1])
        return pulled_through(span, block.to, batch)(queries, directions).double()

    moved = pulled(jittered, work.jitter())
    lost = float(missing_sizes(moved - pulled(block.replay, nullcontext()), work.chance).max())
    visibility.require_digits(lost)
    raised = replace(edges, rounding=edges.rounding + lost)
    work.missing, work.rounding = max(work.missing, lost), max(work.rounding, raised.rounding)
    return raised


def _tokens_at_a_time(session: Session, freeze: Sequence[str], norms: Norms, chunk: int | None) -> int:
    """The number of tokens per batch for local edges. Raises if the model cannot be replayed or memory is too small."""
    model, n = session.model, session.positions
    require_replayable(model, freezing(freeze))
    vectors = norms.vectors(width(model))
    size = chunk or tokens_at_a_time(model, n, vectors)
    needed = local_bytes(model, n, size, vectors)
    require_room(needed, device_of(model), "A block's local edges", "Use a shorter prompt.")
    return size


def _check_cost(session: Session, group: int, wanted: Mapping[Stretch, range], n: int) -> None:
    """Raise if the maps of a block do not fit; say what the call will take."""
    model = session.model
    d, device = width(model), device_of(model)
    # Maps of a block: direct, closing, values, keys and queries; and rows of keys, of which there are as many.
    size = 6 * n * d * d * 8 if group == 1 else n * d * d * dtype_of(model).itemsize
    require_room(size, device, "The maps of one block", "Use edges='local', or a shorter prompt.")
    # Maps of blocks take about four times what the exact Jacobian does; norms of composed blocks, as much a query.
    times = sum(len(queries) for queries in wanted.values()) / len(wanted) if group > 1 else 4
    cheaper = "`jacobian_norms(method='sketch_upper')` is certified too, and takes less."
    tell(model, f"path bound, up to {human(size)}", times * d, len(session.ids) * n, cheaper, torch.float64)
