"""Vector–Jacobian products from the output at one token, or at all, and the norms that follow from them.

Products come in batches, a few rows of every block at a time. A spectral norm needs all rows of a block together. There
are two ways to keep them, which give the same numbers: *hold* keeps the blocks of all positions in memory, n · k · d
numbers; *spill*, for those that do not fit, writes them to a temporary file and reads it back position by position.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial, reduce
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

CELLS = {
    "cpu": 1 << 22,
    "cuda": 1 << 27,
}  # numbers of the rows whose norms are computed together
Way = Literal["hold", "spill"]
Batch = Float[Tensor, "cotangent prompt position in"]
Take = Callable[[int, Batch], None]
Blocks = Float[Tensor, "prompt place out in"]  # rows of the blocks of some positions
Spectral = Callable[
    [Float[Tensor, "*many out out"]], Tensor
]  # a number for each Gram matrix, or several
ByToken = Float[
    Tensor, "prompt position"
]  # with several layers, the prompts of one layer after those of another


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
        ids, (prompts, n) = run.ids, run.ids.shape
        self.run, self.layers, self.hooks, self.tick = (
            run,
            [*layers],
            hooks,
            tick,
        )
        self.to: Target = to
        self.bottom, self.top = min(layers), run.n_blocks if top is None else top
        self.again = partial(Pullback, run, layers, hooks, top, to, batch_size)
        self.by_block = self.bottom < self.top and replayable(run, hooks)
        if self.by_block:
            self.batch = batch_size or cotangents(run, prompts, n)
            require_products(run, prompts, n, self.batch)
        else:
            graph = (self.top - self.bottom) * graph_bytes(run, prompts, n)
            require_room(
                graph,
                ids.device,
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
        return self._way(self.planned) + ", block by block" * self.by_block

    @cached_property
    def _replay(self) -> Replay:
        return record(self.run, self.run.ids, self.hooks, self.bottom, self.top)

    @cached_property
    def _graph(self) -> tuple[dict[int, Tensor], Tensor]:
        """The stream at each layer, and the output, on the graph of all blocks."""
        streams = dict[int, Tensor]()
        above = [layer for layer in self.layers if layer > self.bottom]
        also = [
            (self.run.site(layer), partial(streams.__setitem__, layer))
            for layer in above
        ]
        span = open_spans(
            self.run, self.run.ids, self.hooks, [self.bottom], self.top, also
        )[self.bottom]
        return streams | {self.bottom: span.leaf}, span.outputs[self.to]

    def batches(
        self,
        query: int | None,
        directions: Float[Tensor, "cotangent *query d"],
        of: Callable[[Batch], Tensor],
    ) -> Iterator[list[Tensor]]:
        """What `of` makes of the products at each layer, for a batch of cotangents at one query or at all."""
        done = 0
        found: dict[int, Tensor] = {}

        def take(layer: int, rows: Batch) -> None:
            nonlocal done
            if layer not in self.layers:
                return
            if query is not None:
                require_causal(self.run, rows, query)
            with torch.no_grad():
                found[layer] = of(rows)
            done += len(rows)
            if self.tick is not None:
                self.tick(done / (len(directions) * len(self.layers)))

        like = self._replay.calls[self.bottom][0] if self.by_block else self._graph[1]
        # Prompts do not interact, so one backward pass serves all of them.
        everywhere = directions.to(like.device, like.dtype)[:, None]
        everywhere = everywhere.expand(-1, len(self.run.ids), *directions.shape[1:])
        passed = self._replayed if self.by_block else self._on_graph
        for _ in passed(query, everywhere, take):
            device = found[self.bottom].device
            yield [found.pop(layer).to(device) for layer in self.layers]

    def _on_graph(
        self, query: int | None, cotangents: Tensor, take: Take
    ) -> Iterator[None]:
        streams, output = self._graph
        with torch.enable_grad():
            output = output if query is None else output[:, query]
        leaves = [streams[layer] for layer in self.layers]
        for found in vjps(self.run, output, leaves, cotangents, self.batch):
            for layer, rows in zip(self.layers, found, strict=True):
                take(layer, rows)
            yield

    def _replayed(
        self, query: int | None, cotangents: Tensor, take: Take
    ) -> Iterator[None]:
        replay, run = self._replay, self.run
        below = replay.gradients(query, self.to, cotangents, self.batch, take)
        if self.top not in self.layers:
            yield from (None for _ in below)
            return
        with replay.running():
            _, left = replay.block(self.top - 1, replay.calls[self.top - 1])
        with torch.enable_grad(), replay.running():
            leaf = left.detach().clone().requires_grad_()
            y = run.model.ln_final(leaf)
            y = y if query is None else y[:, query]
        for (rows,), _ in zip(
            vjps(run, y, [leaf], cotangents.to(y.device), self.batch),
            below,
            strict=True,
        ):
            take(self.top, rows)  # through the final norm only
            yield


def storage_for(run: Run, each: int, reach: int, rows: int) -> Way:
    """Where `rows` rows of each of `reach` blocks are kept, of which a position has `each`.

    The size is printed if it is large.
    """
    size = reach * each * rows * run.width * max(4, run.dtype.itemsize)
    disk, fits = free_on_disk() // 2, size <= available(run.device) // 2
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
        self.pullback, self.run = pullback, pullback.run
        self.query, self.spans = query, spans
        self.reach = self.run.positions if query is None else query + 1

    def along(self, directions: Float[Tensor, "cotangent *query d"]) -> Iterator[Batch]:
        """The products along `directions`, in batches."""
        return (
            _joined(parts, 1) for parts in self._batches(directions, lambda rows: rows)
        )

    def _batches(
        self, directions: Tensor, of: Callable[[Batch], Tensor]
    ) -> Iterator[list[Tensor]]:
        total = -(-len(directions) // self.pullback.batch)
        found = self.pullback.batches(self.query, directions, of)
        return iter(
            bar(found, total=total, desc="jacobian", unit="batch")
        )  # a bar itself is no iterator

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
        return (
            len(self.run.ids) * self.reach
            if self.spans is None
            else len(self.spans.names)
        )

    def once(self, about: tuple[Any, ...], measure: Callable[[], Tensor]) -> Tensor:
        """What `measure` gives on the CPU; of a capture it is kept layer by layer, and not measured again."""
        pullback, capture = self.pullback, self.run.capture
        if (
            capture is None
            or pullback.hooks
            or self.spans is not None
            or self.run.hooks()
        ):
            return measure().cpu()
        keys = [
            (*about, self.query, pullback.to, pullback.top, layer)
            for layer in pullback.layers
        ]
        if not capture.norms.keys() >= {*keys}:
            capture.norms.update(
                zip(keys, measure().cpu().chunk(len(keys)), strict=True)
            )
        return torch.cat([capture.norms[key] for key in keys])

    def exact(self, kept: Way | None) -> ByToken:
        """The norms from all products; spectral ones if rows are kept."""
        directions = torch.eye(self.run.width, dtype=torch.float64)
        return (
            self.frobenius(directions)
            if kept is None
            else self.measured(directions, kept, largest)
        )

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
        kept, done, device = torch.empty(0), 0, torch.device("cpu")
        for batch in self.along(directions):
            if not done:
                _, prompts, _, d = batch.shape
                shape, device = (prompts, self.reach, len(directions), d), batch.device
                kept = (
                    _in_file(shape, batch, folder)
                    if way == "spill"
                    else batch.new_empty(shape)
                )
            kept[:, :, done : done + len(batch)] = rearrange(
                batch[:, :, : self.reach], "k p i d -> p i k d"
            )
            done += len(batch)
        return kept, device

    def each(self, rows: Blocks, norms: Spectral, device: torch.device) -> Tensor:
        """What `norms` gives for the rows of each position, or of each span."""
        prompts, n, count, d = rows.shape
        size = max(
            1, CELLS["cpu" if device.type == "cpu" else "cuda"] // (prompts * count * d)
        )

        def grams(
            places: Sequence[int],
        ) -> Iterator[Float[Tensor, "prompt place out out"]]:
            for start in range(0, len(places), size):
                yield gram_of(rows[:, [*places[start : start + size]]].to(device))

        if self.spans is None:
            together = bar(
                grams(range(n)), total=-(-n // size), desc="norms", unit="batch"
            )
            return torch.cat([norms(gram) for gram in together], dim=1)
        nothing = torch.zeros(prompts, count, count, dtype=torch.float64, device=device)
        spans = bar(self.spans.within(self.reach), desc="norms", unit="span")
        return torch.stack(
            [
                norms(sum((g.sum(dim=1) for g in grams(inside)), nothing))
                for inside in spans
            ],
            dim=1,
        )

    def padded(
        self, values: Float[Tensor, "prompt place *several"]
    ) -> Float[Tensor, "prompt position *several"]:
        """Values of positions up to the query with zeros for the others; those of spans as they are."""
        more = 0 if self.spans is not None else self.run.positions - values.shape[1]
        return torch.nn.functional.pad(values, (0, 0) * (values.ndim - 2) + (0, more))

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
        squares = (
            _joined(parts, 0) for parts in self._batches(directions, squared_frobenius)
        )
        found = reduce(torch.add, squares).sqrt()
        return found if self.spans is None else self.spans.root_sum_squares(found)


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    """Those of several layers one after the other; that of a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)


def _in_file(shape: tuple[int, ...], like: Tensor, folder: str) -> Tensor:
    """An empty tensor for the rows, in a file of `folder`."""
    kind = np.float64 if like.dtype == torch.float64 else np.float32
    handle, name = tempfile.mkstemp(dir=folder)
    os.close(handle)
    return torch.from_numpy(np.memmap(name, kind, "w+", shape=shape))
