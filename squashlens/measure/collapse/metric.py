"""How pairs are compared: the run and its pairs, norm and scale, and the noise floor of a distance."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from squashlens._typing import Distance, Scale
from squashlens.errors import UnsoundModelError
from squashlens.records.labels import MODEL_UNITS
from squashlens.remarks import remark
from squashlens.run.captures import pairs as captures
from squashlens.run.captures.pairs import Growing, PairCapture, Replay, Streams
from squashlens.run.forward import require_understood
from squashlens.run.run import Run
from squashlens.sequences import GrowingSequence, Ids
from squashlens.theory.distances import NOISE_FLOORS, distance, noise, rms

NOISE = (
    "how far rounding can move D: ‖v − ṽ‖ + ‖v* − ṽ*‖, with ṽ and ṽ* from a second run"
)
REPLAYED = 4  # lengths that are run a second time for the noise floor by default


def evenly_spaced(sequence: GrowingSequence) -> range:
    """At most 16 lengths from the last one down: what takes a pass for each length measures these by default."""
    step = -(-len(sequence) // 16)  # rounded up
    return range(len(sequence), 0, -step)


def next_token_is_known(run: Run) -> bool:
    """Whether the logits of the next token can be computed from y. Warns if not."""
    try:
        require_understood(run)
    except UnsoundModelError as error:
        remark(f"The next token is not compared. {error}")
        return False
    return True


def layer_by_layer(
    measure: Callable[..., Tensor], *streams: Float[Tensor, "layer branch ..."]
) -> Float[Tensor, "layer ..."]:
    """A measure of the rows of each layer, stacked: ``measure(v[0], w[0])`` of the first layer, and so on.

    Measures compute in float64, in which copies of all layers at once would need much memory.
    """
    return torch.stack([measure(*rows) for rows in zip(*streams, strict=True)])


@dataclass(frozen=True)
class Metric:
    """How two representations are compared: the norm and the scale."""

    norm: Distance
    scale: Scale = "absolute"

    @property
    def units(self) -> str:
        """The units of a distance."""
        return "1" if self.scale == "relative" else MODEL_UNITS

    def distance(self, text: str) -> str:
        """The long name of a distance with this metric: the norm, and what the distance is of."""
        return f"{self.norm} {text}"

    def derived(self, text: str) -> str:
        """The long name of what was computed from distances, whose units do not tell the scale."""
        divided = " ÷ rms(v)" if self.scale == "relative" else ""
        return f"{text}, {self.norm} distances{divided}"

    def gap(
        self, v: Float[Tensor, "layer branch d"], w: Float[Tensor, "layer branch d"]
    ) -> Float[Tensor, "layer branch"]:
        """The distance ‖v − w‖ at every layer and length, divided by rms(v) on the relative scale."""
        gap = layer_by_layer(partial(distance, norm=self.norm), v, w)
        if self.scale == "relative":
            return gap / self.size(v)
        return gap

    def size(self, v: Float[Tensor, "layer branch d"]) -> Float[Tensor, "layer branch"]:
        """The root mean square of the coordinates of v at every layer and length."""
        return layer_by_layer(rms, v)

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
        v_rows = v.values[:, places]
        star_rows = star.values[:, places]
        moved = noise(v_rows, replay.v, self.norm, replay.roundings)
        moved = moved + noise(star_rows, replay.star, self.norm, replay.roundings)
        if self.scale == "absolute":
            return moved
        r = self.size(v_rows)
        r_again = self.size(replay.v)
        relative_gap = self.gap(replay.v, replay.star)  # D̃ ÷ r̃
        return moved / r + relative_gap * (r_again - r).abs() / r


def take_pairs(
    run: Run,
    given: captures.SequenceOrCapture,
    wanted: captures.Pairs,
    *,
    patterns: bool = False,
) -> tuple[Run, PairCapture]:
    """The run, whose provenance describes sequence, passes and capture; and the pairs of v and v*.

    The pairs are those of a capture, or of a sequence that is run now as `wanted` says.
    With `patterns`, attention patterns and head outputs are needed too: a capture without them raises.
    """
    pairs = captures.pairs_of(run, given, wanted, patterns=patterns)
    run = with_sequence(run, pairs)
    # v* was read together with v.
    return with_passes(run, pairs.v, capture=pairs.options), pairs


def with_sequence(run: Run, of: PairCapture | Growing, **arguments: Any) -> Run:
    """The run with the longest prompt of a growing sequence, whose provenance describes the sequence."""
    run = run.with_prompts(of.ids, **arguments)
    return run.knowing(sequence=_facts_of_sequence(run, of.sequence))


def with_passes(run: Run, *streams: Streams, **facts: Any) -> Run:
    """The run whose provenance says how the passes of these streams were run, and states `facts`."""
    routes = {stream.route for stream in streams}
    attentions = {stream.attention for stream in streams}
    return run.knowing(
        passes=", ".join(sorted(routes)),
        attention_implementation=", ".join(sorted(attentions)),
        **facts,
    )


def coords(of: PairCapture | Growing) -> dict[str, Any]:
    """The coordinates of results over `layer` and `length`; `length` counts content tokens, and `tokens` all."""
    before_separator = [of.sequence.before_separator(n) for n in of.lengths]
    return {
        "layer": np.array(of.layers),
        "length": np.array(of.lengths),
        "tokens": ("length", n_tokens(of.sequence, of.lengths)),
        "before_separator": ("length", np.array(before_separator)),
    }


def n_tokens(sequence: GrowingSequence, lengths: Iterable[int]) -> np.ndarray:
    """The number of tokens of v at each length."""
    return np.array([len(sequence.plain(length)) for length in lengths])


def activations_at(
    streams: Streams, sites: Iterable[str]
) -> Float[Tensor, "block branch ..."]:
    """What was captured beside the streams at a hook point of each block."""
    return torch.stack([streams.others[site] for site in sites])


def _facts_of_sequence(run: Run, sequence: GrowingSequence) -> dict[str, Any]:
    """What the provenance states about a sequence: its parts as texts, and their token ids."""

    def as_text(ids: Ids) -> str:
        if not ids:
            return ""
        return " ".join(run.tokens_of(torch.tensor([ids]))[0])

    ending = () if sequence.ending is None else (sequence.ending,)
    token_ids: dict[str, Any] = {}
    for part in ("prefix", "content", "suffix", "separators", "alphabet"):
        token_ids[part] = list(getattr(sequence, part))
    return {
        "name": sequence.name,
        "content_tokens": len(sequence),
        "prefix": as_text(sequence.prefix),
        "suffix": as_text(sequence.suffix),
        "separators": as_text(tuple(dict.fromkeys(sequence.separators))),
        "separators_after": list(sequence.breaks),
        "ending": as_text(ending),
        "token_ids": token_ids | {"ending": sequence.ending},
    }
