"""The path bound with measured constants: one that holds, at this input, for this model.

Between neighbouring layers stands a matrix of edges, ``e_ji ≥ ‖∂v'_j/∂v_i‖₂``; by the chain rule and the triangle
inequality row n of their product is not below ``‖∂y_n/∂v_i‖₂``. Whatever is frozen is frozen in every edge. The last
block ends at y, final norm and all, so that no constant is taken for that apart.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm

from squashlens._typing import Bridge, Edges, Target
from squashlens.bars import bar
from squashlens.errors import UnsoundModelError
from squashlens.measure._attention import one_hot
from squashlens.measure._edges import edges_by_autograd, edges_of, maps_of, missing, require_small, rows_of, share_of
from squashlens.measure._local import local_edges, require_apart, require_local_form
from squashlens.measure._session import Session
from squashlens.model.anatomy import device_of, dtype_of, n_blocks, width
from squashlens.model.budget import cotangents_on_graph, local_bytes, tokens_at_a_time
from squashlens.model.dissection import OpenBlock, open_blocks
from squashlens.model.exact import CERTIFIES, Jittered, certifying
from squashlens.model.freeze import freezing
from squashlens.model.hooks import Hook, Recipe
from squashlens.model.local import opened
from squashlens.model.memory import human, require_room
from squashlens.model.replay import record, require_replayable
from squashlens.model.sight import Sight, reached, rounding_in, sights
from squashlens.model.spans import Span, open_spans
from squashlens.theory.edges import with_rounding
from squashlens.theory.lanczos import certified_spectral_norms, lanczos_steps
from squashlens.theory.norms import spectral_norms
from squashlens.theory.paths import Pattern, pushed

SMALL = 512  # matrices up to this size get an exact norm; beyond, Lanczos is several times faster
FEW = 64  # columns of which an operator is multiplied by every one, where it is not written out
INFLATION = 0.10  # what Lanczos may add to a bound in all
FAILURE = 5e-7  # the chance that Lanczos is wrong, and that the search for what is missing is: 1e-6 together
Stretch = tuple[int, Target]  # the layer it starts at and what it ends at


@dataclass
class Norms:
    """Spectral norms of stacks of matrices: exact where they are small, certified by Lanczos where they are not.

    `total` is how many must hold together, `steps` how many of them follow each other along a path: the inflations
    of those multiply.
    """

    total: int
    steps: int
    failure: float = 0.0

    def __call__(self, blocks: Float[Tensor, "many out in"]) -> Float[Tensor, " many"]:
        if min(blocks.shape[-2:]) <= SMALL or not len(blocks):
            return spectral_norms(blocks)
        wide = blocks.double()
        return self.of(lambda x: (wide.mT @ (wide @ x[..., None]))[..., 0], len(wide), wide.shape[-1], wide.device)

    def of(self, gram: Callable[[Tensor], Tensor], many: int, d: int, device: torch.device) -> Float[Tensor, " many"]:
        """Norms of operators with d columns, known by ``JᵀJ x`` alone."""
        found = certified_spectral_norms(
            gram, many, d, generator=torch.Generator(device).manual_seed(many),
            inflation=self._inflation(d), failure=FAILURE, norms=self.total,
        )  # fmt: skip
        self.failure = max(self.failure, found.failure_probability)
        return found.upper

    def vectors(self, d: int) -> int:
        """How many vectors of d coordinates an operator's basis may come to hold."""
        return lanczos_steps(d, self.total, self._inflation(d), FAILURE) + 1

    def _inflation(self, d: int) -> float:
        return 0.0 if d <= FEW else (1 + INFLATION) ** (1 / self.steps) - 1


def certified_bounds(
    session: Session, spans: Mapping[Target, int], source: int, query: int,
    freeze: Sequence[str], edges: Edges, group: int, chunk: int | None, progress: bool,
) -> tuple[dict[Target, Float[Tensor, "prompt position"]], dict[str, Any]]:  # fmt: skip
    """Row `query` of the product of edges for each target, and the certificate: what they hold for and how surely."""
    with certifying(session.model):
        return _in_float64(session, spans, source, query, freeze, edges, group, chunk, progress)


def _in_float64(
    session: Session, spans: Mapping[Target, int], source: int, query: int,
    freeze: Sequence[str], edges: Edges, group: int, chunk: int | None, progress: bool,
) -> tuple[dict[Target, Float[Tensor, "prompt position"]], dict[str, Any]]:  # fmt: skip
    """The same of a model that runs in float64."""
    stretches: dict[Target, list[Stretch]] = {to: _stretches(source, top, to, group) for to, top in spans.items()}
    # A row of the product needs the edges into the query only from the last stretch, and into every token before.
    wanted: dict[Stretch, range] = {}
    for chain in stretches.values():
        for place, stretch in enumerate(reversed(chain)):
            last_only = place == 0 and stretch not in wanted
            wanted[stretch] = range(query, query + 1) if last_only else range(query + 1)
    n, steps = query + 1, max(map(len, stretches.values()))
    each = 2 if edges == "local" else n  # norms for every query
    pairs = len(session.ids) * sum(len(queries) * n for queries in wanted.values())
    norms = Norms(total=len(session.ids) * sum(len(queries) * each for queries in wanted.values()), steps=steps)
    work = _Work(session, wanted, freeze, norms, steps, pairs, progress)
    size = _tokens_at_a_time(session, freeze, norms, chunk) if edges == "local" else None
    if size is None:
        _say(session, group, wanted, n, progress)
    found: dict[Target, Tensor] = {to: torch.zeros(session.ids.shape, dtype=torch.float64) for to in spans}
    for prompt in range(len(session.ids)):
        rows: dict[Target, Tensor] = {to: one_hot(session, query)[prompt].double() for to in spans}
        made = _local(work, prompt, size) if size is not None else _matrices(work, prompt, edges, group, chunk)
        for stretch, matrix in made:
            for to in spans:
                if stretch in stretches[to]:
                    rows[to] = pushed(rows[to][None], matrix)[0]
            del matrix
        for to in spans:
            found[to][prompt] = rows[to]
    return found, work.certificate()


@dataclass
class _Work:
    """What every stretch needs, and what is learnt on the way: the certificate."""

    session: Session
    wanted: Mapping[Stretch, range]
    freeze: Sequence[str]
    norms: Norms
    steps: int
    pairs: int
    progress: bool
    rounding: float = 0.0
    form: float = 0.0  # the chance that more is missing of a block than was found
    missing: float = 0.0

    def allowance(self, seen: Mapping[int, Sight], stretch: Stretch) -> float:
        """`rounding_in` one stretch."""
        bottom, to = stretch
        top = n_blocks(self.session.model) if to == "y" else to
        found = rounding_in(self.session.model, seen, range(bottom, top), self.session.positions)
        self.rounding = max(self.rounding, found)
        return found

    def chance(self, queries: Sequence[int]) -> float:
        """Of all that may fail in what is missing, the part of one stretch."""
        return FAILURE * len(queries) * self.session.positions / self.pairs

    def completed(
        self, edges: Float[Tensor, "query key"], lost: Float[Tensor, "query key"]
    ) -> Float[Tensor, "query key"]:
        """Edges with what is missing of them added, and that noted."""
        self.form, self.missing = FAILURE, max(self.missing, share_of(lost, edges))
        return (edges + lost).cpu()

    def certificate(self) -> dict[str, Any]:
        """What the numbers hold for, and how surely."""
        return {
            "certifies": CERTIFIES,
            "rounding_per_step": self.rounding,
            "rounding": (1 + self.rounding) ** self.steps - 1,
            "failure_probability": self.norms.failure + self.form,
            "norms": "exact" if not self.norms.failure else f"Lanczos, inflated by at most {INFLATION:.0%} in all",
            "missing": self.missing,
        }


def _stretches(source: int, top: int, to: Target, group: int) -> list[Stretch]:
    """Where each stretch starts and what it ends at, bottom first, in steps of `group` blocks from the top down."""
    bounds = sorted({source, *range(top, source, -group)})
    ends: list[Target] = [*bounds[1:-1], to]
    return list(zip(bounds[:-1] or bounds, ends, strict=True))


Made = Iterator[tuple[Stretch, Pattern]]  # edges of each stretch, top-down


def _matrices(work: _Work, prompt: int, edges: Edges, group: int, chunk: int | None) -> Made:
    """The edges of every stretch on one prompt as a matrix on the CPU."""
    session, wanted, norms = work.session, work.wanted, work.norms
    model, ids, hooks = session.model, session.ids[prompt : prompt + 1], freezing(work.freeze)
    batch = chunk or cotangents_on_graph(model, 1, session.positions)
    bottoms = sorted({bottom for bottom, _ in wanted})
    tops = {to: n_blocks(model) if to == "y" else to for _, to in wanted}
    blocks = range(bottoms[0], max(tops.values()))
    seen = sights(model, ids, hooks, blocks)
    cut: dict[int, OpenBlock] = {}
    if group == 1 and len(blocks):
        with _allowed_where(edges == "exact"):
            cut = open_blocks(model, ids, hooks, blocks, batch)
    jittered = _jittered(model, ids, hooks, bottoms, max(tops.values())) if group == 1 else {}
    for bottom, to in _top_down(wanted, work.progress):
        queries, rounding = wanted[bottom, to], work.allowance(seen, (bottom, to))
        beside = jittered.get(bottom) or _jittered(model, ids, hooks, [bottom], tops[to])[bottom]
        found: Tensor | None = None
        if bottom in cut:
            with _allowed_where(edges == "exact"):
                maps = maps_of(cut[bottom], to, work.freeze, queries)
                lost = missing(bottom, beside, to, maps.rows, queries, work.chance(queries), batch)
                derived = edges_of(maps, edges, queries, norms)
                require_small(model, bottom, lost, derived)
                found = work.completed(derived, lost)
        if found is None:
            if work.progress and group == 1 and bottom < n_blocks(model):
                tqdm.write(f"path bound: block {bottom} is of no known form and goes by autograd, query by query")
            found = _by_autograd(work, hooks, ids, (bottom, to), tops[to], beside, batch)
        leading = reached(seen, range(bottom, tops[to]), torch.eye(session.positions, dtype=torch.bool))
        yield (bottom, to), with_rounding(found, leading, rounding)


def _jittered(
    model: Bridge, ids: Tensor, hooks: Sequence[Hook | Recipe], bottoms: Sequence[int], top: int
) -> dict[int, Span]:
    """The spans of a pass that shows, beside an ordinary one, what rounding does."""
    return open_spans(model, ids, hooks, bottoms, top, within=Jittered(device_of(model)))


def _by_autograd(
    work: _Work, hooks: Sequence[Hook | Recipe], ids: Tensor, stretch: Stretch, top: int, beside: Span, batch: int
) -> Float[Tensor, "query key"]:
    """The edges of a stretch whatever is in it, with what rounding may have taken from them."""
    (bottom, to), queries = stretch, work.wanted[stretch]
    span = open_spans(work.session.model, ids, hooks, [bottom], top)[bottom]
    found = edges_by_autograd(span, to, queries, work.norms, batch, work.progress)
    lost = missing(bottom, beside, to, rows_of(span, to, batch), queries, work.chance(queries), batch)
    return work.completed(found, lost)


def _local(work: _Work, prompt: int, size: int) -> Made:
    """The edges of every stretch on one prompt as factors of its tokens, `size` of them at a time."""
    session, wanted, norms = work.session, work.wanted, work.norms
    model, ids, hooks = session.model, session.ids[prompt : prompt + 1], freezing(work.freeze)
    top = n_blocks(model)
    replay = record(model, ids, hooks, min(bottom for bottom, _ in wanted), top)
    for bottom, to in _top_down(wanted, work.progress):
        queries = wanted[bottom, to]
        if bottom == top:  # nothing but the final norm
            beside = _jittered(model, ids, hooks, [bottom], top)[bottom]
            found = _by_autograd(work, hooks, ids, (bottom, to), top, beside, size)
            here = torch.eye(session.positions, dtype=torch.bool)
            yield (bottom, to), with_rounding(found, here, work.allowance({}, (bottom, to)))
            continue
        block = opened(replay, bottom, to)
        require_apart(block)
        seen = {bottom: Sight(block.attention.largest_product(), block.attention.queries.shape[-1])}
        edges = local_edges(block, queries, size, norms.of, work.allowance(seen, (bottom, to)))
        require_local_form(block, edges, {queries[-1], queries[len(queries) // 2]})
        del block  # with the edges it is most of what is held, and the next is made before this one would be let go
        yield (bottom, to), edges
        del edges


def _top_down(wanted: Mapping[Stretch, range], progress: bool) -> Iterator[Stretch]:
    stretches = sorted(wanted, key=lambda stretch: stretch[0], reverse=True)
    yield from bar(stretches, desc="path bound", unit="stretch", progress=progress)


@contextmanager
def _allowed_where(agnostic: bool) -> Iterator[None]:
    """A block of an unknown form ends the body quietly where its edges can be had without knowing it."""
    try:
        yield
    except UnsoundModelError:
        if not agnostic:
            raise


def _tokens_at_a_time(session: Session, freeze: Sequence[str], norms: Norms, chunk: int | None) -> int:
    """Tokens to take side by side for local edges; refused where a model cannot be replayed or there is no room."""
    model, n = session.model, session.positions
    require_replayable(model, freezing(freeze))
    vectors = norms.vectors(width(model))
    size = chunk or tokens_at_a_time(model, n, vectors)
    needed = local_bytes(model, n, size, vectors)
    require_room(needed, device_of(model), "A block's local edges", "Use a shorter prompt.")
    return size


def _say(session: Session, group: int, wanted: Mapping[Stretch, range], n: int, progress: bool) -> None:
    """Refuse what does not fit; say what it costs in units of the exact Jacobian, which takes d products."""
    model = session.model
    d, device = width(model), device_of(model)
    size = 4 * n * d * d * 8 if group == 1 else n * d * d * dtype_of(model).itemsize
    require_room(size, device, "The maps of one block", "Use edges='local', or a shorter prompt.")
    if progress and (size > 1e9 or group > 1):
        products = sum(len(queries) for queries in wanted.values()) / len(wanted) if group > 1 else 2
        tqdm.write(f"path bound: up to {human(size)}, about {products:.0f} times the cost of the exact Jacobian")
