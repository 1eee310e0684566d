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
from squashlens.run.derivatives.spans import Watch, leaf_of, open_spans, vjps
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

# Numbers in the rows whose norms are computed together.
CELLS = {"cpu": 1 << 22, "cuda": 1 << 27}
Batch = Float[Tensor, "cotangent prompt position in"]
Take = Callable[[int, Batch], None]  # gets a layer, and the products at it
Blocks = Float[Tensor, "prompt place out in"]  # rows of the blocks of some positions
# What is measured of each Gram matrix: a number, or several.
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
    """The given rows of a derivative at the query; an error (`raise_later`) unless those of later tokens are zero."""
    is_wrong = rows[:, :, query + 1 :].count_nonzero() > 0  # true for NaN too
    raise_later(is_wrong, partial(_not_causal, query), "causal", str(query))
    return rows


class Pullback:
    """Products uᵀJ for cotangents u at `to`, block by block if the model allows it, else on the graph of all blocks.

    The forward pass runs when the first products are asked for, and serves all of them.

    Attributes:
        layers: the layers at which products are wanted, that is derivatives with respect to their streams.
        to, top: the target, and its layer number.
        batch: number of cotangents that are pulled back at once.
        tick: if given, is called with the share of the rows that are done.
        again: makes another Pullback with these arguments, and so with another forward pass.
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
        """Choose how products are computed, and raise if that does not fit into memory."""
        if batch_size is not None:
            positive(batch_size, "vjp_batch_size", "a batch size")
        self.run = run
        self.layers = list(layers)
        self.hooks = hooks
        self.tick = tick
        self.to: Target = to
        self.bottom = min(
            layers
        )  # where the graph, or the lowest replayed block, starts
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
                f"The graph of all blocks ({self._implementation()})",
                "Use a shorter prompt.",
            )
            self.batch = batch_size or cotangents_on_graph(run, prompts, n)

    def _implementation(self) -> str:
        """How the model computes attention now, in words."""
        n = self.run.positions
        return implementation(self.run.model, n=n, differentiated=True)

    @property
    def attention(self) -> str:
        """How attention was computed up to now, for the provenance."""
        way = self._implementation()
        return f"{way}, block by block" if self.by_block else way

    @cached_property
    def _replay(self) -> Replay:
        return record(self.run, self.run.ids, self.hooks, self.bottom, self.top)

    @cached_property
    def _graph(self) -> tuple[dict[int, Tensor], Tensor]:
        """The stream at each of `layers`, and the output at `to`, on one graph that starts at the lowest layer."""
        streams: dict[int, Tensor] = {}
        # Streams above the lowest one, which is the graph's leaf, are kept when they are seen.
        watch: list[Watch] = []
        for layer in self.layers:
            if layer > self.bottom:
                keep = partial(streams.__setitem__, layer)
                watch.append((self.run.site(layer), keep))
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
        """Pull directions at the query back, batch after batch; give what `of` makes of the products at each layer.

        `of` is for example the sum of squares, so that no more than a batch of rows is kept. The tensors of a batch are
        in the order of `layers`, and on one device.
        """
        done = 0
        by_layer: dict[int, Tensor] = {}

        def take(layer: int, rows: Batch) -> None:
            """Keep what `of` makes of the rows at one layer, if it is one of those wanted."""
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
        # Prompts do not interact, so one backward pass with the same direction in each serves all of them.
        cotangents = directions.to(like.device, like.dtype)[:, None]
        cotangents = cotangents.expand(-1, len(self.run.ids), -1)
        for _ in products(query, cotangents, take):
            # `take` has now had the rows of a batch at every layer.
            device = by_layer[self.bottom].device
            yield [by_layer.pop(layer).to(device) for layer in self.layers]

    def _on_graph(self, query: int, cotangents: Tensor, take: Take) -> Iterator[None]:
        """Give `take` the products at each layer, from one graph of all blocks, batch after batch."""
        streams, output = self._graph
        with torch.enable_grad():
            output = output[:, query]  # on the graph
        leaves = [streams[layer] for layer in self.layers]
        for batch in vjps(self.run, output, leaves, cotangents, self.batch):
            for layer, rows in zip(self.layers, batch, strict=True):
                take(layer, rows)
            yield

    def _replayed(self, query: int, cotangents: Tensor, take: Take) -> Iterator[None]:
        """Give `take` the products at each layer, block by block, batch after batch."""
        # The streams that enter blocks; advancing it by a batch calls `take` for each.
        through_blocks = self._replay.gradients(
            query, self.to, cotangents, self.batch, take
        )
        if self.top not in self.layers:
            for _ in through_blocks:
                yield
            return
        # The last stream, v⁽ᴸ⁾, enters no block.
        through_norm = self._through_norm(query, cotangents)
        for rows, _ in zip(through_norm, through_blocks, strict=True):
            take(self.top, rows)
            yield

    def _through_norm(self, query: int, cotangents: Tensor) -> Iterator[Batch]:
        """The products at v⁽ᴸ⁾, from which only the final norm leads to y, in batches."""
        replay = self._replay
        with replay.running():
            last = self.top - 1
            stream = replay.leaving(last, replay.calls[last].entering)
        with torch.enable_grad(), replay.running():
            leaf = leaf_of(stream)
            y = self.run.model.ln_final(leaf)[:, query]
        cotangents = cotangents.to(y.device)
        for (rows,) in vjps(self.run, y, [leaf], cotangents, self.batch):
            yield rows


class Products:
    """Products uᵀJ_i for cotangents u at one token, the query, and the norms of J_i that follow.

    With several layers, the prompts of one layer follow those of another along the dimension of prompts.
    """

    def __init__(
        self, pullback: Pullback, query: int, spans: Spans | None = None
    ) -> None:
        self.pullback = pullback
        self.run = pullback.run
        self.query = query
        self.spans = spans
        self.reach = query + 1  # only tokens before this position influence the query

    def along(self, directions: Float[Tensor, "cotangent d"]) -> Iterator[Batch]:
        """The products with `directions` as cotangents at the query, in batches."""
        for layers in self._batches(directions, _unchanged):
            yield _joined(layers, dim=1)

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
        """All products with `directions`, on the CPU."""
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
        """What `norms` gives for the Gram matrix of each position's products, or of each span's, on the CPU.

        0 for positions after the query. All products are kept in memory at once; raises if they do not fit.
        """
        blocks = len(self.run.ids) * len(self.pullback.layers) * self.reach
        numbers = blocks * len(directions) * self.run.width
        # Twice their bytes, which leaves half of the memory for the passes.
        require_room(
            2 * numbers * max(4, self.run.dtype.itemsize),
            self.run.device,
            "A spectral norm, whose rows are kept in memory,",
            "Use norm='frobenius', which keeps no rows, or method='sketch' with fewer n_probes=.",
        )
        return self.padded(self.each(self.collected(directions), norms)).cpu()

    def collected(self, directions: Float[Tensor, "cotangent d"]) -> Blocks:
        """The products of all directions, as rows of the block of each position up to the query."""
        batches: list[Tensor] = []
        for batch in self.along(directions):
            up_to_query = batch[:, :, : self.reach]
            by_block = "k prompt place d -> prompt place k d"
            batches.append(rearrange(up_to_query, by_block))
        return torch.cat(batches, dim=2)

    def each(self, rows: Blocks, norms: Spectral) -> Tensor:
        """What `norms` gives for the rows of each position, or of each span, (prompt, place) or (prompt, span)."""
        results: list[Tensor] = []
        if self.spans is None:
            together = rows.split(_places_together(rows), dim=1)
            for some in bar(together, desc="norms", unit="batch"):
                results.append(norms(gram_of(some)))
            return torch.cat(results, dim=1)
        for inside in bar(self.spans.within(self.reach), desc="norms", unit="span"):
            results.append(norms(_gram_of_span(rows, inside)))
        return torch.stack(results, dim=1)

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
        """Upper bounds on ‖Δ_i‖_F, where Δ_i is what rounding did to block J_i, forward pass included.

        Products of random cotangents are compared with those of a second pass under `Jittered`, which moves every
        intermediate result by more than rounding does. The bounds hold together, except with probability `chance`.
        """
        probes = normals(seed, PROBES, self.run.width)
        with Jittered(self.run.device, seed):
            jittered = Products(self.pullback.again(), self.query).rows(probes)
        return missing_sizes(jittered - self.rows(probes), chance)

    def frobenius(self, directions: Float[Tensor, "cotangent d"]) -> Tensor:
        """The root of the sum of squares of the products at each position, or of each span, on the CPU.

        Squares are added up batch by batch, so that no products are kept.
        """
        batches = self._batches(directions, squared_frobenius)
        squares = _joined(next(batches), dim=0)
        for layers in batches:
            squares = squares + _joined(layers, dim=0)
        norms = squares.sqrt().cpu()
        return norms if self.spans is None else self.spans.root_sum_squares(norms)


def _unchanged(rows: Batch) -> Batch:
    return rows


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    """The tensors of several layers as one, along the dimension of prompts; that of a single layer is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)


def _places_together(rows: Blocks) -> int:
    """The number of places whose rows are multiplied together, so that their float64 copies stay small."""
    prompts, _, n_rows, d = rows.shape
    return max(1, by_device(CELLS, rows.device) // (prompts * n_rows * d))


def _gram_of_span(
    rows: Blocks, inside: Sequence[int]
) -> Float[Tensor, "prompt out out"]:
    """``J Jᵀ = Σ_i J_i J_iᵀ`` of the blocks of a span side by side, of which `inside` has the positions."""
    prompts, _, n_rows, _ = rows.shape
    gram = rows.new_zeros(prompts, n_rows, n_rows, dtype=torch.float64)
    for some in rows[:, list(inside)].split(_places_together(rows), dim=1):
        gram = gram + gram_of(some).sum(dim=1)
    return gram
