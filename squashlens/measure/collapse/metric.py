"""How pairs are compared: the run and its pairs, norm, scale and rounding, and the noise floor of a distance."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import TypeAliasType

from squashlens._typing import Distance, DtypeName, Scale, dtype_name, full_name
from squashlens.errors import UnsoundModelError
from squashlens.hooks.rounding import stored
from squashlens.records.labels import MODEL_UNITS, Variable
from squashlens.remarks import remark
from squashlens.run.captures.pairs import (
    Growing,
    PairCapture,
    Pairs,
    Replay,
    SequenceOrCapture,
    Streams,
    pairs_of,
)
from squashlens.run.forward import require_understood
from squashlens.run.run import Run
from squashlens.sequences import GrowingSequence, Ids
from squashlens.theory.distances import NOISE_FLOORS, distance, noise, rms

Dtype = TypeAliasType("Dtype", DtypeName | torch.dtype)  # as a user may give it
NOISE = (
    "how far rounding can move D: ‖v − ṽ‖ + ‖v* − ṽ*‖, with ṽ and ṽ* from a second run"
)


def find_dtype(given: Dtype | None) -> torch.dtype | None:
    """The dtype of a name, a dtype itself, or None."""
    return getattr(torch, full_name(given)) if isinstance(given, str) else given


def next_token_is_known(run: Run) -> bool:
    """Whether the logits of the next token can be computed from y. Warns if not."""
    try:
        require_understood(run)
    except UnsoundModelError as error:
        remark(f"The next token is not compared. {error}")
        return False
    return True


@dataclass(frozen=True)
class Metric:
    """How two representations are compared: the norm, the scale, and the dtype to which they are rounded first."""

    norm: Distance
    scale: Scale = "absolute"
    round_to: torch.dtype | None = None

    @property
    def said(self) -> dict[str, Any]:
        """Norm and scale, as the provenance states them."""
        return {"norm": self.norm, "scale": self.scale}

    @property
    def form(self) -> str | None:
        """The name of the dtype to which representations are rounded, if there is one."""
        return None if self.round_to is None else dtype_name(self.round_to)

    @property
    def units(self) -> str:
        """The units of a distance."""
        return "1" if self.scale == "relative" else MODEL_UNITS

    def distance(self, text: str) -> str:
        """The long name of a distance with this metric: the norm, what the distance is of, and the rounding."""
        return self.stated(f"{self.norm} {text}")

    def derived(self, text: str) -> str:
        """The long name of what was computed from distances, whose units do not tell the scale."""
        return self.stated(
            f"{text}, {self.norm} distances{' ÷ rms(v)' if self.scale == 'relative' else ''}"
        )

    def stated(self, text: str) -> str:
        """The long name of what depends on the rounding alone."""
        return text if self.form is None else f"{text}, rounded to {self.form}"

    def rounded(self, v: Tensor) -> Tensor:
        """Representations rounded to `round_to`, if there is one."""
        return v if self.round_to is None else stored(v, self.round_to)

    def gap(
        self, v: Float[Tensor, "layer branch d"], w: Float[Tensor, "layer branch d"]
    ) -> Float[Tensor, "layer branch"]:
        """The distance D = ‖v − w‖ at every layer and length, divided by rms(v) on the relative scale."""
        v, w = self.rounded(v), self.rounded(w)
        found = torch.stack(
            [distance(a, b, self.norm) for a, b in zip(v, w, strict=True)]
        )
        return found / self.size(v) if self.scale == "relative" else found

    def size(self, v: Float[Tensor, "layer branch d"]) -> Float[Tensor, "layer branch"]:
        """The root mean square of the coordinates of v at every layer and length."""
        return torch.stack([rms(self.rounded(row)) for row in v])

    def between(self, pairs: PairCapture) -> Float[Tensor, "layer branch"]:
        """The distance D of every captured pair; the last layer is y."""
        return self.gap(pairs.v.values, pairs.star.values)

    def clear(self, pairs: PairCapture) -> Bool[Tensor, "layer branch"]:
        """Whether D is above `NOISE_FLOORS` noise floors; false if no length was replayed."""
        floor = self.floor(pairs.v, pairs.star, pairs.replay)
        return self.between(pairs) > NOISE_FLOORS * floor[:, None]

    def floor(
        self, v: Streams, star: Streams, replay: Replay | None
    ) -> Float[Tensor, " layer"]:
        """The largest noise over the replayed lengths, which is used for all lengths; NaN if none was replayed."""
        if replay is None:
            return torch.full((len(v.values),), torch.nan, dtype=torch.float64)
        return self.noise(v, star, replay).amax(dim=-1)

    def noise(
        self, v: Streams, star: Streams, replay: Replay
    ) -> Float[Tensor, "layer branch"]:
        """An upper bound on |D − D̃| at the replayed lengths, where D̃ is the distance of the second run's ṽ and ṽ*.

        By the triangle inequality |‖v − v*‖ − ‖ṽ − ṽ*‖| ≤ ‖v − ṽ‖ + ‖v* − ṽ*‖. |D − D̃| itself can be 0 by chance. The
        bound cannot (`squashlens.theory.distances.noise`). On the relative scale both terms are divided by
        r = rms(v), and (D̃ ÷ r̃) |r̃ − r| ÷ r is added.
        """
        places = list(replay.places)
        pair, again = (
            (v.values[:, places], star.values[:, places]),
            (replay.v, replay.star),
        )
        moved = [
            noise(self.rounded(one), self.rounded(two), self.norm, replay.roundings)
            for one, two in zip(pair, again, strict=True)
        ]
        found = torch.stack(moved).sum(dim=0)
        if self.scale == "absolute":
            return found
        here, there = self.size(pair[0]), self.size(again[0])
        return found / here + self.gap(*again) * (there - here).abs() / here


def with_y(
    name: str,
    values: Tensor,
    text: str,
    units: str,
    dims: tuple[str, ...] = ("layer", "length"),
) -> dict[str, Variable]:
    """Two variables from values whose last layer is y: one over the layers, and one for y."""
    axis = dims.index("layer")
    top = values.shape[axis] - 1
    without = tuple(d for d in dims if d != "layer")
    return {
        name: (dims, values.narrow(axis, 0, top), text, units),
        f"{name}_y": (without, values.select(axis, top), f"{text}, y", units),
    }


REPLAYED = (
    4  # lengths that are run a second time for the noise floor, if no capture is given
)


def take_pairs(
    run: Run,
    given: SequenceOrCapture,
    pairs: Pairs,
    *,
    patterns: bool = False,
    **arguments: Any,
) -> tuple[Run, PairCapture]:
    """The run of a measurement of pairs, and the pairs: those of a capture, or of a sequence that is run now.

    A capture without the `patterns` that are needed raises.
    """
    captured = pairs_of(run, given, pairs, patterns=patterns)
    run = with_sequence(run, captured, **arguments)
    return with_passes(run, captured.v, capture=captured.options), captured


def with_sequence(run: Run, of: PairCapture | Growing, **arguments: Any) -> Run:
    """The run with the longest prompt of a growing sequence, whose provenance describes the sequence."""
    run = run.with_prompts(of.ids, **arguments)
    return run.knowing(sequence=_describe(run, of.sequence))


def with_passes(run: Run, *streams: Streams, **facts: Any) -> Run:
    """The run with further facts in its provenance: how the passes were run, and `facts`."""
    routes, attention = (
        {getattr(s, part) for s in streams} for part in ("route", "attention")
    )
    ways = {
        "passes": ", ".join(sorted(routes)),
        "attention_implementation": ", ".join(sorted(attention)),
    }
    return run.knowing(**ways, **facts)


def coords(of: PairCapture | Growing) -> dict[str, Any]:
    """The coordinates of results over `layer` and `length`."""
    return {
        "layer": np.array(of.layers),
        "length": np.array(of.lengths),
        "tokens": ("length", np.array([len(of.sequence.plain(n)) for n in of.lengths])),
        "before_separator": (
            "length",
            np.array([of.sequence.before_separator(n) for n in of.lengths]),
        ),
    }


def _describe(run: Run, sequence: GrowingSequence) -> dict[str, Any]:
    """The facts that the provenance states about a sequence."""

    def as_text(ids: Ids) -> str:
        return " ".join(run.tokens_of(torch.tensor([ids]))[0]) if ids else ""

    return {
        "name": sequence.name,
        "content_tokens": len(sequence),
        "prefix": as_text(sequence.prefix),
        "suffix": as_text(sequence.suffix),
        "separators": as_text(tuple(dict.fromkeys(sequence.separators))),
        "separators_after": list(sequence.breaks),
        "ending": "" if sequence.ending is None else as_text((sequence.ending,)),
        "token_ids": {
            part: list(getattr(sequence, part))
            for part in ("prefix", "content", "suffix", "separators", "alphabet")
        }
        | {"ending": sequence.ending},
    }
