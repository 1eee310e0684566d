"""Spans: groups of a prompt's tokens that are measured together, such as words, lines or the fields of a JSON object.

The Jacobian with respect to a span is its tokens' blocks side by side, ``J_S = [J_i … J_j]``: all of them move at once.
``J_S J_Sᵀ = Σ J_i J_iᵀ``, so that ``max_i ‖J_i‖₂ ≤ ‖J_S‖₂ ≤ √Σ ‖J_i‖₂²``, and ``‖J_S‖_F² = Σ ‖J_i‖_F²``. A sum of
norms over a span is another number, and no norm of a matrix.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Pieces, short_repr
from squashlens.engine.text.pieces import pieces_of, positions_in, texts_of
from squashlens.engine.text.tokens import escape, require_tokenizer
from squashlens.errors import InputError
from squashlens.measure.session import Session
from squashlens.records.results import attributes, sealed

Given = Pieces | Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Spans:
    """Names of the spans of a prompt, and the positions of their tokens."""

    names: list[str]
    positions: list[list[int]]

    @classmethod
    def of(cls, session: Session, given: Given | None) -> "Spans | None":
        """The spans that were asked for. Raises unless there is a single prompt that has them."""
        if given is None:
            return None
        if len(session.ids) != 1:
            raise InputError(
                f"spans= is for a single prompt, and this call has {len(session.ids)}.",
                "Measure prompts one by one: each has spans of its own.",
            )
        if isinstance(given, Mapping):
            found = {str(name): session.queries(positions, f"spans[{name!r}]") for name, positions in given.items()}
            names, positions = list(found), list(found.values())
        else:
            first = session.facts["bos_count"]
            texts = texts_of(require_tokenizer(session.model), session.ids[0, first:].tolist())
            pieces = pieces_of("".join(texts), given)
            together = [
                (name, [first + i for i in inside])
                for (name, *_), inside in zip(pieces, positions_in(texts, pieces), strict=True)
                if inside  # a piece inside one token belongs to that of the piece before
            ]
            names, positions = [name for name, _ in together], [inside for _, inside in together]
        if not names:
            raise InputError(f"spans={short_repr(given)} has no span in this prompt.", "Choose another kind of span.")
        order = sorted(range(len(names)), key=lambda k: positions[k])
        taken = [i for inside in positions for i in inside]
        if len(set(taken)) < len(taken):
            raise InputError("Some spans= have a token in common.", "Measure overlapping spans in different calls.")
        return cls([escape(names[k]) for k in order], [positions[k] for k in order])

    def within(self, reach: int) -> list[list[int]]:
        """The positions of each span below `reach`; others have no influence."""
        return [[i for i in inside if i < reach] for inside in self.positions]

    def places(self, first: int, stop: int, *, some: bool = False) -> list[int]:
        """The spans of which all tokens, or some, are from `first` to before `stop`."""
        test = any if some else all
        return [k for k, inside in enumerate(self.positions) if test(first <= i < stop for i in inside)]

    def named(self) -> dict[str, list[int]]:
        """The positions of each span under a name that no other has, as an argument `spans`."""
        return {str(k): inside for k, inside in enumerate(self.positions)}

    def and_all(self, n: int) -> "Spans":
        """The same spans, and one of all n positions."""
        return Spans([*self.names, ""], [*self.positions, list(range(n))])

    def sums(self, values: Float[Tensor, "*many position"]) -> Float[Tensor, "*many span"]:
        """The sum over each span."""
        return torch.stack([values[..., inside].sum(dim=-1) for inside in self.positions], dim=-1)

    def root_sum_squares(self, values: Float[Tensor, "prompt position"]) -> Float[Tensor, "prompt span"]:
        """The root of the sum of squares over each span."""
        return self.sums(values.square()).sqrt()

    def coords(self) -> dict[str, Any]:
        """The labels of the spans: the position of the first token, and as token the name of the span."""
        ids = np.full(len(self.names), -1)
        sizes = np.array([len(inside) for inside in self.positions])
        return {
            "position": np.array([inside[0] for inside in self.positions]),
            "token": ("position", np.array(self.names, dtype=object)),
            "token_id": ("position", ids),
            "span_size": ("position", sizes, {"long_name": "number of tokens of the span"}),
        }

    def facts(self) -> dict[str, Any]:
        """What the provenance says: the positions of every span."""
        return {"spans": self.positions}

    def label(
        self, session: Session, values: Float[Tensor, "prompt span"], name: str, long_name: str, units: str,
        **extra: Any,
    ) -> xr.DataArray:  # fmt: skip
        """A DataArray of one value for each span of a single prompt."""
        array = values[0].detach().cpu().numpy()
        found = xr.DataArray(array, self.coords(), ("position",), name, attributes(long_name, units))
        return sealed(found, {**session.facts, **self.facts(), **extra})


def recorded(given: Given | None) -> dict[str, Any]:
    """The argument as a call's record has it; nothing by default."""
    if given is None:
        return {}
    plain = {str(name): list(inside) for name, inside in given.items()} if isinstance(given, Mapping) else given
    return {"spans": plain}
