"""The session of a measurement of pairs: it checks the model, runs the sequence or uses its capture."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.engine.capturing.pairs import PairCapture, PairRun, SequenceOrCapture, Streams, pairs_of
from squashlens.engine.text.tokens import display_tokens
from squashlens.measure.session import Session
from squashlens.sequences import GrowingSequence, Ids

REPLAYED = 4  # lengths that are run a second time for the noise floor, if no capture is given


def captured(
    model: Bridge,
    given: SequenceOrCapture,
    function: str,
    *,
    patterns: bool = False,
    noise_lengths: int = 0,
    **arguments: Any,
) -> tuple[Session, PairCapture]:
    """The session of a measurement of pairs, and the pairs: those of a capture, or of a sequence that is run now.

    A capture without the `patterns` that are needed raises. `noise_lengths` are replayed only if the sequence is run.
    """
    pairs = pairs_of(model, given, patterns=patterns, noise_lengths=noise_lengths, function=function)
    session = sequence_session(model, pairs, function, **arguments)
    return with_passes(session, pairs.v, capture=pairs.options), pairs


def sequence_session(model: Bridge, of: PairCapture | PairRun, function: str, **arguments: Any) -> Session:
    """The session of a measurement on a growing sequence, whose provenance describes the sequence."""
    session = Session.without_prompt(model, of.ids, of.sequence.bos, function, **arguments)
    return replace(session, facts={**session.facts, "sequence": _described(session.model, of.sequence)})


def with_passes(session: Session, *streams: Streams, **facts: Any) -> Session:
    """The session with further facts in its provenance: how the passes were run, and `facts`."""
    ways = {"passes": {s.route for s in streams}, "attention_implementation": {s.attention for s in streams}}
    joined = {fact: ", ".join(sorted(values)) for fact, values in ways.items()}
    return replace(session, facts={**session.facts, **joined, **facts})


def coords(of: PairCapture | PairRun) -> dict[str, Any]:
    """The coordinates of results over `layer` and `length`."""
    return {
        "layer": np.array(of.layers),
        "length": np.array(of.lengths),
        "tokens": ("length", np.array([len(of.sequence.plain(n)) for n in of.lengths])),
        "before_separator": ("length", np.array([of.sequence.before_separator(n) for n in of.lengths])),
    }


def from_then_on(holds: Bool[Tensor, "*many length"], lengths: tuple[int, ...]) -> Float[Tensor, "*many"]:
    """The smallest length such that something holds at it and at all longer ones; NaN if there is none."""
    tail = holds.flip(-1).long().cumprod(dim=-1).sum(dim=-1)  # number of consecutive lengths at the end
    known = torch.tensor([torch.nan, *reversed(lengths)], dtype=torch.float64)
    return known[tail]


def _described(model: Any, sequence: GrowingSequence) -> dict[str, Any]:
    """The facts that the provenance states about a sequence."""

    def as_text(ids: Ids) -> str:
        return " ".join(display_tokens(model, torch.tensor([ids]))[0]) if ids else ""

    return {
        "name": sequence.name,
        "content_tokens": len(sequence),
        "prefix": as_text(sequence.prefix),
        "suffix": as_text(sequence.suffix),
        "separators": as_text(tuple(dict.fromkeys(sequence.separators))),
        "separators_after": list(sequence.breaks),
        "ending": "" if sequence.ending is None else as_text((sequence.ending,)),
        "token_ids": {
            part: list(getattr(sequence, part)) for part in ("prefix", "content", "suffix", "separators", "alphabet")
        }
        | {"ending": sequence.ending},
    }
