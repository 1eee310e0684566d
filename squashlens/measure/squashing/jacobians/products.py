"""Vector–Jacobian products of one token's output, and the norms that follow from them."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Norm, Target
from squashlens.bars import bar, write
from squashlens.engine.anatomy import device_of, width
from squashlens.engine.budget import tell
from squashlens.engine.differentiating.exact import Jittered
from squashlens.engine.hooking.hook import Hook, Recipe
from squashlens.measure.session import Session
from squashlens.measure.squashing.jacobians.pullback import Pullback
from squashlens.measure.squashing.jacobians.rows import (
    Batches,
    Spectral,
    Storage,
    cost_message,
    frobenius_of,
    spectral_of,
    storage_for,
)
from squashlens.measure.squashing.token_spans import Spans
from squashlens.theory.norms import missing_sizes, spectral_norms
from squashlens.theory.probes import PROBES, normals

ByToken = Float[Tensor, "prompt position"]


class Products:
    """Products uᵀJ_i for cotangents u at one token, and the norms of J_i that follow from them."""

    def __init__(
        self, session: Session, hooks: Sequence[Hook | Recipe], from_layer: int, top: int, to: Target, query: int,
        batch_size: int | None, spans: Spans | None = None,
    ) -> None:  # fmt: skip
        self.session, self.query, self.spans = session, query, spans
        self._anew = partial(Products, session, hooks, from_layer, top, to, query, batch_size)
        self.pullback = Pullback(session, [from_layer], hooks, top, to, batch_size)
        self.attention = self.pullback.attention

    def along(self, directions: Float[Tensor, "cotangent d"]) -> Batches:
        """A function that computes the products along `directions` in batches, anew at each call."""

        def again() -> Iterator[Tensor]:
            with bar(total=len(directions), desc="jacobian", unit="VJP") as progress_bar:
                for rows in self.pullback.batches(self.query, directions):
                    yield rows
                    progress_bar.update(len(rows))

        return again

    def rows(self, directions: Float[Tensor, "cotangent d"]) -> Float[Tensor, "cotangent prompt position in"]:
        """All products, on the CPU."""
        return torch.cat([rows.cpu() for rows in self.along(directions)()])

    def storage(self, count: int, *, once: bool = False) -> Storage:
        """Where `count` rows of each block are kept; the size is printed if it is large."""
        reach, like = self.query + 1, next(self.session.model.parameters())
        storage = storage_for(len(self.session.ids), reach, count, width(self.session.model), like, once=once)
        message = cost_message(storage, reach, count)
        if message:
            write(message)
        return storage

    @property
    def count(self) -> int:
        """The number of norms: of tokens up to the query in all prompts, or of spans."""
        return len(self.session.ids) * (self.query + 1) if self.spans is None else len(self.spans.names)

    def exact(self, norm: Norm) -> tuple[ByToken, dict[str, Any]]:
        """The norms from all products, and how their rows were stored."""
        model, directions = self.session.model, torch.eye(width(self.session.model), dtype=torch.float64)
        cheaper = "method='sketch' takes fewer products, and gives each norm an interval."
        tell(model, "jacobian", len(directions), len(self.session.ids) * (self.query + 1), cheaper)
        if norm == "frobenius":
            return self.frobenius(directions), {}
        storage = self.storage(len(directions))
        return self.measured(directions, storage, spectral_norms), {"rows": storage.way}

    def measured(self, directions: Float[Tensor, "cotangent d"], storage: Storage, norms: Spectral) -> Tensor:
        """What `norms` gives for the rows of each position, or of each span."""
        reach, count = self.query + 1, len(directions)
        spans = None if self.spans is None else self.spans.within(reach)
        return spectral_of(self.along(directions), storage, reach, count, norms, spans)

    def rounded_away(self, chance: float, seed: int) -> ByToken:
        """What rounding did to each block J_i, forward pass included, as `Jittered` products of random cotangents show.

        These upper bounds on Frobenius norms hold together, except with probability `chance`.
        """
        probes = normals(seed)(PROBES, width(self.session.model))
        with Jittered(device_of(self.session.model), seed):
            jittered = self._anew().rows(probes)
        return missing_sizes(jittered - self.rows(probes), chance)

    def frobenius(self, directions: Float[Tensor, "cotangent d"]) -> Tensor:
        """The root of the sum of squares of the rows of each position, or of each span."""
        found = frobenius_of(self.along(directions))
        return found if self.spans is None else self.spans.root_sum_squares(found)
