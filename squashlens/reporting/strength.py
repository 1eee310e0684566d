"""Words for the strength of a rank correlation, chosen by its size and interval, not by its significance.

A correlation of 0.12 over 300 tokens is significant but weak. The words for |ρ| are from Schober, Boer and Schwarte
(2018, Anesthesia & Analgesia 126:1763). A sentence uses the words for both ends of the 95 % interval. A direction is
named only if the interval excludes 0 and the p-value, corrected for the tests made together, is below 0.05.
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
        """ρ and its interval as text."""
        return f"Spearman ρ = {self.rho:.2f}, 95 % interval {self.low:.2f} to {self.high:.2f}"

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
