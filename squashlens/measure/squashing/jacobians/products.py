"""Vector–Jacobian products from the output at one token, and the norms that follow from them.

Products come in batches, a few rows of every block at a time. A spectral norm needs all rows of a block together, which
are kept in memory: n · k · d numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Norm, Target, by_device, positive
from squashlens.bars import bar
from squashlens.errors import UnsoundModelError
from squashlens.measure.squashing.token_spans import Spans
from squashlens.model.hooking.hook import Hook, Recipe
from squashlens.model.memory import raise_later, require_room
from squashlens.run.budget import (
    cotangents,
    cotangents_on_graph,
    graph_bytes,
    require_products,
)
from squashlens.run.derivatives.exact import Jittered
from squashlens.run.derivatives.replay import Replay, record, replayable
from squashlens.run.derivatives.spans import open_spans, vjps
from squashlens.run.run import Run
from squashlens.run.streamed import implementation
from squashlens.theory.norms import (
    PROBES,
    gram_of,
    largest,
    missing_sizes,
    normals,
    squared_frobenius,
)

# Numbers of the rows whose norms are computed together.
CELLS = {"cpu": 1 << 22, "cuda": 1 << 27}
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
    raise_later(wrong, partial(_not_causal, query), "causal", str(query))
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

    def _way(self) -> str:
        n = self.run.positions
        return implementation(self.run.model, n=n, differentiated=True)

    @property
    def attention(self) -> str:
        """How attention was computed up to now, for the provenance."""
        way = self._way()
        return f"{way}, block by block" if self.by_block else way

    @cached_property
    def _replay(self) -> Replay:
        return record(self.run, self.run.ids, self.hooks, self.bottom, self.top)

    @cached_property
    def _graph(self) -> tuple[dict[int, Tensor], Tensor]:
        """The stream at each layer, and the output, on the graph of all blocks."""
        streams: dict[int, Tensor] = {}
        # Each stream above the leaf is kept in `streams` when it is seen.
        above = [layer for layer in self.layers if layer > self.bottom]
        watch = [
            (self.run.site(layer), partial(streams.__setitem__, layer))
            for layer in above
        ]
        spans = open_spans(
            self.run, self.run.ids, self.hooks, [self.bottom], self.top, watch
        )
        span = spans[self.bottom]
        return streams | {self.bottom: span.leaf}, span.outputs[self.to]

    def batches(
        self,
        query: int,
        directions: Float[Tensor, "cotangent d"],
        of: Callable[[Batch], Tensor],
    ) -> Iterator[list[Tensor]]:
        """What `of` makes of the products at each layer, for a batch of cotangents at the query."""
        done = 0
        by_layer: dict[int, Tensor] = {}

        def take(layer: int, rows: Batch) -> None:
            nonlocal done
            if layer not in self.layers:
                return
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
        everywhere = everywhere.expand(-1, len(self.run.ids), -1)
        for _ in products(query, everywhere, take):
            device = by_layer[self.bottom].device
            yield [by_layer.pop(layer).to(device) for layer in self.layers]

    def _on_graph(self, query: int, cotangents: Tensor, take: Take) -> Iterator[None]:
        """Give `take` the products at each layer, from one graph of all blocks, batch after batch."""
        streams, output = self._graph
        with torch.enable_grad():
            output = output[:, query]
        leaves = [streams[layer] for layer in self.layers]
        for batch in vjps(self.run, output, leaves, cotangents, self.batch):
            for layer, rows in zip(self.layers, batch, strict=True):
                take(layer, rows)
            yield

    def _replayed(self, query: int, cotangents: Tensor, take: Take) -> Iterator[None]:
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

    def _through_norm(self, query: int, cotangents: Tensor) -> Iterator[Batch]:
        """The products at the last residual stream, from which only the final norm leads to y."""
        replay = self._replay
        with replay.running():
            last = self.top - 1
            left = replay.leaving(last, replay.calls[last].entering)
        with torch.enable_grad(), replay.running():
            leaf = left.detach().clone().requires_grad_()
            y = self.run.model.ln_final(leaf)[:, query]
        cotangents = cotangents.to(y.device)
        for (rows,) in vjps(self.run, y, [leaf], cotangents, self.batch):
            yield rows


class Products:
    """Products uᵀJ_i for cotangents u at one token, and the norms of J_i that follow.

    Several layers stand one after the other along the dimension of prompts.
    """

    def __init__(
        self, pullback: Pullback, query: int, spans: Spans | None = None
    ) -> None:
        self.pullback = pullback
        self.run = pullback.run
        self.query = query
        self.spans = spans
        self.reach = query + 1

    def along(self, directions: Float[Tensor, "cotangent d"]) -> Iterator[Batch]:
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
        self, directions: Float[Tensor, "cotangent d"]
    ) -> Float[Tensor, "cotangent prompt position in"]:
        """All products, on the CPU."""
        return torch.cat([rows.cpu() for rows in self.along(directions)])

    @property
    def count(self) -> int:
        """The number of norms: of tokens up to the query in all prompts, or of spans."""
        if self.spans is not None:
            return len(self.spans.names)
        return len(self.run.ids) * self.reach

    def exact(self, norm: Norm) -> ByToken:
        """The norms from all products, on the CPU."""
        unit = torch.eye(self.run.width, dtype=torch.float64)
        if norm == "frobenius":
            return self.frobenius(unit)
        return self.measured(unit, largest)

    def measured(
        self, directions: Float[Tensor, "cotangent d"], norms: Spectral
    ) -> Tensor:
        """What `norms` gives for the Gram matrix of each position's rows, or of each span's, on the CPU."""
        blocks = len(self.run.ids) * len(self.pullback.layers) * self.reach
        numbers = blocks * len(directions) * self.run.width
        # Half of the memory is left for the passes.
        require_room(
            2 * numbers * max(4, self.run.dtype.itemsize),
            self.run.device,
            "A spectral norm, whose rows are kept in memory,",
            "Use norm='frobenius', which keeps no rows, or method='sketch' with fewer n_probes=.",
        )
        return self.padded(self.each(self.collected(directions), norms)).cpu()

    def collected(self, directions: Float[Tensor, "cotangent d"]) -> Blocks:
        """All rows of the blocks."""
        batches = [
            rearrange(batch[:, :, : self.reach], "k p i d -> p i k d")
            for batch in self.along(directions)
        ]
        return torch.cat(batches, dim=2)

    def each(self, rows: Blocks, norms: Spectral) -> Tensor:
        """What `norms` gives for the rows of each position, or of each span."""
        if self.spans is None:
            together = rows.split(_places_together(rows), dim=1)
            parts = bar(together, desc="norms", unit="batch")
            return torch.cat([norms(gram_of(some)) for some in parts], dim=1)
        inside = bar(self.spans.within(self.reach), desc="norms", unit="span")
        return torch.stack([norms(_gram_of_span(rows, span)) for span in inside], dim=1)

    def padded(
        self, values: Float[Tensor, "prompt place *several"]
    ) -> Float[Tensor, "prompt position *several"]:
        """Values of positions up to the query with zeros for the others; those of spans as they are."""
        if self.spans is not None:
            return values
        prompts, places, *several = values.shape
        zeros = values.new_zeros(prompts, self.run.positions - places, *several)
        return torch.cat([values, zeros], dim=1)

    def rounded_away(self, chance: float, seed: int) -> ByToken:
        """What rounding did to each block J_i, forward pass included, as `Jittered` products of random cotangents show.

        These upper bounds on Frobenius norms hold together, except with probability `chance`.
        """
        probes = normals(seed, PROBES, self.run.width)
        with Jittered(self.run.device, seed):
            jittered = Products(self.pullback.again(), self.query).rows(probes)
        return missing_sizes(jittered - self.rows(probes), chance)

    def frobenius(self, directions: Float[Tensor, "cotangent d"]) -> Tensor:
        """The root of the sum of squares of the rows of each position, or of each span, on the CPU."""
        batches = self._batches(directions, squared_frobenius)
        squares = _joined(next(batches), 0)
        for layers in batches:
            squares = squares + _joined(layers, 0)
        norms = squares.sqrt().cpu()
        return norms if self.spans is None else self.spans.root_sum_squares(norms)


def _unchanged(rows: Batch) -> Batch:
    return rows


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    """Those of several layers one after the other; that of a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)


def _places_together(rows: Blocks) -> int:
    """The number of places whose rows are multiplied together."""
    prompts, _, count, d = rows.shape
    return max(1, by_device(CELLS, rows.device) // (prompts * count * d))


def _gram_of_span(
    rows: Blocks, inside: Sequence[int]
) -> Float[Tensor, "prompt out out"]:
    """``J Jᵀ = Σ_i J_i J_iᵀ`` of the blocks of a span side by side."""
    prompts, _, count, _ = rows.shape
    gram = rows.new_zeros(prompts, count, count, dtype=torch.float64)
    for some in rows[:, list(inside)].split(_places_together(rows), dim=1):
        gram = gram + gram_of(some).sum(dim=1)
    return gram
