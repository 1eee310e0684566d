"""Words for the strength of a rank correlation, chosen by its size and interval, not by its significance.

A correlation of 0.12 over 300 tokens is significant but weak. The words for |ρ| are from Schober, Boer and Schwarte
(2018, Anesthesia & Analgesia 126:1763). A sentence uses the words for both ends of the 95 % interval. A direction is
named only if the interval excludes 0 and the p-value, corrected for the tests made together, is below 0.05.

Interval and uncorrected p-value come from one statistic and agree. The interval is not corrected, so that of several
tests one may have an interval without 0 and a corrected p-value above 0.05. A sentence therefore has both numbers, and
says which of them left the direction open.
"""

import math
from dataclasses import dataclass

import xarray as xr

WORDS = ((0.9, "very strong"), (0.7, "strong"), (0.4, "moderate"), (0.1, "weak"), (0.0, "negligible"))
NEGLIGIBLE = 0.1
TEST = 0.05


@dataclass(frozen=True)
class Rank:
    """A rank correlation ρ with the ends of its interval and its corrected p-value."""

    rho: float
    low: float
    high: float
    p: float

    @classmethod
    def of(cls, ds: xr.Dataset, name: str, **place: object) -> "Rank":
        """The rank correlation in the four variables of a result that start with `name`."""
        return cls(*(float(ds[f"{name}{end}"].sel(place)) for end in ("", "_low", "_high", "_p")))

    @property
    def measured(self) -> bool:
        """Whether ρ, its interval and its p-value are all finite."""
        return all(math.isfinite(value) for value in (self.rho, self.low, self.high, self.p))

    @property
    def decided(self) -> bool:
        """Whether the direction of the correlation is known."""
        return self.measured and (self.low > 0 or self.high < 0) and self.p < TEST

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
        """ρ, its interval and its p-value as text, with what left the direction open if the interval excludes 0."""
        rho, low, high = (beside(value, 0.0, 2) for value in (self.rho, self.low, self.high))
        p = "p below 0.001" if self.p < 0.001 else f"p = {beside(self.p, TEST, 3)}"
        text = f"Spearman ρ = {rho}, 95 % interval {low} to {high}, {p}"
        excludes = self.low > 0 or self.high < 0
        return f"{text} after correction for the tests made together" if excludes and self.p >= TEST else text

    def trend(self, rises: str = "rises") -> str:
        """A verb phrase for the trend: its direction and strength, or that it is unclear, with the numbers."""
        if math.isnan(self.rho):
            return "is constant"
        if not self.measured:
            return f"has too few values for a trend (ρ = {self.rho:.2f})"
        if self.absent:
            return f"has at most a negligible trend ({self.numbers})"
        if not self.decided:
            return f"shows no clear trend ({self.numbers})"
        return f"{rises if self.rho > 0 else 'falls'} ({self.strength} trend, {self.numbers})"


def beside(value: float, edge: float, digits: int) -> str:
    """A number with so many decimals, and with more where it would otherwise read as on another side of the edge.

    >>> beside(0.004, 0.0, 2), beside(0.0496, 0.05, 2), beside(-0.001, 0.0, 2), beside(0.3, 0.0, 2)
    ('0.004', '0.0496', '-0.001', '0.30')
    """
    texts = (f"{value:.{more}f}" for more in range(digits, 30))
    return next((text for text in texts if _side(float(text), edge) == _side(value, edge)), f"{value:.{digits}g}")


def _side(value: float, edge: float) -> int:
    return (value > edge) - (value < edge)
