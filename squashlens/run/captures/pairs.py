"""Run a growing sequence once with its pairs: v and v* of Theorem 4.2 at every length, read at their last tokens.

A `Growing` states what is run and how. `capture_pairs` runs everything that measurements of collapse need: the pairs,
the baseline pairs, and a second run of some pairs, whose differences show the effect of rounding.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from random import Random
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import TypeAliasType

from squashlens._typing import Baselines, Passes, distinct, positive, several
from squashlens.errors import InputError, UnsoundModelError
from squashlens.model.agreement import agree, difference
from squashlens.model.anatomy import (
    pattern_site,
    unseen_roundings,
)
from squashlens.model.text.tokens import checked_prompts, require_same_vocabulary
from squashlens.run.activations import streams_at
from squashlens.run.captured import CaptureBase, model_state
from squashlens.run.passes import read
from squashlens.run.run import Run
from squashlens.sequences import Branch, GrowingSequence, Ids

VALUE = "blocks.0.attn.hook_v"
OUTPUT = "blocks.0.attn.hook_out"


@dataclass(frozen=True, eq=False)
class Streams:
    """Representations at last tokens (layer and y, length, d), other activations by hook point, and how they ran."""

    values: Float[Tensor, "layer branch d"] = field(repr=False)
    others: dict[str, Tensor] = field(repr=False)
    route: str
    attention: str

    @property
    def ran_alone(self) -> bool:
        """Whether each prompt had a pass of its own."""
        return self.route.startswith("separate")

    def at(self, places: Any) -> "Streams":
        """The prompts at some indices, given as a slice or a list."""
        others = {site: rows[places] for site, rows in self.others.items()}
        return replace(self, values=self.values[:, places], others=others)

    def on(self, device: torch.device) -> "Streams":
        """A copy whose tensors are on a device, where many sorts and norms are fast."""
        others = {site: rows.to(device) for site, rows in self.others.items()}
        return replace(self, values=self.values.to(device), others=others)


@dataclass(frozen=True)
class Growing:
    """A sequence, its lengths, the ids of the longest v*, and how the passes are run."""

    run: Run
    sequence: GrowingSequence
    lengths: tuple[int, ...]
    ids: Int[Tensor, "prompt position"]
    passes: Passes = "auto"

    def __post_init__(self) -> None:
        require_same_vocabulary(self.run.model, self.sequence)

    @property
    def layers(self) -> list[int]:
        return list(range(self.run.n_blocks + 1))

    @property
    def trunk(self) -> Ids:
        """The longest sequence with its last token repeated, so that pairs in a constant tail need no branch."""
        stem = self.sequence.stem(self.lengths[-1]).ids(self.sequence.trunk)
        return (*stem, stem[-1])

    def streams(
        self, branches: Sequence[Branch], sites: Sequence[str] = (), **options: Any
    ) -> Streams:
        """v⁽⁰⁾ … v⁽ᴸ⁾ and y of all prompts at their last token, and the activations at `sites`.

        `options` are those of `run.passes.read`.
        """
        layers_and_y = self.run.sites()
        all_sites = layers_and_y + list(sites)
        options = {"passes": self.passes} | options
        readings = read(self.run, self.trunk, branches, all_sites, **options)
        streams = torch.stack([readings.values[site] for site in layers_and_y])
        others = {site: readings.values[site] for site in sites}
        return Streams(streams, others, readings.route, readings.attention)

    def pairs(
        self, sites: Sequence[str] = (), **options: Any
    ) -> tuple[Streams, Streams]:
        """The streams of v and of v* at every length."""
        v = [self.sequence.plain(n) for n in self.lengths]
        star = [self.sequence.doubled(n) for n in self.lengths]
        both = self.streams(v + star, sites, **options)  # together, to share passes
        return both.at(slice(len(v))), both.at(slice(len(v), None))

    def replayed(self, pairs: tuple[Streams, Streams], how_many: int) -> "Replay":
        """Run `how_many` lengths again, evenly spaced, and raise an error if more than rounding differs.

        `pairs` are the streams of v and v* from the first run. A pass of another shape rounds otherwise: lengths that
        shared a pass are run alone, and those that ran alone are run as two copies side by side.
        """
        # Indices of the lengths, each once: there may be fewer lengths than are asked for.
        last = len(self.lengths) - 1
        evenly = np.linspace(0, last, how_many).round().astype(int)
        places = np.unique(evenly).tolist()
        chosen = replace(self, lengths=tuple(self.lengths[place] for place in places))
        v, star = pairs
        copies = 2 if v.ran_alone else 1
        same_sites = list(v.others)
        v_again, star_again = chosen.pairs(same_sites, passes="separate", copies=copies)
        _require_same(v.values[:, places], v_again.values, self.run.dtype)
        _require_same(star.values[:, places], star_again.values, self.run.dtype)
        return Replay(
            places=tuple(places),
            v=v_again.values,
            star=star_again.values,
            roundings=unseen_roundings(self.run.model),
        )


@dataclass(frozen=True)
class Replay:
    """v and v* of a second run at the lengths with indices `places`, and the roundings that it does not show."""

    places: tuple[int, ...]
    v: Float[Tensor, "layer length d"]
    star: Float[Tensor, "layer length d"]
    roundings: int


@dataclass(frozen=True, kw_only=True, eq=False)
class PairCapture(CaptureBase):
    """The activations of a growing sequence at the last tokens of its pairs; `capture` makes one.

    Measurements accept it in place of the sequence. What was not captured is None or empty.

    Attributes:
        sequence, lengths, ids: the sequence, the captured lengths in content tokens, and the ids of the longest v*.
        v, star: residual streams of v and v*.
        contrast: streams of the sequence with another last token.
        unrelated: streams of sequences with other content.
        replay: v and v* from a second run.
        values: values of block 0 along the trunk, (position, group, value).
        patterns: whether attention patterns and head outputs were captured.
        options: the other arguments of `capture`.
    """

    sequence: GrowingSequence
    lengths: tuple[int, ...]
    v: Streams
    star: Streams
    contrast: Streams | None
    unrelated: tuple[Streams, ...]
    replay: Replay | None
    values: Tensor | None
    patterns: bool
    options: dict[str, Any]

    def __repr__(self) -> str:
        return f"<PairCapture of {self.sequence.name} at {len(self.lengths)} lengths>"

    @property
    def layers(self) -> list[int]:
        return list(range(len(self.v.values) - 1))  # the last entry is y

    def on(self, device: torch.device) -> "PairCapture":
        """A copy whose streams are on a device, for a measurement that has called `require_current` before.

        The copy itself does not show earlier edits.
        """
        replay = self.replay
        if replay is not None:
            v = replay.v.to(device)
            star = replay.star.to(device)
            replay = replace(replay, v=v, star=star)
        return replace(
            self,
            v=self.v.on(device),
            star=self.star.on(device),
            contrast=self.contrast and self.contrast.on(device),
            unrelated=tuple(streams.on(device) for streams in self.unrelated),
            replay=replay,
        )


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Which pairs of a sequence are run, and how: keywords of `capture`, which describes them."""

    lengths: Iterable[int] | None = None
    baselines: Baselines = ()
    n_samples: int = 3
    noise_lengths: int = 4
    passes: Passes = "auto"
    seed: int = 0


def refuse_keywords_of_capture(arguments: Mapping[str, Any]) -> None:
    """Raise an error if the arguments of a call have keywords of `capture` beside a capture."""
    if not any(isinstance(value, PairCapture) for value in arguments.values()):
        return
    for option in fields(Pairs):
        if option.name in arguments:
            raise InputError(
                f"{option.name}= says how a sequence is run, and a capture was given, which has been run.",
                f"Give {option.name}= to `capture`, or give the sequence in place of the capture.",
            )


# What measurements of collapse take.
SequenceOrCapture = TypeAliasType("SequenceOrCapture", GrowingSequence | PairCapture)


def pairs_of(
    run: Run,
    given: SequenceOrCapture,
    pairs: Pairs,
    *,
    patterns: bool,
) -> PairCapture:
    """The capture that a measurement was given, after a check; a sequence is captured now."""
    if not isinstance(given, PairCapture):
        return capture_pairs(run, given, pairs, patterns=patterns)
    given.require_current(run.model)
    if patterns and not given.patterns:
        raise InputError(
            f"{run.function} needs attention patterns and head outputs, which this capture does not have.",
            "Capture the sequence with keep=('residuals', 'patterns').",
        )
    return given


def sequence_of(given: SequenceOrCapture) -> GrowingSequence:
    """The sequence, or the sequence of a capture."""
    return given.sequence if isinstance(given, PairCapture) else given


def passes_of(given: SequenceOrCapture) -> Passes:
    """How the passes of a capture were run, for running its sequence again in the same way."""
    return given.options["passes"] if isinstance(given, PairCapture) else "auto"


def prepare_growing(
    run: Run,
    given: SequenceOrCapture,
    lengths: Iterable[int] | None,
    passes: Passes,
) -> Growing:
    """Check sequence and lengths before anything is run; a capture gives its sequence and its lengths."""
    sequence = sequence_of(given)
    if lengths is None:
        lengths = range(1, len(sequence) + 1)
        if isinstance(given, PairCapture):
            lengths = given.lengths
    chosen = distinct(tuple(sorted(lengths)), "lengths")
    # Each raises an error for a length outside the sequence. The last one is the longest.
    stars = [sequence.doubled(n) for n in chosen]
    longest_ids = stars[-1].ids(sequence.trunk)
    ids = checked_prompts(run.model, torch.tensor([longest_ids]))
    return Growing(run, sequence, chosen, ids, passes)


def capture_pairs(
    run: Run, sequence: GrowingSequence, pairs: Pairs, *, patterns: bool
) -> PairCapture:
    """Capture the pairs of a growing sequence, and attention patterns and head outputs if asked for."""
    positive(pairs.n_samples, "n_samples", "a number of sequences")
    positive(pairs.noise_lengths, "noise_lengths", "a number of lengths", or_zero=True)
    growing = prepare_growing(run, sequence, pairs.lengths, pairs.passes)
    baselines = sorted(several(pairs.baselines))
    v, star = growing.pairs(_attention_sites(run) if patterns else ())
    contrast = replay = None
    unrelated: list[Streams] = []
    if "contrast" in baselines:
        other_ends = [growing.sequence.contrast(n) for n in growing.lengths]
        contrast = growing.streams(other_ends)
    if "unrelated" in baselines:
        # Another random stream than the one of a sequence with this seed.
        rng = Random(f"unrelated {pairs.seed}")
        for _ in range(pairs.n_samples):
            other = replace(growing, sequence=growing.sequence.unrelated(rng))
            plain = [other.sequence.plain(n) for n in other.lengths]
            unrelated.append(other.streams(plain))
    if pairs.noise_lengths:
        replay = growing.replayed((v, star), pairs.noise_lengths)
    options = vars(pairs) | {"baselines": baselines}
    del options["lengths"]
    return PairCapture(
        sequence=growing.sequence,
        lengths=growing.lengths,
        ids=growing.ids,
        v=v,
        star=star,
        contrast=contrast,
        unrelated=tuple(unrelated),
        replay=replay,
        values=_values_along(growing) if patterns else None,
        patterns=patterns,
        options=options,
        **model_state(run.model),
    )


def branch_sites(run: Run, block: int) -> list[str]:
    """The hook points of what attention, and the MLP if there is one, add to the residual stream of a block."""
    attention = f"blocks.{block}.hook_attn_out"
    mlp = f"blocks.{block}.hook_mlp_out"
    return [attention, mlp] if mlp in run.model.hook_dict else [attention]


def head_site(block: int) -> str:
    """The hook point of the outputs of a block's attention heads."""
    return f"blocks.{block}.attn.hook_z"


def _attention_sites(run: Run) -> list[str]:
    """Hook points of patterns, head outputs and stream additions of all blocks, and values and output of block 0."""
    sites: list[str] = []
    for block in range(run.n_blocks):
        sites += [pattern_site(block), head_site(block)]
        sites += branch_sites(run, block)
    sites += [VALUE, OUTPUT]
    return list(dict.fromkeys(sites))  # each once


def _values_along(growing: Growing) -> Tensor | None:
    """Block 0's values at every position before the last token of the longest v, in its own pass."""
    run = growing.run
    v = growing.ids[:, :-1]  # v* has one token more
    if v.shape[1] < 2:
        return None
    return streams_at(run, v.to(run.device), [VALUE])[VALUE][0, :-1].cpu()


def _require_same(shared: Tensor, separate: Tensor, dtype: torch.dtype) -> None:
    """Raise an error if the streams of two runs differ by more than rounding."""
    if not agree(shared, separate, dtype):
        error, allowed = difference(shared, separate, dtype)
        raise UnsoundModelError(
            f"Prompts in a shared pass and one by one differ by {error:.2g} (rounding explains {allowed:.2g}).",
            "Use passes='separate', and report the model's configuration.",
        )
