"""The report's sentences on data whose truth is known: true, false, undecided and degenerate."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

from squashlens.measure.squashing.sensitivity import ESTIMATES
from squashlens.reporting import prompt_sentences as say
from squashlens.reporting.sentences import Rank

Rho = tuple[float, float, float, float]  # ρ, the ends of its interval, p
Given = dict[str, Rho] | None
NOTHING = (float("nan"),) * 4


def dataset(
    n: int = 20, agreement: Given = None, trend: Given = None, over_null: Any = NOTHING[:3], **values: Any
) -> xr.Dataset:
    base: dict[str, Any] = dict.fromkeys(ESTIMATES, np.ones(n)) | values
    ds = xr.Dataset(
        {name: ("position", np.asarray(v, dtype=float)) for name, v in base.items()},
        coords={"position": range(n), "token": ("position", [f"t{i}" for i in range(n)]), "estimate": list(ESTIMATES)},
    )
    for variable, given in (("rank_agreement", agreement), ("position_trend", trend)):
        for place, end in enumerate(("", "_low", "_high", "_p")):
            ds[variable + end] = ("estimate", [(given or {}).get(name, NOTHING)[place] for name in ESTIMATES])
    for end, value in zip(("", "_low", "_high"), over_null, strict=True):
        ds[f"agreement_over_null{end}"] = ((), value)
    ds["compared_tokens"] = ((), n - 1)
    return ds


@pytest.mark.parametrize(
    ("rho", "expected"),
    [
        ((0.95, 0.91, 0.98, 1e-6), "Path bound and true Jacobian rank alike, with very strong agreement (Spearman "
         "ρ = 0.95, 95 % interval 0.91 to 0.98, p below 0.001); tokens compared: 299"),
        ((0.8, 0.45, 0.92, 0.01), "rank alike, with moderate to very strong agreement"),
        ((0.12, 0.02, 0.23, 0.06), "negligible to weak agreement (Spearman ρ = 0.12, 95 % interval 0.02 to 0.23, "
         "p = 0.060 after correction for the tests made together)"),
        ((0.12, 0.02, 0.23, 0.0499996), "95 % interval 0.02 to 0.23, p = 0.0499996)"),
        ((0.5, -0.1, 0.8, 0.01), "rank alike is undecided (Spearman ρ = 0.50, 95 % interval −0.10 to 0.80, p = 0.010)"),
        ((0.03, -0.05, 0.09, 0.6), "do not rank alike: agreement is negligible"),
        ((-0.9, -0.99, -0.7, 1e-3), "rank oppositely, with strong to very strong disagreement"),
    ],
)  # fmt: skip
def test_agreement(rho: Rho, expected: str) -> None:
    assert expected in say.agreement(dataset(n=300, agreement={"path_bound": rho}))


FALL = (-0.83, -0.98, -0.14, 0.08)


@pytest.mark.parametrize(
    ("rho", "ends", "expected"),
    [
        (
            FALL,
            (119.0, 1.0),
            "falls 119-fold (Spearman ρ = −0.83, 95 % interval −0.98 to −0.14, p = 0.080 after correct",
        ),
        (FALL, (1.2, 1.0), "falls slightly, and its ends are about equal"),
        (FALL, (1.0, 3.0), "falls over most of the range and ends 3-fold higher"),
        (FALL, None, "falls (weak to very strong trend"),
        (FALL, (0.0, 1.0), "falls (weak to very strong trend"),
        ((0.7, 0.0, 0.94, 0.05), (1.0, 4.0), "ends 4-fold higher, without a clear trend"),
        ((0.1, -0.3, 0.5, 0.5), (1.0, 1.1), "stays about equal, without a clear trend"),
        ((0.1, -0.3, 0.5, 0.5), None, "shows no clear trend"),
        ((0.01, -0.05, 0.06, 0.5), None, "has at most a negligible trend"),
        ((0.9, 0.8, 0.95, 0.001), (1.0, 4.0), "rises 4-fold"),
        (NOTHING, None, "is constant"),
        ((0.9, float("nan"), 1.0, 0.1), None, "has too few values for a trend"),
    ],
)
def test_trends_say_size_first(rho: Rho, ends: tuple[float, float] | None, expected: str) -> None:
    assert Rank(*rho).trend(ends=ends).startswith(expected)


TREND: Given = {
    "jacobian": (-0.8, -0.85, -0.72, 0.01), "path_bound": (0.8, 0.5, 0.95, 0.01), "null": (-1, -1, -0.99, 0.01),
}  # fmt: skip


def with_sinks(places: list[int]) -> xr.Dataset:
    sink = np.isin(range(5), places).astype(float)
    ds = dataset(n=5, path_bound=[97, 0, 1, 1, 1])
    return ds.assign(sink=("position", sink), compared_tokens=4 - len(places))


def beside_null(*over_null: float) -> str:
    both = {"path_bound": (0.6, 0.4, 0.8, 0.001), "null": (0.2, -0.1, 0.5, 0.4)}
    return say.agreement(dataset(agreement=both, over_null=over_null))


def along(*ratio: float) -> str:
    return say.position(dataset(trend={**TREND, "bound_over_null": ratio}))  # type: ignore[dict-item]


def bounding(**values: list[int]) -> str:
    return say.is_it_a_bound(dataset(n=4, **values))


SAID: list[tuple[Callable[[], str], str]] = [
    (lambda: beside_null(0.4, 0.1, 0.7), "reaches ρ = 0.20; the path bound agrees better (difference 0.40, 95 % "
     "interval 0.10 to 0.70)"),
    (lambda: beside_null(-0.4, -0.7, -0.1), "the path bound agrees worse"),
    (lambda: beside_null(0.0, 0.0, 0.0), "reaches ρ = 0.20; the path bound agrees exactly as well."),
    (lambda: say.beside_sink(with_sinks([])), ""),
    (lambda: say.beside_sink(with_sinks([0])), "“t0” at position 0 is an attention sink: it has 97 % of the summed "
     "path bound, 20 % of the null, and 20 % of the summed Jacobian norms. Trends and agreement are those"),
    (lambda: say.beside_sink(with_sinks([0, 2])), "“t0” at position 0, “t2” at position 2 are attention sinks: they "
     "have 98 % of the summed path bound, 40 % of the null"),
    (lambda: beside_null(0.1, -0.2, 0.4), "whether the path bound agrees better is undecided"),
    (lambda: beside_null(0.1, 0.0004, 0.4), "agrees better (difference 0.10, 95 % interval 0.0004 to 0.40)"),
    (lambda: say.agreement(dataset(n=2)), "cannot be compared"),
    (lambda: say.agreement(dataset(n=20)), "cannot be compared"),  # all constant: ρ is not a number
    (lambda: along(-0.9, -0.97, -0.6, 0.001), "favours early tokens beyond what causality alone does"),
    (lambda: along(0.9, 0.6, 0.97, 0.001), "favours late tokens beyond what causality alone does"),
    (lambda: along(0.1, -0.3, 0.5, 0.5), "is undecided on this prompt"),
    (lambda: along(0.01, -0.06, 0.08, 0.5), "favours neither early nor late tokens"),
    (lambda: along(0.1, -0.3, 0.5, 0.5), "19 compared tokens, without BOS and the last token, the true sensitivity "
     "falls slightly, and its ends are about equal (Spearman ρ = −0.80, 95 % interval −0.85 to −0.72, p = 0.010) and"),
    (lambda: bounding(path_bound=[1, 1, 5, 5], jacobian=[2] * 4), "not a bound for this model: it lies below the true "
     "Jacobian norm at 2 of 4 tokens (it is 0.5 times to 2.5 times the Jacobian norm, median 1.5 times)"),
    (lambda: bounding(path_bound=[4] * 4, jacobian=[2] * 4), "Nothing guarantees that"),
    (lambda: bounding(jacobian=[0] * 4), "cannot be compared"),
    (lambda: freezing(0.5), "sensitivity is 2 times smaller (0.5 to 0.5 times by token)"),
    (lambda: freezing(2.0), "sensitivity is 2 times as large"),
    (lambda: freezing(1.0), "sensitivity is about equal (1 times)"),
]  # fmt: skip


def freezing(frozen: float) -> str:
    return say.freezing(dataset(n=5, jacobian_frozen=[frozen] * 5))


@pytest.mark.parametrize(("said", "expected"), SAID)
def test_what_is_said(said: Callable[[], str], expected: str) -> None:
    assert expected in said()


def test_spread() -> None:
    shares = xr.DataArray(
        [[0.7, 0.2, 0.05, 0.03, 0.02], [0, 0, 0, 0, 1.0]],
        dims=("layer", "position"),
        coords={"layer": [0, 1], "position": range(5), "token": ("position", list("abcde"))},
    )
    assert say.spread(shares, with_sinks([])) == (
        "Composed over all blocks, 70 % of the paths start at “a” at position 0 and 2 % never leave the last token; "
        "90 % start at 2 of the 5 tokens."
    )
    assert say.spread(shares, with_sinks([0])) == (
        "Composed over all blocks, 70 % of the paths start at “t0” at position 0. Of the other paths, 66.7 % start at "
        "“b” at position 1 and 6.67 % never leave the last token; 90 % start at 3 of the 4 other tokens."
    )
