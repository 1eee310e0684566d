"""The path bound with measured constants: one that holds, at this input, for this model.

Between neighbouring layers stands a matrix of edges, ``e_ji ≥ ‖∂v'_j/∂v_i‖₂``; by the chain rule and the triangle
inequality row n of their product is not below ``‖∂y_n/∂v_i‖₂``. Whatever is frozen is frozen in every edge. The last
block ends at y, final norm and all, so that no constant is taken for that apart.
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from squashlens._typing import Edges, Target
from squashlens.errors import InputError, UnsoundModelError
from squashlens.measure._attention import one_hot
from squashlens.measure._edges import edges_by_autograd, edges_of, maps_of, require_form
from squashlens.measure._local import local_edges, require_local_form
from squashlens.measure._session import Session
from squashlens.model.anatomy import device_of, dtype_of, n_blocks, quantisation, width
from squashlens.model.budget import cotangents_on_graph, local_bytes, tokens_at_a_time
from squashlens.model.dissection import OpenBlock, open_blocks
from squashlens.model.freeze import freezing
from squashlens.model.local import opened
from squashlens.model.memory import human, require_room
from squashlens.model.replay import record, require_replayable
from squashlens.model.spans import open_spans
from squashlens.theory.lanczos import certified_spectral_norms, lanczos_steps
from squashlens.theory.norms import spectral_norms
from squashlens.theory.paths import Pattern, pushed

SMALL = 512  # matrices up to this size get an exact norm; beyond, Lanczos is several times faster
FEW = 64  # columns of which an operator is multiplied by every one, where it is not written out
INFLATION, FAILURE = 0.10, 1e-6  # what Lanczos may add to a bound in all, and its chance to be wrong
Stretch = tuple[int, Target]  # the layer it starts at and what it ends at
EPS = torch.finfo(torch.float32).eps


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


def certifiable(session: Session) -> tuple[Session, str | None]:
    """The session to certify: in half precision that of an upcast copy, whose dtype is the second value."""
    kind = quantisation(session.model)
    if kind is not None:
        raise InputError(
            f"The weights are quantised ({kind}); the allowance for rounding does not cover their kernels.",
            "Load the model without quantisation.",
        )
    if dtype_of(session.model).itemsize >= 4:
        return session, None
    warnings.warn("The bound is for a copy upcast to float32: half precision cannot be certified.", stacklevel=3)
    return replace(session, model=copy.deepcopy(session.model).float()), "float32"


def certified_bounds(
    session: Session, spans: Mapping[Target, int], source: int, query: int,
    freeze: Sequence[str], edges: Edges, group: int, chunk: int | None, progress: bool,
) -> tuple[dict[Target, Float[Tensor, "prompt position"]], dict[str, Any]]:  # fmt: skip
    """Row `query` of the product of edges for each target, and the certificate: what they hold for and how surely."""
    session, upcast = certifiable(session)
    stretches: dict[Target, list[Stretch]] = {to: _stretches(source, top, to, group) for to, top in spans.items()}
    # A row of the product needs the edges into the query only from the last stretch, and into every token before.
    wanted: dict[Stretch, range] = {}
    for chain in stretches.values():
        for place, stretch in enumerate(reversed(chain)):
            last_only = place == 0 and stretch not in wanted
            wanted[stretch] = range(query, query + 1) if last_only else range(query + 1)
    n, steps = query + 1, max(map(len, stretches.values()))
    each = 2 if edges == "local" else n  # norms for every query
    norms = Norms(total=len(session.ids) * sum(len(queries) * each for queries in wanted.values()), steps=steps)
    size = _tokens_at_a_time(session, freeze, norms, chunk) if edges == "local" else None
    if size is None:
        _say(session, group, wanted, n, progress)
    found: dict[Target, Tensor] = {to: torch.zeros(session.ids.shape, dtype=torch.float64) for to in spans}
    peak = 0.0
    for prompt in range(len(session.ids)):
        rows: dict[Target, Tensor] = {to: one_hot(session, query)[prompt] for to in spans}
        if size is not None:
            made = _local(session, prompt, wanted, freeze, norms, size, progress)
        else:
            made = _matrices(session, prompt, wanted, freeze, edges, group, norms, chunk, progress)
        for stretch, matrix, logit in made:
            peak = max(peak, logit)
            for to in spans:
                if stretch in stretches[to]:
                    rows[to] = pushed(rows[to][None], matrix)[0]
            del matrix
        for to in spans:
            found[to][prompt] = rows[to]
    rounding = 4 * EPS * (1 + peak)  # the bridge takes its softmax in float32, of a float64 model too
    certificate: dict[str, Any] = {
        "rounding_per_step": rounding,
        "rounding": (1 + rounding) ** steps - 1,
        "failure_probability": norms.failure,
        "norms": "exact" if not norms.failure else f"Lanczos, inflated by at most {INFLATION:.0%} in all",
    } | ({"certified_dtype": upcast} if upcast else {})
    allowed: dict[Target, Tensor] = {to: rows * (1 + rounding) ** len(stretches[to]) for to, rows in found.items()}
    return allowed, certificate


def _stretches(source: int, top: int, to: Target, group: int) -> list[Stretch]:
    """Where each stretch starts and what it ends at, bottom first, in steps of `group` blocks from the top down."""
    bounds = sorted({source, *range(top, source, -group)})
    ends: list[Target] = [*bounds[1:-1], to]
    return list(zip(bounds[:-1] or bounds, ends, strict=True))


Made = Iterator[tuple[Stretch, Pattern, float]]  # edges of each stretch, top-down, and the largest logit they rest on


def _matrices(
    session: Session, prompt: int, wanted: Mapping[Stretch, range], freeze: Sequence[str],
    edges: Edges, group: int, norms: Norms, chunk: int | None, progress: bool,
) -> Made:  # fmt: skip
    """The edges of every stretch on one prompt as a matrix on the CPU."""
    model, ids, hooks = session.model, session.ids[prompt : prompt + 1], freezing(freeze)
    batch = chunk or cotangents_on_graph(model, 1, session.positions)
    bottoms = sorted({bottom for bottom, _ in wanted})
    tops = {to: n_blocks(model) if to == "y" else to for _, to in wanted}
    cut: dict[int, OpenBlock] = {}
    if group == 1 and max(tops.values()) > bottoms[0]:
        with _allowed_where(edges == "exact"):
            cut = open_blocks(model, ids, hooks, range(bottoms[0], max(tops.values())), batch)
    whole = open_spans(model, ids, hooks, bottoms, max(tops.values())) if group == 1 else {}
    for bottom, to in _top_down(wanted, progress):
        queries = wanted[bottom, to]
        span = whole.get(bottom) or open_spans(model, ids, hooks, [bottom], tops[to])[bottom]
        found: tuple[Tensor, float] | None = None
        if bottom in cut:
            with _allowed_where(edges == "exact"):
                maps = maps_of(cut[bottom], to, freeze, queries)
                require_form(model, bottom, span, to, maps, {queries[-1], queries[len(queries) // 2]})
                found = edges_of(maps, edges, queries, norms).cpu(), cut[bottom].largest_logit()
        if found is None:
            if progress and group == 1 and bottom < n_blocks(model):
                tqdm.write(f"path bound: block {bottom} is of no known form and goes by autograd, query by query")
            found = edges_by_autograd(span, to, queries, norms, batch, progress).cpu(), 0.0
        yield (bottom, to), *found


def _local(
    session: Session, prompt: int, wanted: Mapping[Stretch, range], freeze: Sequence[str],
    norms: Norms, size: int, progress: bool,
) -> Made:  # fmt: skip
    """The edges of every stretch on one prompt as factors of its tokens, `size` of them at a time."""
    model, ids, hooks = session.model, session.ids[prompt : prompt + 1], freezing(freeze)
    top = n_blocks(model)
    replay = record(model, ids, hooks, min(bottom for bottom, _ in wanted), top)
    for bottom, to in _top_down(wanted, progress):
        queries = wanted[bottom, to]
        if bottom == top:  # nothing but the final norm
            span = open_spans(model, ids, hooks, [bottom], top)[bottom]
            yield (bottom, to), edges_by_autograd(span, to, queries, norms, size, progress).cpu(), 0.0
            continue
        block = opened(replay, bottom, to)
        edges = local_edges(block, queries, size, norms.of)
        require_local_form(block, edges, {queries[-1], queries[len(queries) // 2]})
        logit = block.attention.largest_logit()
        del block  # with the edges it is most of what is held, and the next is made before this one would be let go
        yield (bottom, to), edges, logit
        del edges


def _top_down(wanted: Mapping[Stretch, range], progress: bool) -> Iterator[Stretch]:
    stretches = sorted(wanted, key=lambda stretch: stretch[0], reverse=True)
    yield from tqdm(stretches, desc="path bound", unit="stretch", delay=1, disable=not progress)


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
