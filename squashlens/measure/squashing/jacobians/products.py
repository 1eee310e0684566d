"""Vector–Jacobian products from the output at one token, or at all, and the norms that follow from them.

Products come in batches, a few rows of every block at a time. A spectral norm needs all rows of a block together. There
are two ways to keep them, which give the same numbers: *hold* keeps the blocks of all positions in memory, n · k · d
numbers; *spill*, for those that do not fit, writes them to a temporary file and reads it back position by position.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import psutil
import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Target, positive
from squashlens.bars import bar, write
from squashlens.errors import CapacityError, UnsoundModelError
from squashlens.measure.squashing.token_spans import Spans
from squashlens.model.hooking.hook import Hook, Recipe
from squashlens.model.memory import available, human, later, require_room
from squashlens.run.budget import (
    cotangents,
    cotangents_on_graph,
    graph_bytes,
    require_products,
)
from squashlens.run.captures.capture import REPORT_ABOVE
from squashlens.run.derivatives.exact import Jittered
from squashlens.run.derivatives.replay import Replay, record, replayable
from squashlens.run.derivatives.spans import open_spans, vjps
from squashlens.run.run import Run
from squashlens.run.streamed import implementation
from squashlens.theory.norms import gram_of, largest, missing_sizes, squared_frobenius
from squashlens.theory.probes import PROBES, normals

# Numbers of the rows whose norms are computed together.
CELLS = {"cpu": 1 << 22, "cuda": 1 << 27}
Way = Literal["hold", "spill"]
Batch = Float[Tensor, "cotangent prompt position in"]
Take = Callable[[int, Batch], None]
Blocks = Float[Tensor, "prompt place out in"]  # rows of the blocks of some positions
# A number for each Gram matrix, or several.
Spectral = Callable[[Float[Tensor, "*many out out"]], Tensor]
# With several layers, the prompts of one layer after those of another.
ByToken = Float[Tensor, "prompt position"]


def _not_causal(query: int) -> UnsoundModelError:
    """The error for a position that later tokens influence."""
    return UnsoundModelError(
        f"The model lets tokens after position {query} influence that position, so that it is not causal.",
        "Remove hooks that do this, if there are any; the measurement holds for causal models only.",
    )


def require_causal(run: Run, rows: Batch, query: int) -> Batch:
    """The given rows of a derivative at the query; an error (`later`) unless those of later tokens are zero."""
    wrong = rows[:, :, query + 1 :].count_nonzero() > 0  # true for NaN too
    later(wrong, partial(_not_causal, query), "causal", str(query))
    return rows


class Pullback:
    """Products uᵀJ for cotangents u at `to`, block by block if the model allows it, else on the graph of all blocks.

    One forward pass serves all of them, when the first are asked for. `tick` is called with the share of the rows that
    are done.
    """

    def __init__(
        self,
        run: Run,
        layers: Sequence[int],
        hooks: Sequence[Hook | Recipe] = (),
        top: int | None = None,
        to: Target = "y",
        batch_size: int | None = None,
        tick: Callable[[float], None] | None = None,
    ) -> None:
        if batch_size is not None:
            positive(batch_size, "vjp_batch_size", "a batch size")
        self.run = run
        self.layers = list(layers)
        self.hooks = hooks
        self.tick = tick
        self.to: Target = to
        self.bottom = min(layers)
        self.top = run.n_blocks if top is None else top
        self.again = partial(Pullback, run, layers, hooks, top, to, batch_size)
        self.by_block = self.bottom < self.top and replayable(run, hooks)
        prompts, n = run.ids.shape
        if self.by_block:
            self.batch = batch_size or cotangents(run, prompts, n)
            require_products(run, prompts, n, self.batch)
        else:
            require_room(
                (self.top - self.bottom) * graph_bytes(run, prompts, n),
                run.ids.device,
                f"The graph of all blocks ({self._way()})",
                "Use a shorter prompt.",
            )
            self.batch = batch_size or cotangents_on_graph(run, prompts, n)
        self.planned = self._way()

    def _way(self, planned: str = "") -> str:
        return implementation(
            self.run.model,
            n=self.run.positions,
            differentiated=True,
            planned=planned,
        )

    @property
    def attention(self) -> str:
        """How attention was computed up to now, for the provenance."""
        way = self._way(self.planned)
        return f"{way}, block by block" if self.by_block else way

    @cached_property
    def _replay(self) -> Replay:
        return record(self.run, self.run.ids, self.hooks, self.bottom, self.top)

    @cached_property
    def _graph(self) -> tuple[dict[int, Tensor], Tensor]:
        """The stream at each layer, and the output, on the graph of all blocks."""
        streams: dict[int, Tensor] = {}
        watch = [
            (self.run.site(layer), partial(streams.__setitem__, layer))
            for layer in self.layers
            if layer > self.bottom
        ]
        spans = open_spans(
            self.run, self.run.ids, self.hooks, [self.bottom], self.top, watch
        )
        span = spans[self.bottom]
        return streams | {self.bottom: span.leaf}, span.outputs[self.to]

    def batches(
        self,
        query: int | None,
        directions: Float[Tensor, "cotangent *query d"],
        of: Callable[[Batch], Tensor],
    ) -> Iterator[list[Tensor]]:
        """What `of` makes of the products at each layer, for a batch of cotangents at one query or at all."""
        done = 0
        by_layer: dict[int, Tensor] = {}

        def take(layer: int, rows: Batch) -> None:
            nonlocal done
            if layer not in self.layers:
                return
            if query is not None:
                require_causal(self.run, rows, query)
            with torch.no_grad():
                by_layer[layer] = of(rows)
            done += len(rows)
            if self.tick is not None:
                self.tick(done / (len(directions) * len(self.layers)))

        if self.by_block:
            like = self._replay.calls[self.bottom].entering
            products = self._replayed
        else:
            _, like = self._graph
            products = self._on_graph
        # Prompts do not interact, so one backward pass serves all of them.
        everywhere = directions.to(like.device, like.dtype)[:, None]
        everywhere = everywhere.expand(-1, len(self.run.ids), *directions.shape[1:])
        for _ in products(query, everywhere, take):
            device = by_layer[self.bottom].device
            yield [by_layer.pop(layer).to(device) for layer in self.layers]

    def _on_graph(
        self, query: int | None, cotangents: Tensor, take: Take
    ) -> Iterator[None]:
        """Give `take` the products at each layer, from one graph of all blocks, batch after batch."""
        streams, output = self._graph
        if query is not None:
            with torch.enable_grad():
                output = output[:, query]
        leaves = [streams[layer] for layer in self.layers]
        for batch in vjps(self.run, output, leaves, cotangents, self.batch):
            for layer, rows in zip(self.layers, batch, strict=True):
                take(layer, rows)
            yield

    def _replayed(
        self, query: int | None, cotangents: Tensor, take: Take
    ) -> Iterator[None]:
        """Give `take` the products at each layer, block by block, batch after batch."""
        below = self._replay.gradients(query, self.to, cotangents, self.batch, take)
        if self.top not in self.layers:
            for _ in below:
                yield
            return
        through_norm = self._through_norm(query, cotangents)
        for rows, _ in zip(through_norm, below, strict=True):
            take(self.top, rows)
            yield

    def _through_norm(self, query: int | None, cotangents: Tensor) -> Iterator[Batch]:
        """The products at the last residual stream, from which only the final norm leads to y."""
        replay = self._replay
        with replay.running():
            last = self.top - 1
            left = replay.leaving(last, replay.calls[last].entering)
        with torch.enable_grad(), replay.running():
            leaf = left.detach().clone().requires_grad_()
            y = self.run.model.ln_final(leaf)
            if query is not None:
                y = y[:, query]
        cotangents = cotangents.to(y.device)
        for (rows,) in vjps(self.run, y, [leaf], cotangents, self.batch):
            yield rows


def storage_for(run: Run, each: int, reach: int, rows: int) -> Way:
    """Where `rows` rows of each of `reach` blocks are kept, of which a position has `each`.

    The size is printed if it is large.
    """
    size = reach * each * rows * run.width * max(4, run.dtype.itemsize)
    disk = free_on_disk() // 2
    fits = size <= available(run.device) // 2
    if not fits and size > disk:
        raise CapacityError(
            f"The rows of {reach} blocks need {human(size)}, which exceeds the limit of {human(disk)} (half of the "
            "free space).",
            "Use norm='frobenius', which needs no stored rows, or n_probes=, or point TMPDIR to a larger disk.",
        )
    if size > REPORT_ABOVE or not fits:
        where = "kept in memory" if fits else f"written to {tempfile.gettempdir()}"
        write(f"jacobian: {rows} rows of {reach} blocks, {human(size)}, {where}")
    return "hold" if fits else "spill"


def free_on_disk() -> int:
    """The free bytes where temporary files are written."""
    return int(psutil.disk_usage(tempfile.gettempdir()).free)


class Products:
    """Products uᵀJ_i for cotangents u at one token, and the norms of J_i that follow; with no query, u at all tokens.

    Several layers stand one after the other along the dimension of prompts.
    """

    def __init__(
        self, pullback: Pullback, query: int | None, spans: Spans | None = None
    ) -> None:
        self.pullback = pullback
        self.run = pullback.run
        self.query = query
        self.spans = spans
        self.reach = self.run.positions if query is None else query + 1

    def along(self, directions: Float[Tensor, "cotangent *query d"]) -> Iterator[Batch]:
        """The products along `directions`, in batches."""
        for layers in self._batches(directions, _unchanged):
            yield _joined(layers, 1)

    def _batches(
        self, directions: Tensor, of: Callable[[Batch], Tensor]
    ) -> Iterator[list[Tensor]]:
        """What `of` makes of the products at each layer, batch after batch, with a progress bar."""
        total = -(-len(directions) // self.pullback.batch)
        batches = self.pullback.batches(self.query, directions, of)
        yield from bar(batches, total=total, desc="jacobian", unit="batch")

    def rows(
        self, directions: Float[Tensor, "cotangent *query d"]
    ) -> Float[Tensor, "cotangent prompt position in"]:
        """All products, on the CPU."""
        return torch.cat([rows.cpu() for rows in self.along(directions)])

    def storage(self, count: int) -> Way:
        """Where `count` rows of each block are kept; the size is printed if it is large."""
        each = len(self.run.ids) * len(self.pullback.layers)
        return storage_for(self.run, each, self.reach, count)

    @property
    def count(self) -> int:
        """The number of norms: of tokens up to the query in all prompts, or of spans."""
        if self.spans is not None:
            return len(self.spans.names)
        return len(self.run.ids) * self.reach

    def once(self, about: tuple[Any, ...], measure: Callable[[], Tensor]) -> Tensor:
        """What `measure` gives on the CPU; of a capture it is kept layer by layer, and not measured again."""
        pullback = self.pullback
        capture = self.run.capture
        changed = pullback.hooks or self.spans is not None or self.run.hooks()
        if capture is None or changed:
            return measure().cpu()
        keys = [
            (*about, self.query, pullback.to, pullback.top, layer)
            for layer in pullback.layers
        ]
        if not capture.norms.keys() >= set(keys):
            by_layer = measure().cpu().chunk(len(keys))
            capture.norms.update(zip(keys, by_layer, strict=True))
        return torch.cat([capture.norms[key] for key in keys])

    def exact(self, kept: Way | None) -> ByToken:
        """The norms from all products; spectral ones if rows are kept."""
        unit = torch.eye(self.run.width, dtype=torch.float64)
        if kept is None:
            return self.frobenius(unit)
        return self.measured(unit, kept, largest)

    def measured(
        self, directions: Float[Tensor, "cotangent d"], kept: Way, norms: Spectral
    ) -> Tensor:
        """What `norms` gives for the Gram matrix of each position's rows, or of each span's."""
        with tempfile.TemporaryDirectory() as folder:
            rows, device = self.collected(directions, kept, folder)
            return self.padded(self.each(rows, norms, device))

    def collected(
        self, directions: Float[Tensor, "cotangent d"], way: Way, folder: str
    ) -> tuple[Blocks, torch.device]:
        """All rows of the blocks, in memory or in a file of `folder`, and the device of the products."""
        kept = torch.empty(0)
        device = torch.device("cpu")
        done = 0
        for batch in self.along(directions):
            if not done:
                _, prompts, _, d = batch.shape
                device = batch.device
                shape = (prompts, self.reach, len(directions), d)
                is_in_file = way == "spill"
                kept = (
                    _in_file(shape, batch, folder)
                    if is_in_file
                    else batch.new_empty(shape)
                )
            kept[:, :, done : done + len(batch)] = rearrange(
                batch[:, :, : self.reach], "k p i d -> p i k d"
            )
            done += len(batch)
        return kept, device

    def each(self, rows: Blocks, norms: Spectral, device: torch.device) -> Tensor:
        """What `norms` gives for the rows of each position, or of each span."""
        if self.spans is None:
            size = _places_together(rows, device)
            starts = range(0, rows.shape[1], size)
            parts: list[Tensor] = []
            for start in bar(starts, desc="norms", unit="batch"):
                some = rows[:, start : start + size].to(device)
                parts.append(norms(gram_of(some)))
            return torch.cat(parts, dim=1)
        of_spans: list[Tensor] = []
        for inside in bar(self.spans.within(self.reach), desc="norms", unit="span"):
            of_spans.append(norms(_gram_of_span(rows, inside, device)))
        return torch.stack(of_spans, dim=1)

    def padded(
        self, values: Float[Tensor, "prompt place *several"]
    ) -> Float[Tensor, "prompt position *several"]:
        """Values of positions up to the query with zeros for the others; those of spans as they are."""
        if self.spans is not None:
            return values
        prompts, places, *several = values.shape
        zeros = values.new_zeros(prompts, self.run.positions - places, *several)
        return torch.cat([values, zeros], dim=1)

    def over_spans(
        self, squares: Float[Tensor, "*many position"]
    ) -> Float[Tensor, "*many place"]:
        """Squares of norms of each position, or their sums over each span."""
        return squares if self.spans is None else self.spans.sums(squares)

    def rounded_away(self, chance: float, seed: int) -> ByToken:
        """What rounding did to each block J_i, forward pass included, as `Jittered` products of random cotangents show.

        These upper bounds on Frobenius norms hold together, except with probability `chance`. Without a query they are
        for the blocks of all queries on top of each other, whose norm is at least that of each.
        """
        tokens = () if self.query is not None else (self.run.positions,)
        probes = normals(seed)(PROBES, *tokens, self.run.width)
        with Jittered(self.run.device, seed):
            jittered = Products(self.pullback.again(), self.query).rows(probes)
        return missing_sizes(jittered - self.rows(probes), chance)

    def frobenius(self, directions: Float[Tensor, "cotangent d"]) -> Tensor:
        """The root of the sum of squares of the rows of each position, or of each span."""
        batches = self._batches(directions, squared_frobenius)
        squares = _joined(next(batches), 0)
        for layers in batches:
            squares = squares + _joined(layers, 0)
        norms = squares.sqrt()
        return norms if self.spans is None else self.spans.root_sum_squares(norms)


def _unchanged(rows: Batch) -> Batch:
    return rows


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    """Those of several layers one after the other; that of a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)


def _places_together(rows: Blocks, device: torch.device) -> int:
    """The number of places whose rows are multiplied together."""
    prompts, _, count, d = rows.shape
    cells = CELLS["cpu" if device.type == "cpu" else "cuda"]
    return max(1, cells // (prompts * count * d))


def _gram_of_span(
    rows: Blocks, inside: Sequence[int], device: torch.device
) -> Float[Tensor, "prompt out out"]:
    """``J Jᵀ = Σ_i J_i J_iᵀ`` of the blocks of a span side by side."""
    prompts, _, count, _ = rows.shape
    gram = torch.zeros(prompts, count, count, dtype=torch.float64, device=device)
    size = _places_together(rows, device)
    for start in range(0, len(inside), size):
        some = rows[:, list(inside[start : start + size])].to(device)
        gram = gram + gram_of(some).sum(dim=1)
    return gram


def _in_file(shape: tuple[int, ...], like: Tensor, folder: str) -> Tensor:
    """An empty tensor for the rows, in a file of `folder`."""
    kind = np.float64 if like.dtype == torch.float64 else np.float32
    handle, name = tempfile.mkstemp(dir=folder)
    os.close(handle)
    return torch.from_numpy(np.memmap(name, kind, "w+", shape=shape))
