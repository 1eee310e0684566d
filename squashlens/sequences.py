"""A growing sequence in token space, and the pair of Theorem 4.2 at each of its lengths.

    prefix  content₁ … content_k separator content_{k+1} … content_n  suffix

A length counts *content* tokens (digits, words), without separators, prefix and suffix. `squashlens.prompts` makes
sequences.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from random import Random
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from squashlens._typing import positive
from squashlens.checks.arguments import validated
from squashlens.errors import InputError

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Branch:
    """A prompt: the first `at` tokens of a trunk, followed by `tokens`; it is read at its last token."""

    at: int
    tokens: Ids = ()

    def __len__(self) -> int:
        return self.at + len(self.tokens)

    def then(self, tokens: Ids) -> "Branch":
        """The prompt followed by more tokens."""
        return Branch(self.at, self.tokens + tokens)

    def ids(self, trunk: Ids) -> Ids:
        """The token ids of the whole prompt."""
        return trunk[: self.at] + self.tokens

    def along(self, trunk: Ids, positions: Ids | None = None) -> "Branch":
        """The same prompt with as many of its leading tokens as possible taken from the trunk that prompts share.

        `positions` are those of the trunk's tokens; by default they have no gap. A gap ends this, since a prompt's own
        positions have none.
        """
        n_shared = self.at
        for token in self.tokens:
            if n_shared == len(trunk) or trunk[n_shared] != token:
                break
            if positions is not None and n_shared > 0:
                has_gap = positions[n_shared] != positions[n_shared - 1] + 1
                if has_gap:
                    break
            n_shared += 1
        return Branch(n_shared, self.tokens[n_shared - self.at :])


@validated
@dataclass(frozen=True)
class Pair:
    """The pair v = [x, a] and v* = [x, a, a] of Theorem 4.2, each with the same suffix.

    Args:
        v: token ids of v, with prefix and suffix.
        v_star: token ids of v*, with prefix and suffix.
        suffix: number of tokens in the suffix.

    Raises:
        InputError: v* is not v with its last token before the suffix repeated, for example the next prefix of a
            sequence whose next token differs.
    """

    v: Ids
    v_star: Ids
    suffix: int = 0

    def __post_init__(self) -> None:
        """Raise unless v* is v with its last token before the suffix repeated."""
        n_before_suffix = len(self.v) - self.suffix
        stem = self.v[:n_before_suffix]
        suffix = self.v[n_before_suffix:]
        if self.v_star != stem + stem[-1:] + suffix:
            raise InputError(
                "v and v_star are not a pair: v* must be v with its last token before the suffix repeated.",
                "Use `GrowingSequence.pair(n)`. The next prefix of a longer sequence forms a pair only if the sequence "
                "ends in equal tokens.",
            )

    def tensors(self) -> tuple[Int[Tensor, "..."], Int[Tensor, "..."]]:
        """v and v* as tensors of ids."""
        return torch.tensor(self.v), torch.tensor(self.v_star)


@validated
@dataclass(frozen=True)
class GrowingSequence:
    """A growing sequence in token space; the functions of `squashlens.prompts` make one.

    Args:
        name: name of the sequence.
        content: the tokens that a length counts.
        alphabet: the tokens from which contrasts and unrelated sequences are drawn.
        prefix: tokens before the content.
        suffix: tokens after the content.
        breaks: the numbers of content tokens after which a separator follows.
        separators: the separator tokens, one for each of `breaks`.
        ending: if given, the last content token at every length (the paper's figure 5b ends in ones).
        texts: the entry of the tokenizer's vocabulary for each token id, which `squashlens.prompts` fills in. A model
            with other entries for these ids refuses the sequence. Ids without an entry are not compared.
    """

    name: str
    content: Ids
    alphabet: Ids
    prefix: Ids = ()
    suffix: Ids = ()
    breaks: Ids = ()
    separators: Ids = ()
    ending: int | None = None
    texts: Mapping[int, str] = field(default_factory=dict, repr=False, compare=False)
    trunk: Ids = field(init=False, repr=False, compare=False)
    _starts: Ids = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check content and separators, and lay them out: the `trunk`, and where each content token stands in it.

        The trunk has the prefix, the content and the separators, without the suffix. Every length is a beginning of it.
        """
        if not self.content:
            raise InputError(
                "The sequence has no content.", "Ask for a length of at least 1."
            )
        n = len(self.content)
        valid_breaks = {after for after in self.breaks if 1 <= after <= n}
        is_one_each = len(self.breaks) == len(self.separators)
        if not is_one_each or list(self.breaks) != sorted(valid_breaks):
            raise InputError(
                f"breaks={self.breaks} are not {len(self.separators)} increasing numbers from 1 to {n}.",
                "Give for each separator the number of content tokens after which it follows, in increasing order.",
            )
        separator_after = dict(zip(self.breaks, self.separators, strict=True))
        trunk = list(self.prefix)
        starts: list[int] = []
        for number, token in enumerate(self.content, start=1):
            starts.append(len(trunk))  # the position of this content token
            trunk.append(token)
            if number in separator_after:
                trunk.append(separator_after[number])
        object.__setattr__(self, "trunk", tuple(trunk))
        object.__setattr__(self, "_starts", tuple(starts))

    def __len__(self) -> int:
        """The number of content tokens."""
        return len(self.content)

    @property
    def used(self) -> frozenset[int]:
        """The ids of all tokens of the sequence, with those of its alphabet."""
        ending = () if self.ending is None else (self.ending,)
        return frozenset(
            self.trunk + self.separators + self.suffix + self.alphabet + ending
        )

    def stem(self, length: int) -> Branch:
        """[x, a] with `length` content tokens, without a separator after the last one and without the suffix."""
        start = self.position(length)
        if self.ending is None:
            return Branch(start + 1)
        return Branch(start, (self.ending,))

    def plain(self, length: int) -> Branch:
        """v: the stem, followed by the suffix."""
        return self.stem(length).then(self.suffix)

    def doubled(self, length: int) -> Branch:
        """v*: the stem, its last token again, and the suffix."""
        stem = self.stem(length)
        return stem.then(stem.ids(self.trunk)[-1:] + self.suffix)

    def contrast(self, length: int) -> Branch:
        """[x, c] and the suffix, where c is the first token of the alphabet other than a."""
        last = self.stem(length).ids(self.trunk)[-1]
        others = [token for token in self.alphabet if token != last]
        if not others:
            raise InputError(
                "The alphabet has no other token for a contrast.",
                "Give alphabet= at least two tokens.",
            )
        return Branch(self.position(length), (others[0], *self.suffix))

    def pair(self, length: int) -> Pair:
        """v and v* at `length` content tokens; v* repeats the last *content* token, whatever follows in the sequence.

        >>> import squashlens as sl
        >>> model = sl.load("tiny-gemma")
        >>> ones = sl.prompts.repeated(model, "1", 6, separator=",")
        >>> pair = ones.pair(3)   # the sequence continues with a comma, v* with a 1
        >>> len(pair.v_star) - len(pair.v), pair.v_star[-1] == pair.v[-1]
        (1, True)
        """
        v = self.plain(length).ids(self.trunk)
        v_star = self.doubled(length).ids(self.trunk)
        return Pair(v, v_star, len(self.suffix))

    def before_separator(self, length: int) -> bool:
        """Whether a separator follows after `length` content tokens."""
        return length in self.breaks

    def separator_places(self, length: int | None = None) -> Ids:
        """Positions of the separators in v and v* at `length` content tokens (`None`: in the whole trunk).

        A shorter prompt may have other tokens where a longer prompt has separators.
        """
        end = len(self.trunk) if length is None else self.position(length)
        places = []
        for after in self.breaks:
            place = self.position(after) + 1
            if place < end:
                places.append(place)
        return tuple(places)

    def separated(
        self, separators: Sequence[int], breaks: Sequence[int]
    ) -> "GrowingSequence":
        """The same content with these separators after the given numbers of content tokens."""
        return replace(self, breaks=tuple(breaks), separators=tuple(separators))

    def every(self, period: int, separator: int) -> "GrowingSequence":
        """The same content with `separator` after every `period`-th content token, and no other separators."""
        positive(period, "every", "a number of content tokens")
        breaks = range(period, len(self) + 1, period)
        return self.separated([separator] * len(breaks), breaks)

    def scattered(self, seed: str) -> "Scattered":
        """The same content with as many separators at each length, at positions drawn with `seed` for that length."""
        return Scattered(**_arguments_of(self), seed=seed)

    def position(self, number: int) -> int:
        """The position of content token `number`, counted from 1, in v and v*."""
        is_number = isinstance(number, Integral) and not isinstance(number, bool)
        if not is_number or not 1 <= number <= len(self):
            raise InputError(
                f"length={number!r} is not a length of this sequence.",
                f"Lengths run from 1 to {len(self)}.",
            )
        return self._starts[number - 1]

    def replaced(self, number: int, token: int) -> "GrowingSequence":
        """The same sequence with `token` as content token `number`, counted from 1: a needle."""
        GrowingSequence.position(self, number)  # raises outside the sequence
        content = (*self.content[: number - 1], token, *self.content[number:])
        name = f"{self.name}, token {number} replaced"
        return replace(self, content=content, name=name)

    def unrelated(self, rng: Random) -> "GrowingSequence":
        """A sequence of the same form whose content is drawn uniformly from the alphabet."""
        content = tuple(rng.choice(self.alphabet) for _ in self.content)
        return replace(self, content=content, name=f"{self.name}, unrelated")


def _arguments_of(sequence: GrowingSequence) -> dict[str, Any]:
    """The arguments of `GrowingSequence` that make this sequence."""
    names = [field.name for field in fields(GrowingSequence) if field.init]
    return {name: getattr(sequence, name) for name in names}


@dataclass(frozen=True)
class Scattered(GrowingSequence):
    """A control sequence: at each length it has as many separators as the original, at random positions.

    Positions are drawn uniformly without replacement from those before the last content token, separately for each
    length. So a prompt is not a prefix of a longer one: a growing sequence with the same number of separators at every
    length would have them at the original positions.
    """

    seed: str = ""

    def at(self, length: int) -> GrowingSequence:
        """The sequence at this length, with its own separator positions."""
        plain = GrowingSequence(**_arguments_of(self))
        plain.position(length)  # raises outside the sequence
        n_separators = bisect_left(self.breaks, length)  # those before the last token
        rng = Random(f"{self.seed} {length}")
        breaks = sorted(rng.sample(range(1, length), n_separators))
        return plain.separated(self.separators[:n_separators], breaks)

    def stem(self, length: int) -> Branch:
        sequence = self.at(length)
        return Branch(0, sequence.stem(length).ids(sequence.trunk))

    def contrast(self, length: int) -> Branch:
        sequence = self.at(length)
        return Branch(0, sequence.contrast(length).ids(sequence.trunk))

    def before_separator(self, length: int) -> bool:
        self.at(length)  # raises outside the sequence
        return False  # each length has its own separators

    def separator_places(self, length: int | None = None) -> Ids:
        return self.at(len(self) if length is None else length).separator_places(length)

    def position(self, number: int) -> int:
        raise InputError(
            "This sequence has other separator positions at each length.",
            "Use `sequence.at(length).position(number)`.",
        )
