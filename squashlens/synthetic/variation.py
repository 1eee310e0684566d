"""Total variation of the softmax of two growing sequences that differ at their beginning (figure 9, Lemma B.2)."""

import math
import sys
from collections.abc import Iterable

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import positive
from squashlens.arguments import validated
from squashlens.errors import InputError
from squashlens.results import signed
from squashlens.synthetic.draws import chosen_lengths, chosen_seeds
from squashlens.synthetic.facts import facts
from squashlens.synthetic.fits import FEWEST, mean_of, power_law, tail_of
from squashlens.theory.distances import total_variation

LARGEST = math.log(sys.float_info.max)  # the greatest noise whose exponential is a number
INTERVAL = ("mean over seeds", "lower end of the mean's 95 % interval", "upper end of the mean's 95 % interval")


@validated
def softmax_variation(
    x: Float[Tensor, "*many outcome"], star: Float[Tensor, "*many outcome"]
) -> Float[Tensor, "*many"]:
    """δ(softmax x, softmax x*), between 0 and 2.

    Lemma B.2: it goes to 0 where x and x* differ ever less. Proposition B.4: else it need not.

    >>> x = torch.tensor([1.0, 0.0, 1.0, 0.0]).double()
    >>> softmax_variation(x, 1 - x).item(), 2 * (math.e - 1) / (math.e + 1)
    (0.924234..., 0.924234...)
    """
    return total_variation(x.softmax(dim=-1), star.softmax(dim=-1))


@validated
def softmax_total_variation(
    lengths: Iterable[int],
    *,
    k: int = 200,
    noise: float = 0.1,
    seeds: int | Iterable[int] = 5,
    tail: float = 0.5,
) -> xr.Dataset:
    """δ of two softmaxes by length: x uniform on [0, 1], x* the same with noise on its first k entries.

    A seed draws one growing sequence and one noise, uniform on [0, a]; up to n = k every entry is perturbed. For n
    beyond k, δ goes as 1/n: n δ tends to 2 Σ_{i≤k} (e^{x*_i} − e^{x_i}) / E e^x, whose mean over draws is
    2k ((e^a − 1)/a − 1). Before that limit the share 1 − k/n of the entries that are not perturbed is a factor of δ,
    which by itself makes the slope less steep; `expected_variation` derives the mean.

    Args:
        lengths: n; at least three in the tail.
        k: how many entries are perturbed.
        noise: a, the most that is added to one.
        seeds: how many draws, counted from 0, or the seeds themselves.
        tail: share of the range of log n, from its upper end, that exponents are fitted on. Lengths under 10 k, or
            under 10 k ((e^a − 1)/a − 1) where that is more, are left out of it: the law does not hold there yet.

    Returns:
        Dataset with `total_variation` over (seed, length), δ without the ½; `exponent` and `fit` (R²) over (seed),
        `exponent_mean`, `exponent_low`, `exponent_high` (95 %, Student's t over seeds), and the same of δ ÷ (1 − k/n)
        as `leading_mean`, `leading_low`, `leading_high`; `rate`, −1, which the last three are to
        be compared with; `expected` over (length), as `expected_variation` has it, NaN for n ≤ k; `perturbed`, k. The
        fit is descriptive.

    Refused: no noise, and noise whose exponential is beyond double precision; fewer than three lengths to fit on.

    Source: Barbero et al. 2024, appendix C.3, figure 9.

    >>> ds = softmax_total_variation([100, 10_000, 30_000, 100_000])
    >>> round(ds["exponent_mean"].item(), 1)
    -1.0
    """
    positive(k, "k", "a number of entries")
    if not 0 < noise < math.inf:
        raise InputError(f"noise={noise!r} perturbs nothing.", "Give a positive number.")
    if noise > LARGEST:
        raise InputError(
            f"noise={noise!r} is too much: its exponential is beyond double precision.",
            f"Give less than {LARGEST:.0f}.",
        )
    chosen, numbers = chosen_lengths(lengths), chosen_seeds(seeds)
    n = torch.tensor(chosen, dtype=torch.float64)
    settled = 10 * k * max(1.0, _gain(noise))  # from here on k/n and g are under a tenth
    among = tail_of(chosen, tail) & (n >= settled)
    if int(among.sum()) < FEWEST:
        raise InputError(
            f"Fewer than {FEWEST} lengths of the tail reach {settled:.6g}, from where on δ goes as 1/n.",
            "Give longer ones, or a smaller k or noise.",
        )
    x, star = (torch.from_numpy(values) for values in _sequences(numbers, chosen[-1], k, noise))
    found = torch.stack([softmax_variation(x[:, :length], star[:, :length]) for length in chosen], dim=-1)
    slope, fit = power_law(n[among], found[:, among])
    mean, low, high = mean_of(slope)
    leading = mean_of(power_law(n[among], found[:, among] / (1 - k / n[among]))[0])
    expected = torch.where(n > k, expected_variation(n, k, noise), torch.nan)
    text = "slope of log δ on log n in the tail"
    return signed(
        "total variation of two growing softmaxes",
        {"seed": numbers, "length": chosen},
        {
            "total_variation": (("seed", "length"), found, "δ of softmax x and softmax x*", "1"),
            "exponent": (("seed",), slope, text, "1"),
            "fit": (("seed",), fit, f"R² of the line behind the {text}", "1"),
            "exponent_mean": ((), mean, f"{text}, mean over seeds", "1"),
            "exponent_low": ((), low, f"{text}, lower end of the mean's 95 % interval", "1"),
            "exponent_high": ((), high, f"{text}, upper end of the mean's 95 % interval", "1"),
            **{
                f"leading_{edge}": ((), value, f"slope of log δ ÷ (1 − k/n) on log n in the tail, {told}", "1")
                for edge, value, told in zip(("mean", "low", "high"), leading, INTERVAL, strict=True)
            },
            "rate": ((), -1.0, "exponent of δ that can be derived, for n beyond k", "1"),
            "expected": (("length",), expected, "derived mean of δ over draws, for n beyond k", "1"),
            "perturbed": ((), k, "entries that are perturbed", "item"),
        },
        facts(
            "softmax_total_variation", None, numbers, torch.float64, "cpu",
            lengths=chosen, k=k, noise=noise, tail=tail,
        ),
    )  # fmt: skip


def expected_variation(n: Float[Tensor, " length"], k: int, noise: float) -> Float[Tensor, " length"]:
    """The mean of δ over draws at n ≥ k: x uniform on [0, 1], x* the same with noise uniform on [0, a] on its first k.

    Let Z = Σ e^{x_i}, and G = Σ_{i≤k} (e^{x*_i} − e^{x_i}) what the first k gain, so Z* = Z + G. With g = G/Z every
    entry's weight is multiplied by e^{noise}/(1 + g). Weights sum to 1, so δ is twice what is lost, and there lose

        all entries beyond k:                        (1 − k/n) g/(1 + g),
        of the first k, those with noise under r:    k/n (r − 1 + e^−r)/a,    r = ln(1 + g).

    The second is E (1 − e^{noise − r})₊ times the share of the first k. It leads just beyond k, where the first is
    near 0, and is of order 1/n³ far from there, where δ → 2g. For g stands its mean k/n ((e^a − 1)/a − 1): x and the
    noise are independent. That leaves an error of order 1/k.

    >>> found = expected_variation(torch.tensor([200.0, 2000.0, 2e6]).double(), 200, 0.1)
    >>> [f"{value:.4g}" for value in found.tolist()]
    ['0.025', '0.009286', '1.034e-05']
    """
    share = k / n
    g = share * _gain(noise)
    r = g.log1p()
    return 2 * ((1 - share) * g / (1 + g) + share * (r + torch.expm1(-r)) / noise)


def _gain(noise: float) -> float:
    """What noise, uniform on [0, a], adds to e^x on average, as a share of it: E e^noise − 1 = (e^a − 1)/a − 1."""
    return math.expm1(noise) / noise - 1


def _sequences(seeds: list[int], longest: int, k: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """x and x*, a row a seed; entries and noise have streams of their own, so that neither depends on the length."""
    x = np.stack([np.random.default_rng((seed, 0, 0)).uniform(0, 1, longest) for seed in seeds])
    added = np.stack([np.random.default_rng((seed, 1, 0)).uniform(0, noise, k) for seed in seeds])
    star = x.copy()
    star[:, :k] += added[:, :longest]
    return x, star
