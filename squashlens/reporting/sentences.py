"""Sentences on numbers: sizes, differences and agreements, with their size first and then how sure it is.

Intervals are part of the results; nothing is estimated here. No p-value is said: it may disagree with its interval.
"""

import math
from dataclasses import dataclass

import xarray as xr

from squashlens.records.results import facts_of

WORDS = ((0.9, "very strong"), (0.7, "strong"), (0.4, "moderate"), (0.1, "weak"), (0.0, "negligible"))
NEGLIGIBLE = 0.1  # of a correlation
EQUAL = 1.5  # a factor below which two sizes are called about equal
HALF = ("float16", "bfloat16")
LARGE = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


def number(value: object) -> str:
    """A number with three digits and a true minus sign.

    >>> number(2971.2), number(-0.25), number(1.2e-7)
    ('2,970', '−0.25', '1.2e−07')
    """
    short = f"{float(value):.3g}"  # pyright: ignore[reportArgumentType]
    plain = f"{float(short):,.0f}" if 1000 <= abs(float(short)) < 1e6 else short
    return plain.replace("-", "−")


def times(factor: float) -> str:
    """A factor as a reader would say it.

    >>> times(3.2), times(23456), times(367_900_000)
    ('3.2 times', '23,500 times', '370 million times')
    """
    for size, word in LARGE:
        if factor >= size:
            return f"{number(float(f'{factor / size:.2g}'))} {word} times"
    return f"{float(f'{factor:.3g}'):,.0f} times" if factor >= 1000 else f"{factor:.3g} times"


def percent(share: float) -> str:
    """A share between 0 and 1 as a percentage of two digits, without claiming all or nothing.

    >>> percent(0.123), percent(0.9996), percent(0.0004), percent(1)
    ('12 %', 'over 99.9 %', 'under 0.1 %', '100 %')
    """
    if 0.999 < share < 1:
        return "over 99.9 %"
    if 0 < share < 0.001:
        return "under 0.1 %"
    return f"{100 * share:.3g} %" if share >= 0.99 else f"{100 * share:.2g} %"


def beside(value: float, reference: float) -> str:
    """A size beside another: about equal, or so many times as large.

    >>> beside(1.1, 1.0), beside(6.0, 2.0), beside(2.0, 6.0)
    ('about equal (1.1 times)', '3 times as large', '3 times smaller')
    """
    ratio = value / reference if reference > 0 else math.inf
    if ratio == 0 or math.isinf(ratio):
        return "0" if ratio == 0 else "infinitely larger"
    if max(ratio, 1 / ratio) < EQUAL:
        return f"about equal ({times(ratio)})"
    return f"{times(ratio)} as large" if ratio > 1 else f"{times(1 / ratio)} smaller"


def sentence(clause: str) -> str:
    """A clause with its first letter large."""
    return clause[:1].upper() + clause[1:]


@dataclass(frozen=True)
class Rank:
    """A rank correlation ρ with the ends of its interval."""

    rho: float
    low: float
    high: float

    @classmethod
    def of(cls, ds: xr.Dataset, name: str, **place: object) -> "Rank":
        """The rank correlation in the three variables of a result that start with `name`."""
        return cls(*(float(ds[f"{name}{end}"].sel(place)) for end in ("", "_low", "_high")))

    @property
    def measured(self) -> bool:
        """Whether ρ and its interval are finite."""
        return all(map(math.isfinite, (self.rho, self.low, self.high)))

    @property
    def decided(self) -> bool:
        """Whether the direction is known: the interval excludes 0."""
        return self.measured and (self.low > 0 or self.high < 0)

    @property
    def absent(self) -> bool:
        """Whether the whole interval is negligible."""
        return self.measured and max(abs(self.low), abs(self.high)) < NEGLIGIBLE

    @property
    def strength(self) -> str:
        """Words for both ends of the interval, the weaker first; one word if they are the same."""
        ends = sorted((abs(self.low), abs(self.high)))
        least, most = (next(word for edge, word in WORDS if end >= edge) for end in ends)
        return least if least == most else f"{least} to {most}"

    @property
    def numbers(self) -> str:
        """ρ and its interval as text."""
        return "Spearman ρ = {}, 95 % interval {} to {}".format(*map(two_decimals, (self.rho, self.low, self.high)))

    def agreement(self, what: str) -> str:
        """A clause on whether two quantities rank alike; `what` names them, as the subject."""
        if not self.measured:
            return f"{what} cannot be compared"
        if self.absent:
            return f"{what} do not rank alike: agreement is negligible ({self.numbers})"
        if not self.decided:
            return f"whether {what} rank alike is undecided ({self.numbers})"
        if self.rho < 0:
            return f"{what} rank oppositely, with {self.strength} disagreement ({self.numbers})"
        return f"{what} rank alike, with {self.strength} agreement ({self.numbers})"


def two_decimals(value: float) -> str:
    """A number with two decimals, and with more where it would otherwise read as 0.

    >>> two_decimals(0.004), two_decimals(-0.001), two_decimals(0.3)
    ('0.004', '−0.001', '0.30')
    """
    digits = next((digits for digits in range(2, 30) if round(value, digits) or not value), 2)
    return f"{value:.{digits}f}".replace("-", "−")


def certainty_of_norms(measured: xr.Dataset) -> str:
    """A clause on how far the Jacobian norms may be off: exact, estimated with intervals, or in half precision."""
    dtype = facts_of(measured).get("dtype")
    if dtype in HALF:
        return f"The norms were computed in {dtype}, in which small ones are several times too large"
    if "jacobian_low" not in measured:
        return "The norms are exact to first order, for this prompt and this model"
    low, high = (measured[f"jacobian_{end}"].values for end in ("low", "high"))
    known = low > 0
    if not known.any():
        return "The norms are estimates from random products of the Jacobian"
    apart = f"; the ends of their intervals are up to a factor of {(high[known] / low[known]).max():.2g} apart"
    return f"The norms are estimates from random products of the Jacobian{apart}"
