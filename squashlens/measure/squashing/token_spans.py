"""Spans: groups of a prompt's tokens that are measured together, such as words or lines.

The Jacobian with respect to a span is its tokens' blocks side by side, ``J_S = [J_i … J_j]``: all of them move at once.
``J_S J_Sᵀ = Σ J_i J_iᵀ``, so that ``max_i ‖J_i‖₂ ≤ ‖J_S‖₂ ≤ √Σ ‖J_i‖₂²``, and ``‖J_S‖_F² = Σ ‖J_i‖_F²``. A sum of
norms over a span is not the norm of a matrix.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Pieces, SpansOfTokens, short_repr
from squashlens.errors import InputError
from squashlens.model.text.context import texts_in_context
from squashlens.model.text.pieces import pieces_of, positions_in
from squashlens.model.text.tokens import require_tokenizer
from squashlens.records.sentences import escape
from squashlens.run.run import Run


@dataclass(frozen=True)
class Spans:
    """Names of the spans of a prompt, and the positions of their tokens."""

    names: list[str]
    positions: list[list[int]]

    @classmethod
    def of(cls, run: Run, wanted: SpansOfTokens) -> "tuple[Run, Spans | None]":
        """The spans that were asked for, in the order of their positions, and the run whose results they label.

        Without any, None and the given run. `wanted` is ``"words"``, ``"sentences"`` or ``"lines"``, or positions by
        name. Raises unless there is a single prompt, in which the spans exist and share no token.
        """
        if wanted is None:
            return run, None
        if len(run.ids) != 1:
            raise InputError(
                f"spans= is for a single prompt, and this call has {len(run.ids)}.",
                "Measure prompts one by one: each has spans of its own.",
            )
        named: list[tuple[str, list[int]]] = []
        if isinstance(wanted, Mapping):
            for name, positions in wanted.items():
                inside = run.queries(positions, f"spans[{name!r}]")
                named.append((str(name), inside))
        else:
            named = _named_pieces(run, wanted)
        if not named:
            raise InputError(
                f"spans={short_repr(wanted)} has no span in this prompt.",
                "Choose another kind of span.",
            )
        names, positions = zip(*sorted(named, key=_positions_of), strict=True)
        all_positions = list(chain.from_iterable(positions))
        if len(set(all_positions)) < len(all_positions):
            raise InputError(
                "Some spans= have a token in common.",
                "Measure overlapping spans in different calls.",
            )
        spans = cls([escape(name) for name in names], list(positions))
        return spans.labelling(run), spans

    @property
    def sizes(self) -> list[int]:
        """The number of tokens of each span."""
        return [len(inside) for inside in self.positions]

    def labelling(self, run: Run) -> Run:
        """The run whose results have one value for each span along `position`, with the span's name as `token`."""
        labels = {
            "position": np.array([inside[0] for inside in self.positions]),
            "token": ("position", np.array(self.names, dtype=object)),
            "token_id": ("position", np.full(len(self.names), -1)),  # a span has no id
            "span_size": (
                "position",
                np.array(self.sizes),
                {"long_name": "number of tokens of the span"},
            ),
        }
        return replace(run.knowing(spans=self.positions), labels=labels)

    def within(self, reach: int) -> list[list[int]]:
        """The positions of each span below `reach`; others have no influence."""
        return [[i for i in inside if i < reach] for inside in self.positions]

    def named(self) -> dict[str, list[int]]:
        """The positions of each span under a name that no other has, as an argument `spans`."""
        return {str(number): inside for number, inside in enumerate(self.positions)}

    def and_all(self, n: int) -> "Spans":
        """The same spans, and one of all n positions."""
        return Spans([*self.names, ""], [*self.positions, list(range(n))])

    def sums(
        self, values: Float[Tensor, "*many position"]
    ) -> Float[Tensor, "*many span"]:
        """The sum over each span."""
        sums = [values[..., inside].sum(dim=-1) for inside in self.positions]
        return torch.stack(sums, dim=-1)

    def root_sum_squares(
        self, values: Float[Tensor, "prompt position"]
    ) -> Float[Tensor, "prompt span"]:
        """The root of the sum of squares over each span."""
        return self.sums(values.square()).sqrt()


def _positions_of(span: tuple[str, list[int]]) -> list[int]:
    _, positions = span
    return positions


def _named_pieces(run: Run, kind: Pieces) -> list[tuple[str, list[int]]]:
    """The words, sentences or lines of a prompt, as texts with the positions of their tokens.

    Tokens at the start that the tokenizer adds, such as BOS, belong to none.
    """
    first = run.facts["bos_count"]
    ids = run.ids[0, first:].tolist()
    texts = texts_in_context(require_tokenizer(run.model), ids)
    pieces = pieces_of("".join(texts), kind)
    named: list[tuple[str, list[int]]] = []
    for (name, *_), inside in zip(pieces, positions_in(texts, pieces), strict=True):
        # A token belongs to the first piece in it. So a second piece in one token has no token, and is no span.
        if inside:
            named.append((name, [first + place for place in inside]))
    return named
