"""A growing sequence in token space, and the pair of Theorem 4.2 at each of its lengths.

    prefix  content₁ … content_k separator content_{k+1} … content_n  suffix

A length counts *content* tokens (digits, words); separators, prefix and suffix are extra. `squashlens.prompts`
makes sequences.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field, fields, replace
from random import Random

import torch
from jaxtyping import Int
from torch import Tensor

from squashlens._typing import Bos, positive
from squashlens.arguments import validated
from squashlens.errors import InputError
from squashlens.model.branches import Branch, Ids


@validated
@dataclass(frozen=True)
class Pair:
    """v = [x, a] and v* = [x, a, a], each followed by the same `suffix` tokens, as ids with their prefix.

    Refuses two sequences of which the second is not the first with its last token repeated, such as
    neighbouring prefixes of a sequence whose next token differs.
    """

    v: Ids
    v_star: Ids
    suffix: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.suffix < len(self.v):
            raise InputError(f"A suffix of {self.suffix} tokens leaves nothing to repeat.", "Make it shorter.")
        cut = len(self.v) - self.suffix
        stem, tail = self.v[:cut], self.v[cut:]
        if self.v_star != (*stem, stem[-1], *tail):
            raise InputError(
                "These two are no pair: v* is not v with its last token repeated before the suffix.",
                "Let `Sequence.pair(n)` build it; the next prefix of a longer sequence is a pair only in a "
                "constant tail.",
            )

    def tensors(self) -> tuple[Int[Tensor, "..."], Int[Tensor, "..."]]:
        """v and v* as id tensors."""
        return torch.tensor(self.v), torch.tensor(self.v_star)


@validated
@dataclass(frozen=True)
class Sequence:
    """A growing sequence in token space. Make one with the functions of this module.

    `content` are the tokens that a length counts; after `breaks[k]` of them stands `separators[k]`. With an
    `ending`, the last content token of every length is that one (the paper's figure 5b ends in ones).
    `alphabet` is what contrasts and unrelated sequences are drawn from; `bos` is how the prefix begins.
    """

    name: str
    content: Ids
    alphabet: Ids
    prefix: Ids = ()
    suffix: Ids = ()
    breaks: Ids = ()
    separators: Ids = ()
    ending: int | None = None
    bos: Bos = "family"
    trunk: Ids = field(init=False, repr=False, compare=False)
    _starts: Ids = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.content:
            raise InputError("The sequence has no content.", "Ask for a length of at least 1.")
        if len(self.breaks) != len(self.separators):
            raise InputError(
                f"{len(self.breaks)} breaks and {len(self.separators)} separators do not match.", "Give one for each."
            )
        if sorted({b for b in self.breaks if 0 < b <= len(self.content)}) != list(self.breaks):
            raise InputError(
                f"breaks={self.breaks} are not increasing numbers from 1 to {len(self.content)}.",
                "Give the numbers of content tokens after which a separator stands.",
            )
        after = dict(zip(self.breaks, self.separators, strict=True))
        trunk, starts = list(self.prefix), []
        for number, token in enumerate(self.content, start=1):
            starts.append(len(trunk))
            trunk.append(token)
            if number in after:
                trunk.append(after[number])
        object.__setattr__(self, "trunk", tuple(trunk))
        object.__setattr__(self, "_starts", tuple(starts))

    def __len__(self) -> int:
        """Content tokens."""
        return len(self.content)

    def stem(self, length: int) -> Branch:
        """[x, a] with `length` content tokens, no separator behind the last, no suffix."""
        start = self._start(length)
        return Branch(start + 1) if self.ending is None else Branch(start, (self.ending,))

    def plain(self, length: int) -> Branch:
        """v: the stem and the suffix."""
        return self.stem(length).then(self.suffix)

    def doubled(self, length: int) -> Branch:
        """v*: the stem, its last token once more, the suffix."""
        stem = self.stem(length)
        return stem.then((stem.ids(self.trunk)[-1], *self.suffix))

    def said(self, length: int) -> Ids:
        """The content tokens at this length, the last one as `ending` has it."""
        self._start(length)
        return (*self.content[: length - 1], self.content[length - 1] if self.ending is None else self.ending)

    def contrast(self, length: int) -> Branch:
        """[x, c] and the suffix, where c is the first token of the alphabet other than a."""
        last = self.stem(length).ids(self.trunk)[-1]
        other = next((t for t in self.alphabet if t != last), None)
        if other is None:
            raise InputError("The alphabet has no other token to contrast with.", "Give alphabet= two tokens or more.")
        return Branch(self._start(length), (other, *self.suffix))

    def pair(self, length: int) -> Pair:
        """v and v* at `length` content tokens: the last *content* token repeated, whatever would come next.

        >>> import squashlens as sl
        >>> model = sl.load("tiny-gemma", progress=False)
        >>> ones = sl.prompts.repeated(model, "1", 6, separator=",", every=3)
        >>> pair = ones.pair(3)   # the next token of the sequence would be a comma, that of v* is a 1
        >>> len(pair.v_star) - len(pair.v), pair.v_star[-1] == pair.v[-1]
        (1, True)
        """
        v, v_star = self.plain(length), self.doubled(length)
        return Pair(v.ids(self.trunk), v_star.ids(self.trunk), len(self.suffix))

    def before_separator(self, length: int) -> bool:
        """Whether the sequence goes on with a separator after `length` content tokens."""
        return length in self.breaks

    def separator_places(self, length: int | None = None) -> Ids:
        """Positions of the separators in v and v* at `length` content tokens (`None`: in the whole trunk).

        Behind them other tokens may stand where a longer prompt has separators.
        """
        end = len(self.trunk) if length is None else self._start(length)
        return tuple(p for b in self.breaks if (p := self._start(b) + 1) < end)

    def separated(self, separators: Items[int], breaks: Items[int]) -> "Sequence":
        """The same content with these separators after the given numbers of content tokens."""
        return replace(self, breaks=tuple(breaks), separators=tuple(separators))

    def every(self, period: int, separator: int) -> "Sequence":
        """The same content with `separator` after every `period`-th content token, and no other."""
        positive(period, "every", "a number of content tokens")
        breaks = range(period, len(self) + 1, period)
        return self.separated([separator] * len(breaks), breaks)

    def scattered(self, seed: str) -> "Scattered":
        """The same content with as many separators at each length, at places drawn with `seed` for that length."""
        return Scattered(**{f.name: getattr(self, f.name) for f in fields(self) if f.init}, seed=seed)

    def position(self, number: int) -> int:
        """Where content token `number`, counted from 1, stands in v and v*."""
        return self._start(number)

    def replaced(self, number: int, token: int) -> "Sequence":
        """The same sequence with another content token at `number`, counted from 1: a needle in it."""
        self._start(number)
        content = (*self.content[: number - 1], token, *self.content[number:])
        return replace(self, content=content, name=f"{self.name}, token {number} replaced")

    def unrelated(self, rng: Random) -> "Sequence":
        """A sequence of the same form whose content is drawn evenly from the alphabet."""
        content = tuple(rng.choice(self.alphabet) for _ in self.content)
        return replace(self, content=content, name=f"{self.name}, unrelated")

    def _start(self, length: int) -> int:
        if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= len(self):
            raise InputError(f"length={length!r} is not one of this sequence.", f"Lengths run from 1 to {len(self)}.")
        return self._starts[length - 1]


@dataclass(frozen=True)
class Scattered(Sequence):
    """A control: at each length as many separators as its `breaks` put there, at places drawn for that length.

    Places are drawn evenly without replacement from those before the last content token. Each length is drawn by
    itself, so a prompt is no prefix of a longer one: with the same number at every length, one growing sequence would
    have its separators where the original has them.
    """

    seed: str = ""

    def at(self, length: int) -> Sequence:
        """The sequence that is measured at this length."""
        self._start(length)
        inside = [b for b in self.breaks if b < length]
        places = sorted(Random(f"{self.seed} {length}").sample(range(1, length), len(inside)))
        own = {f.name: getattr(self, f.name) for f in fields(Sequence) if f.init}
        return Sequence(**own).separated(self.separators[: len(inside)], places)

    def stem(self, length: int) -> Branch:
        own = self.at(length)
        return Branch(0, own.stem(length).ids(own.trunk))

    def contrast(self, length: int) -> Branch:
        own = self.at(length)
        return Branch(0, own.contrast(length).ids(own.trunk))

    def before_separator(self, length: int) -> bool:
        self._start(length)
        return False  # what follows at a longer length is drawn anew

    def separator_places(self, length: int | None = None) -> Ids:
        return self.at(len(self) if length is None else length).separator_places(length)

    def position(self, number: int) -> int:
        raise InputError(
            "The separators of this sequence stand elsewhere at each length.", "Ask `sequence.at(length)` for places."
        )
