"""What every measurement on pairs does: run v and v* at many lengths and lay their representations side by side."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge, Distance, Passes, Scale, one_of, positive
from squashlens.errors import InputError, UnsoundModelError
from squashlens.measure._session import Session
from squashlens.model.anatomy import dtype_of, n_blocks, residual_sites
from squashlens.model.branches import Branch, Ids
from squashlens.model.passes import Readings, read
from squashlens.model.proof import TOLERANCE, agree
from squashlens.model.rounding import stored
from squashlens.model.tokens import display_tokens
from squashlens.model.unembed import require_understood
from squashlens.remarks import remark
from squashlens.results import Variable
from squashlens.sequences import Sequence as Tokens
from squashlens.theory.distances import distance, resolution, rms

NOISE = "how far rounding can move D: ‖v − ṽ‖ + ‖v* − ṽ*‖ with ṽ, ṽ* replayed"
NOISE_FLOORS = 3  # a difference of no more than this many noise floors may be rounding


@dataclass(frozen=True)
class Runs:
    """A model, a sequence in it and the lengths asked for, with how passes are to be run."""

    session: Session
    sequence: Tokens
    lengths: tuple[int, ...]
    passes: Passes
    chunk: int | None
    progress: bool

    @classmethod
    def start(
        cls, model: Any, sequence: Any, lengths: Iterable[Any] | None, function: str,
        *, passes: Passes, chunk: int | None, progress: bool, **arguments: Any,
    ) -> "Runs":  # fmt: skip
        """Check model, sequence and lengths; note what the provenance will say."""
        sequence = required(sequence)
        given = range(1, len(sequence) + 1) if lengths is None else list(lengths)
        if not all(isinstance(n, Integral) for n in given):
            raise InputError(f"lengths={given!r} are not whole numbers.", "Give numbers of content tokens.")
        chosen = tuple(map(int, given))
        if not chosen or list(chosen) != sorted(set(chosen)):
            raise InputError(f"lengths={chosen!r} are not increasing numbers.", "Give each length once, in order.")
        longest = [sequence.doubled(n) for n in chosen][-1]  # each refuses a length that is not one
        ids = torch.tensor(longest.ids(sequence.trunk))
        session = Session.start(model, ids, sequence.bos, function, **arguments)
        session = replace(session, facts={**session.facts, "sequence": _described(session.model, sequence)})
        return cls(session, sequence, chosen, passes, chunk, progress)

    @property
    def layers(self) -> list[int]:
        return list(range(n_blocks(self.session.model) + 1))

    def read(self, branches: Sequence[Branch], sites: Sequence[str], **options: Any) -> Readings:
        """Rows of all prompts at all sites, on the trunk that ends in the longest v*."""
        return read(
            self.session.model, self.trunk, branches, sites,
            **{"passes": self.passes, "chunk": self.chunk, "progress": self.progress} | options,
        )  # fmt: skip

    @property
    def trunk(self) -> Ids:
        """Up to the longest length, its last token once more: a constant tail is all trunk."""
        stem = self.sequence.stem(self.lengths[-1]).ids(self.sequence.trunk)
        return (*stem, stem[-1])

    def streams(self, branches: Sequence[Branch], sites: Sequence[str] = (), **options: Any) -> "Streams":
        """v⁽⁰⁾ … v⁽ᴸ⁾ and y of all prompts at their last token; `sites` are read along."""
        model = self.session.model
        own = residual_sites(model)
        readings = self.read(branches, [*own, *sites], **options)
        stacked = torch.stack([readings.values[site] for site in own])
        beside = {site: readings.values[site] for site in sites}
        return Streams(stacked, beside, readings.route, readings.attention)

    def pairs(self, sites: Sequence[str] = (), **options: Any) -> tuple["Streams", "Streams"]:
        """The streams of v and of v* at every length."""
        both = [self.sequence.plain(n) for n in self.lengths] + [self.sequence.doubled(n) for n in self.lengths]
        return self.streams(both, sites, **options).halves()

    def noise(self, pairs: "tuple[Streams, Streams]", how_many: int, ruler: "Ruler", **options: Any) -> "Noise":
        """Replay some lengths one prompt at a time: how far rounding can move D.

        Pairs that were run one prompt at a time are replayed with two copies of each prompt side by side, since the
        same passes would round the same way. Refuses a difference that is more than arithmetic.
        """
        positive(how_many, "replay", "a number of lengths", or_zero=True)
        places = sorted({round(p) for p in np.linspace(0, len(self.lengths) - 1, how_many)})
        chosen = replace(self, lengths=tuple(self.lengths[p] for p in places))
        alone = pairs[0].route.startswith("separate")
        again = chosen.pairs(passes="separate", copies=2 if alone else 1, **options)
        for first, second in zip(pairs, again, strict=True):
            _require_same(first.values[:, places], second.values, dtype_of(self.session.model))
        v, star = (side.values[:, places] for side in pairs)
        return Noise(chosen.lengths, ruler.noise((v, star), (again[0].values, again[1].values), self._roundings()))

    def _roundings(self) -> int:
        """Roundings to float32 that a float64 model may contain: a norm and a softmax in each block, and the last norm.

        They round the same way in every pass, so that no replay shows them.
        """
        return 2 * n_blocks(self.session.model) + 1 if dtype_of(self.session.model) == torch.float64 else 0

    def took(self, *streams: "Streams", **facts: Any) -> Session:
        """The session, its provenance saying how the passes were run, and what else is to be said."""
        how = {"passes": {s.route for s in streams}, "attention_implementation": {s.attention for s in streams}}
        said = {fact: ", ".join(sorted(ways)) for fact, ways in how.items()}
        return replace(self.session, facts={**self.session.facts, **said, **facts})

    def coords(self) -> dict[str, Any]:
        """Coordinates over `layer` and `length`."""
        return {
            "layer": np.array(self.layers),
            "length": np.array(self.lengths),
            "tokens": ("length", np.array([len(self.sequence.plain(n)) for n in self.lengths])),
            "before_separator": ("length", np.array([self.sequence.before_separator(n) for n in self.lengths])),
        }


@dataclass(frozen=True)
class Streams:
    """Representations at the last token of each prompt: `values` is (layer, length, d), its last layer is y."""

    values: Float[Tensor, "layer branch d"]
    beside: dict[str, Tensor]
    route: str
    attention: str

    def halves(self) -> "tuple[Streams, Streams]":
        """The first and the second half of the prompts."""
        half = self.values.shape[1] // 2
        return tuple(  # pyright: ignore[reportReturnType]
            replace(self, values=self.values[:, part], beside={site: rows[part] for site, rows in self.beside.items()})
            for part in (slice(half), slice(half, None))
        )


@dataclass(frozen=True)
class Noise:
    """How far rounding can move D at the lengths replayed, (layer, length); the last layer is y."""

    lengths: tuple[int, ...]
    values: Float[Tensor, "layer length"]

    @property
    def floor(self) -> Float[Tensor, " layer"]:
        """The largest over the lengths replayed: what stands for the lengths that were not."""
        return self.values.amax(dim=-1)


def required(sequence: object) -> Tokens:
    """A sequence, before anything is done with it; anything else is refused."""
    if not isinstance(sequence, Tokens):
        raise InputError(
            f"Expected a sequence, got {type(sequence).__name__}.",
            "Make one: `squashlens.prompts.repeated(model, '1', 64)`.",
        )
    return sequence


def check_choices(*, norm: object, passes: object, scale: object = "absolute") -> None:
    """Refuse what is not a choice, before anything is run."""
    one_of(norm, Distance, "norm")
    one_of(passes, Passes, "passes")
    one_of(scale, Scale, "scale")


def next_token_is_known(model: Bridge) -> bool:
    """Whether the next token can be had from y; where it cannot, a warning says that it is left out."""
    try:
        require_understood(model)
    except UnsoundModelError as error:
        remark(f"The next token is left out. {error}")
        return False
    return True


@dataclass(frozen=True)
class Ruler:
    """How two representations are compared: in which norm, on which scale, rounded to which dtype first."""

    norm: Distance
    scale: Scale
    round_to: torch.dtype | None = None

    @property
    def units(self) -> str:
        return "1" if self.scale == "relative" else "model"

    def rounded(self, v: Tensor) -> Tensor:
        return v if self.round_to is None else stored(v, self.round_to)

    def gap(
        self, v: Float[Tensor, "layer branch d"], w: Float[Tensor, "layer branch d"]
    ) -> Float[Tensor, "layer branch"]:
        """D = ‖v − w‖ for every layer and length, or D ÷ rms(v)."""
        v, w = self.rounded(v), self.rounded(w)
        found = torch.stack([distance(a, b, self.norm) for a, b in zip(v, w, strict=True)])
        return found / torch.stack([rms(a) for a in v]) if self.scale == "relative" else found

    def noise(
        self, pair: "tuple[Tensor, Tensor]", again: "tuple[Tensor, Tensor]", roundings: int = 0
    ) -> Float[Tensor, "layer branch"]:
        """An upper bound on the difference between D of a pair and D̃ of its replay ṽ, ṽ*.

        By the triangle inequality |‖v − v*‖ − ‖ṽ − ṽ*‖| ≤ ‖v − ṽ‖ + ‖v* − ṽ*‖. |D − D̃| itself can be 0 by luck; this
        cannot, since each term is at least half a unit in the last place of its vector: of float32 for every one of
        `roundings` where a float64 model rounds inside. On the relative scale both terms are divided by r = rms(v),
        and (D̃ ÷ r̃) |r̃ − r| ÷ r is added.
        """
        plain = replace(self, scale="absolute")

        def least(row: Tensor) -> Tensor:
            stored = torch.float32 if roundings else row.dtype
            return max(1, roundings) * resolution(row, self.norm, stored)

        found = torch.stack([
            torch.maximum(plain.gap(one, other), torch.stack([least(row) for row in one]))
            for one, other in zip(pair, again, strict=True)
        ]).sum(dim=0)  # fmt: skip
        if self.scale == "absolute":
            return found
        here, there = (torch.stack([rms(self.rounded(row)) for row in side]) for side in (pair[0], again[0]))
        return found / here + self.gap(*again) * (there - here).abs() / here


def with_y(
    name: str, values: Tensor, text: str, units: str, dims: tuple[str, ...] = ("layer", "length")
) -> dict[str, Variable]:
    """Values whose `layer` axis ends in y, as two variables: by layer, and y."""
    axis = dims.index("layer")
    top = values.shape[axis] - 1
    without = tuple(d for d in dims if d != "layer")
    return {
        name: (dims, values.narrow(axis, 0, top), text, units),
        f"{name}_y": (without, values.select(axis, top), f"{text}, y", units),
    }


def _require_same(shared: Tensor, separate: Tensor, dtype: torch.dtype) -> None:
    if not agree(shared, separate, dtype):
        error = (shared.double() - separate.double()).abs().max().item()
        allowed = TOLERANCE[dtype] * separate.abs().max().item()
        raise UnsoundModelError(
            f"Prompts run together and one by one differ by {error:.2g} (arithmetic allows {allowed:.2g}).",
            "Use passes='separate', and report the model's configuration.",
        )


def _described(model: Any, sequence: Tokens) -> dict[str, Any]:
    def shown(ids: Ids) -> str:
        return " ".join(display_tokens(model, torch.tensor([ids]))[0]) if ids else ""

    return {
        "name": sequence.name,
        "content_tokens": len(sequence),
        "prefix": shown(sequence.prefix),
        "suffix": shown(sequence.suffix),
        "separators": shown(tuple(dict.fromkeys(sequence.separators))),
        "separators_after": list(sequence.breaks),
        "ending": "" if sequence.ending is None else shown((sequence.ending,)),
    }
