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
from squashlens.run.captured import CaptureBase, model_state
from squashlens.run.forward import forward
from squashlens.run.passes import read
from squashlens.run.run import Run
from squashlens.sequences import Branch, GrowingSequence, Ids

VALUE, OUTPUT = (f"blocks.0.attn.{name}" for name in ("hook_v", "hook_out"))


@dataclass(frozen=True, eq=False)
class Streams:
    """Representations at last tokens (layer and y, length, d), other activations by hook point, and how they ran."""

    values: Float[Tensor, "layer branch d"] = field(repr=False)
    others: dict[str, Tensor] = field(repr=False)
    route: str
    attention: str

    def at(self, places: Any) -> "Streams":
        """The prompts at some indices, given as a slice or a list."""
        others = {site: rows[places] for site, rows in self.others.items()}
        return replace(self, values=self.values[:, places], others=others)

    def on(self, device: torch.device) -> "Streams":
        """The same on a device, where many sorts and norms are fast."""
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
        """v⁽⁰⁾ … v⁽ᴸ⁾ and y of all prompts at their last token, and the activations at `sites`."""
        own = self.run.sites()
        how: dict[str, Any] = {"passes": self.passes} | options
        readings = read(self.run, self.trunk, branches, [*own, *sites], **how)
        stacked = torch.stack([readings.values[site] for site in own])
        return Streams(
            stacked,
            {s: readings.values[s] for s in sites},
            readings.route,
            readings.attention,
        )

    def pairs(
        self, sites: Sequence[str] = (), **options: Any
    ) -> tuple[Streams, Streams]:
        """The streams of v and of v* at every length."""
        both = [
            form(n)
            for form in (self.sequence.plain, self.sequence.doubled)
            for n in self.lengths
        ]
        found, half = self.streams(both, sites, **options), len(self.lengths)
        return found.at(slice(half)), found.at(slice(half, None))

    def replayed(
        self, pairs: tuple[Streams, Streams], how_many: int, **options: Any
    ) -> "Replay":
        """Run some lengths again, alone or, if they ran alone, in two copies, which round otherwise, and compare."""
        places = sorted(
            {round(p) for p in np.linspace(0, len(self.lengths) - 1, how_many)}
        )
        chosen = replace(self, lengths=tuple(self.lengths[p] for p in places))
        alone = pairs[0].route.startswith("separate")
        again = chosen.pairs(
            [*pairs[0].others], passes="separate", copies=2 if alone else 1, **options
        )
        for first, second in zip(pairs, again, strict=True):
            _require_same(first.values[:, places], second.values, self.run.dtype)
        return Replay(
            tuple(places),
            again[0].values,
            again[1].values,
            unseen_roundings(self.run.model),
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

    sequence: GrowingSequence = field(repr=False)
    lengths: tuple[int, ...]
    v: Streams = field(repr=False)
    star: Streams = field(repr=False)
    contrast: Streams | None = field(repr=False)
    unrelated: tuple[Streams, ...] = field(repr=False)
    replay: Replay | None = field(repr=False)
    values: Tensor | None = field(repr=False)
    patterns: bool
    options: dict[str, Any]

    def contents(self) -> Iterable[Tensor]:
        every = [self.v, self.star, self.contrast, *self.unrelated]
        found = [self.ids]
        for streams in every:
            if streams is not None:
                found += [streams.values, *streams.others.values()]
        if self.replay is not None:
            found += [self.replay.v, self.replay.star]
        return found if self.values is None else [*found, self.values]

    @property
    def layers(self) -> list[int]:
        return list(range(len(self.v.values) - 1))  # the last entry is y

    def on(self, device: torch.device) -> "PairCapture":
        """The same on a device; it is not checked again."""
        replay = self.replay and replace(
            self.replay, v=self.replay.v.to(device), star=self.replay.star.to(device)
        )
        contrast, unrelated = (
            self.contrast and self.contrast.on(device),
            tuple(s.on(device) for s in self.unrelated),
        )
        v, star = self.v.on(device), self.star.on(device)
        return replace(
            self, v=v, star=star, contrast=contrast, unrelated=unrelated, replay=replay
        )

    def growing(self, run: Run) -> Growing:
        """The same sequence at the same lengths, for running it again under hooks."""
        return Growing(run, self.sequence, self.lengths, self.ids, passes_of(self))


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
    """Raise an error for keywords of `capture` beside a capture."""
    given = [one.name for one in fields(Pairs) if one.name in arguments]
    if given and any(
        isinstance(argument, PairCapture) for argument in arguments.values()
    ):
        raise InputError(
            f"{given[0]}= says how a sequence is run, and a capture was given, which has been run.",
            f"Give {given[0]}= to `capture`, or give the sequence in place of the capture.",
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


def sequence_of(given: object) -> GrowingSequence:
    """The sequence, or the sequence of a capture; raises an error for anything else."""
    if isinstance(given, PairCapture):
        return given.sequence
    if not isinstance(given, GrowingSequence):
        raise InputError(
            f"Expected a growing sequence, got {type(given).__name__}.",
            "Make one: `squashlens.prompts.repeated(model, '1', 64)`.",
        )
    return given


def passes_of(given: SequenceOrCapture) -> Passes:
    """How the passes of a capture were run, for running its sequence again in the same way."""
    return given.options["passes"] if isinstance(given, PairCapture) else "auto"


def prepare_growing(
    run: Run, given: object, lengths: Iterable[int] | None, passes: Passes
) -> Growing:
    """Check sequence and lengths before anything is run; a capture gives its sequence and its lengths."""
    sequence = sequence_of(given)
    if lengths is None:
        lengths = (
            given.lengths
            if isinstance(given, PairCapture)
            else range(1, len(sequence) + 1)
        )
    chosen = distinct(tuple(sorted(lengths)), "lengths")
    longest = [sequence.doubled(n) for n in chosen][
        -1
    ]  # raises an error for a length outside the sequence
    ids = checked_prompts(run.model, torch.tensor([longest.ids(sequence.trunk)]))
    return Growing(run, sequence, chosen, ids, passes)


def capture_pairs(
    run: Run, sequence: GrowingSequence, pairs: Pairs, *, patterns: bool
) -> PairCapture:
    """Capture the pairs of a growing sequence, and attention patterns and head outputs if asked for."""
    positive(pairs.n_samples, "n_samples", "a number of sequences")
    positive(pairs.noise_lengths, "noise_lengths", "a number of lengths", or_zero=True)
    growing = prepare_growing(run, sequence, pairs.lengths, pairs.passes)
    baselines = sorted(several(pairs.baselines))
    contrasts = (
        [growing.sequence.contrast(n) for n in growing.lengths]
        if "contrast" in baselines
        else []
    )
    v, star = growing.pairs(_attention_sites(growing.run) if patterns else ())
    rng = Random(
        f"unrelated {pairs.seed}"
    )  # another random stream than the one of a sequence with this seed
    draws = range(pairs.n_samples if "unrelated" in baselines else 0)
    unrelated = [
        replace(growing, sequence=growing.sequence.unrelated(rng)) for _ in draws
    ]
    return PairCapture(
        sequence=growing.sequence,
        lengths=growing.lengths,
        ids=growing.ids,
        v=v,
        star=star,
        contrast=growing.streams(contrasts) if contrasts else None,
        unrelated=tuple(
            own.streams([own.sequence.plain(n) for n in own.lengths])
            for own in unrelated
        ),
        replay=growing.replayed((v, star), pairs.noise_lengths)
        if pairs.noise_lengths
        else None,
        values=_values_along(growing) if patterns else None,
        patterns=patterns,
        options={
            name: value for name, value in vars(pairs).items() if name != "lengths"
        }
        | {"baselines": baselines},
        **model_state(run.model),
    ).sealed()


def branch_sites(run: Run, block: int) -> list[str]:
    """The hook points of what attention, and the MLP if there is one, add to the residual stream of a block."""
    both = (f"blocks.{block}.{name}" for name in ("hook_attn_out", "hook_mlp_out"))
    return [
        site
        for site in both
        if site in run.model.hook_dict or site.endswith("attn_out")
    ]


def head_site(block: int) -> str:
    """The hook point of the outputs of a block's attention heads."""
    return f"blocks.{block}.attn.hook_z"


def _attention_sites(run: Run) -> list[str]:
    """Hook points of patterns, head outputs and stream additions of all blocks, and values and output of block 0."""
    blocks = range(run.n_blocks)
    sites = [
        site
        for b in blocks
        for site in (pattern_site(b), head_site(b), *branch_sites(run, b))
    ]
    return list(dict.fromkeys([*sites, VALUE, OUTPUT]))


def _values_along(growing: Growing) -> Tensor | None:
    """Block 0's values at every position before the last token of the longest v, in its own pass."""
    v = growing.ids[:, :-1].to(growing.run.device)
    if v.shape[1] < 2:
        return None
    kept: list[Tensor] = []
    forward(
        growing.run,
        v,
        [(VALUE, lambda values: kept.append(values[0, :-1].detach().cpu()))],
    )
    return kept[0]


def _require_same(shared: Tensor, separate: Tensor, dtype: torch.dtype) -> None:
    if not agree(shared, separate, dtype):
        error, allowed = difference(shared, separate, dtype)
        raise UnsoundModelError(
            f"Prompts in a shared pass and one by one differ by {error:.2g} (rounding explains {allowed:.2g}).",
            "Use passes='separate', and report the model's configuration.",
        )
