"""Cotangents pulled back from one token's output, or from all, to the streams of several layers."""

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Target
from squashlens.engine.anatomy import n_blocks, residual_site
from squashlens.engine.budget import cotangents, cotangents_on_graph, require_products
from squashlens.engine.differentiating.replay import record, replayable
from squashlens.engine.differentiating.spans import differentiable, open_spans, vjps
from squashlens.engine.hooking.hook import Hook, Recipe
from squashlens.engine.running.streamed import implementation
from squashlens.measure.session import Session
from squashlens.measure.squashing.jacobians.rows import Batch, causality, require_causal

Take = Callable[[int, Batch], None]


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
        self.replay = None
        if self.bottom < self.top and replayable(model, hooks):
            self.batch = batch_size or cotangents(model, prompts, n)
            require_products(model, prompts, n, self.batch)
            self.replay = record(model, ids, hooks, self.bottom, self.top)
            self.attention = "streamed, block by block"
            return
        self.attention = implementation(model)
        self.batch = batch_size or cotangents_on_graph(model, prompts, n)
        self.streams: dict[int, Tensor] = {}
        also = [(residual_site(layer, model), self._kept(layer)) for layer in layers if layer > self.bottom]
        span = open_spans(model, ids, hooks, [self.bottom], self.top, also)[self.bottom]
        self.streams[self.bottom], self.output = span.leaf, span.outputs[to]

    def _kept(self, layer: int) -> Callable[[Tensor], None]:
        return lambda tensor: self.streams.update({layer: tensor})

    def batches(
        self, query: int | None, directions: Float[Tensor, "cotangent *query d"], take: Take | None = None
    ) -> Iterator[Batch]:
        """The products at the lowest layer, for cotangents at one query or at all; `take` gets those at every layer."""
        check, done = causality("The model", -1 if query is None else query), 0

        def checked(layer: int, rows: Batch) -> None:
            nonlocal done
            if layer not in self.layers:
                return
            if query is not None:
                require_causal(rows, query, check)
            if take is not None:
                with torch.no_grad():
                    take(layer, rows)
            done += len(rows)
            if self.tick is not None:
                self.tick(done / (len(directions) * len(self.layers)))

        like = self.output if self.replay is None else self.replay.calls[self.bottom][0]
        # Prompts do not interact, so one backward pass serves all of them.
        everywhere = directions.to(like.device, like.dtype)[:, None]
        everywhere = everywhere.expand(-1, len(self.session.ids), *directions.shape[1:])
        yield from (self._on_graph if self.replay is None else self._replayed)(query, everywhere, checked)
        check.require()

    def _on_graph(self, query: int | None, cotangents: Tensor, take: Take) -> Iterator[Batch]:
        with differentiable():
            output = self.output if query is None else self.output[:, query]
        for found in vjps(output, [self.streams[layer] for layer in self.layers], cotangents, self.batch):
            for layer, rows in zip(self.layers, found, strict=True):
                take(layer, rows)
            yield found[self.layers.index(self.bottom)]

    def _replayed(self, query: int | None, cotangents: Tensor, take: Take) -> Iterator[Batch]:
        if self.replay is None:
            return
        if self.top in self.layers:  # through the final norm only
            with self.replay.running(), torch.no_grad():
                _, left = self.replay.block(self.top - 1, self.replay.calls[self.top - 1])
            with differentiable(), self.replay.running():
                leaf = left.detach().clone().requires_grad_()
                y = self.session.model.ln_final(leaf)
                for (rows,) in vjps(y if query is None else y[:, query], [leaf], cotangents.to(y.device), self.batch):
                    take(self.top, rows)
        yield from self.replay.gradients(query, self.to, cotangents, self.batch, take)
