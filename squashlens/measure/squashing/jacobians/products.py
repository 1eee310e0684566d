"""Vector–Jacobian products from the output at one token, or at all, and the norms that follow from them."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Target
from squashlens.bars import bar
from squashlens.engine.anatomy import device_of, n_blocks, residual_site, width
from squashlens.engine.budget import cotangents, cotangents_on_graph, graph_bytes, require_products
from squashlens.engine.differentiating.exact import Jittered
from squashlens.engine.differentiating.replay import Replay, record, replayable
from squashlens.engine.differentiating.spans import differentiable, open_spans, vjps
from squashlens.engine.hooking.hook import Hook, Recipe
from squashlens.engine.memory import require_room
from squashlens.engine.running.streamed import implementation
from squashlens.measure.session import Session
from squashlens.measure.squashing.jacobians.rows import (
    Batch,
    Batches,
    Spectral,
    Storage,
    causality,
    require_causal,
    spectral_of,
    storage_for,
)
from squashlens.measure.squashing.token_spans import Spans
from squashlens.theory.norms import missing_sizes, spectral_norms, squared_frobenius
from squashlens.theory.probes import PROBES, normals

Take = Callable[[int, Batch], None]
ByToken = Float[Tensor, "prompt position"]  # with several layers, the prompts of one layer after those of another


class Pullback:
    """Products uᵀJ for cotangents u at `to`, block by block if the model allows it, else on the graph of all blocks.

    One forward pass serves all of them. `tick` is called with the share of the rows that are done.
    """

    def __init__(
        self, session: Session, layers: Sequence[int], hooks: Sequence[Hook | Recipe] = (), top: int | None = None,
        to: Target = "y", batch_size: int | None = None, tick: Callable[[float], None] | None = None,
    ) -> None:  # fmt: skip
        model, ids, (prompts, n) = session.model, session.ids, session.ids.shape
        self.session, self.layers, self.tick = session, [*layers], tick
        self.to: Target = to
        self.bottom, self.top = min(layers), n_blocks(model) if top is None else top
        self.again = partial(Pullback, session, layers, hooks, top, to, batch_size)
        self.replay = None
        if self.bottom < self.top and replayable(model, hooks):
            self.batch = batch_size or cotangents(model, prompts, n)
            require_products(model, prompts, n, self.batch)
            self.replay = record(model, ids, hooks, self.bottom, self.top)
            self.attention = "streamed, block by block"
            return
        self.attention = implementation(model)
        graph = (self.top - self.bottom) * graph_bytes(model, prompts, n)
        require_room(graph, ids.device, f"The graph of all blocks ({self.attention})", "Use a shorter prompt.")
        self.batch = batch_size or cotangents_on_graph(model, prompts, n)
        self.streams: dict[int, Tensor] = {}
        also = [(residual_site(layer, model), self._kept(layer)) for layer in layers if layer > self.bottom]
        span = open_spans(model, ids, hooks, [self.bottom], self.top, also)[self.bottom]
        self.streams[self.bottom], self.output = span.leaf, span.outputs[to]

    def _kept(self, layer: int) -> Callable[[Tensor], None]:
        return lambda tensor: self.streams.update({layer: tensor})

    def batches(
        self, query: int | None, directions: Float[Tensor, "cotangent *query d"], of: Callable[[Batch], Tensor]
    ) -> Iterator[list[Tensor]]:
        """What `of` makes of the products at each layer, for a batch of cotangents at one query or at all."""
        check, done = causality("The model", -1 if query is None else query), 0
        found: dict[int, Tensor] = {}

        def take(layer: int, rows: Batch) -> None:
            nonlocal done
            if layer not in self.layers:
                return
            if query is not None:
                require_causal(rows, query, check)
            with torch.no_grad():
                found[layer] = of(rows)
            done += len(rows)
            if self.tick is not None:
                self.tick(done / (len(directions) * len(self.layers)))

        like = self.output if self.replay is None else self.replay.calls[self.bottom][0]
        # Prompts do not interact, so one backward pass serves all of them.
        everywhere = directions.to(like.device, like.dtype)[:, None]
        everywhere = everywhere.expand(-1, len(self.session.ids), *directions.shape[1:])
        passed = self._on_graph if self.replay is None else partial(self._replayed, self.replay)
        for _ in passed(query, everywhere, take):
            device = found[self.bottom].device
            yield [found.pop(layer).to(device) for layer in self.layers]
        check.require()

    def _on_graph(self, query: int | None, cotangents: Tensor, take: Take) -> Iterator[None]:
        with differentiable():
            output = self.output if query is None else self.output[:, query]
        for found in vjps(output, [self.streams[layer] for layer in self.layers], cotangents, self.batch):
            for layer, rows in zip(self.layers, found, strict=True):
                take(layer, rows)
            yield

    def _replayed(self, replay: Replay, query: int | None, cotangents: Tensor, take: Take) -> Iterator[None]:
        below = replay.gradients(query, self.to, cotangents, self.batch, take)
        if self.top not in self.layers:
            yield from (None for _ in below)
            return
        with replay.running(), torch.no_grad():
            _, left = replay.block(self.top - 1, replay.calls[self.top - 1])
        with differentiable(), replay.running():
            leaf = left.detach().clone().requires_grad_()
            y = self.session.model.ln_final(leaf)
            y = y if query is None else y[:, query]
        for (rows,), _ in zip(vjps(y, [leaf], cotangents.to(y.device), self.batch), below, strict=True):
            take(self.top, rows)  # through the final norm only
            yield


class Products:
    """Products uᵀJ_i for cotangents u at one token, and the norms of J_i that follow; with no query, u at all tokens.

    Several layers stand one after the other along the dimension of prompts.
    """

    def __init__(self, pullback: Pullback, query: int | None, spans: Spans | None = None) -> None:
        self.pullback, self.session = pullback, pullback.session
        self.query, self.spans = query, spans
        self.reach = self.session.positions if query is None else query + 1

    def along(self, directions: Float[Tensor, "cotangent *query d"]) -> Batches:
        """A function that computes the products along `directions` in batches, anew at each call."""
        return lambda: (_joined(parts, 1) for parts in self._batches(directions, lambda rows: rows))

    def _batches(self, directions: Tensor, of: Callable[[Batch], Tensor]) -> Iterator[list[Tensor]]:
        total = -(-len(directions) // self.pullback.batch)
        return bar(self.pullback.batches(self.query, directions, of), total=total, desc="jacobian", unit="batch")

    def rows(self, directions: Float[Tensor, "cotangent *query d"]) -> Float[Tensor, "cotangent prompt position in"]:
        """All products, on the CPU."""
        return torch.cat([rows.cpu() for rows in self.along(directions)()])

    def storage(self, count: int, *, once: bool = False) -> Storage:
        """Where `count` rows of each block are kept; the size is printed if it is large."""
        each = len(self.session.ids) * len(self.pullback.layers)
        return storage_for(self.session.model, each, self.reach, count, once=once)

    @property
    def count(self) -> int:
        """The number of norms: of tokens up to the query in all prompts, or of spans."""
        return len(self.session.ids) * self.reach if self.spans is None else len(self.spans.names)

    def exact(self, kept: Storage | None) -> ByToken:
        """The norms from all products; spectral ones if rows are kept."""
        directions = torch.eye(width(self.session.model), dtype=torch.float64)
        return self.frobenius(directions) if kept is None else self.measured(directions, kept, spectral_norms)

    def measured(self, directions: Float[Tensor, "cotangent d"], kept: Storage, norms: Spectral) -> Tensor:
        """What `norms` gives for the rows of each position, or of each span."""
        spans = None if self.spans is None else self.spans.within(self.reach)
        return spectral_of(self.along(directions), kept, self.reach, len(directions), norms, spans)

    def rounded_away(self, chance: float, seed: int) -> ByToken:
        """What rounding did to each block J_i, forward pass included, as `Jittered` products of random cotangents show.

        These upper bounds on Frobenius norms hold together, except with probability `chance`. Without a query they are
        for the blocks of all queries on top of each other, whose norm is at least that of each.
        """
        tokens = () if self.query is not None else (self.session.positions,)
        probes = normals(seed)(PROBES, *tokens, width(self.session.model))
        with Jittered(device_of(self.session.model), seed):
            jittered = Products(self.pullback.again(), self.query).rows(probes)
        return missing_sizes(jittered - self.rows(probes), chance)

    def frobenius(self, directions: Float[Tensor, "cotangent d"]) -> Tensor:
        """The root of the sum of squares of the rows of each position, or of each span."""
        squares = (_joined(parts, 0) for parts in self._batches(directions, squared_frobenius))
        found = reduce(torch.add, squares).sqrt()
        return found if self.spans is None else self.spans.root_sum_squares(found)


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    """Those of several layers one after the other; that of a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)
