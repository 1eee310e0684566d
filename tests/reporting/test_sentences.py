"""The report's sentences on data whose truth is known: true, false, undecided and degenerate."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

from squashlens.measure.squashing.sensitivity import ESTIMATES
from squashlens.reporting import sentences as say

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
    ds["compared_tokens"] = ((), n)
    return ds


@pytest.mark.parametrize(
    ("rho", "expected"),
    [
        (
            (0.95, 0.91, 0.98, 1e-6),
            "rank tokens with very strong agreement (Spearman ρ = 0.95, 95 % interval 0.91 to 0.98",
        ),
        ((0.8, 0.45, 0.92, 0.01), "rank tokens with moderate to very strong agreement"),
        ((0.12, 0.02, 0.23, 0.03), "rank tokens with negligible to weak agreement"),
        (
            (0.12, 0.02, 0.23, 0.06),
            "is undecided here (Spearman ρ = 0.12, 95 % interval 0.02 to 0.23, p = 0.060 after correction for the "
            "tests made together, 300 tokens)",
        ),
        (
            (0.12, 0.02, 0.23, 0.0499996),
            "weak agreement (Spearman ρ = 0.12, 95 % interval 0.02 to 0.23, p = 0.0499996, ",
        ),
        ((0.5, -0.1, 0.8, 0.01), "is undecided here (Spearman ρ = 0.50, 95 % interval -0.10 to 0.80, p = 0.010, "),
        ((0.03, -0.05, 0.09, 0.6), "does not rank tokens as the true Jacobian does: agreement is negligible"),
        (
            (-0.9, -0.99, -0.7, 1e-3),
            "ranks tokens opposite to the true Jacobian, with strong to very strong disagreement",
        ),
    ],
)
def test_agreement(rho: Rho, expected: str) -> None:
    text = say.agreement(dataset(n=300, agreement={"path_bound": rho}))
    assert expected in text
    assert "300 tokens" in text
    assert "much as" not in text


TREND: Given = {
    "jacobian": (-0.8, -0.85, -0.72, 0.01), "path_bound": (0.8, 0.5, 0.95, 0.01), "null": (-1, -1, -0.99, 0.01),
}  # fmt: skip


def beside_null(*over_null: float) -> str:
    both = {"path_bound": (0.6, 0.4, 0.8, 0.001), "null": (0.2, -0.1, 0.5, 0.4)}
    return say.agreement(dataset(agreement=both, over_null=over_null))


def along(*ratio: float) -> str:
    return say.position(dataset(trend={**TREND, "bound_over_null": ratio}))  # type: ignore[dict-item]


def summary(share: float) -> str:
    return say.prompt_summary(dataset(n=3), xr.DataArray([share], dims="rank", coords={"token": ("rank", ["9"])}))


def bounding(**values: list[int]) -> str:
    return say.is_it_a_bound(dataset(n=4, **values))


SAID: list[tuple[Callable[[], str], str]] = [
    (lambda: beside_null(0.4, 0.1, 0.7), "reaches ρ = 0.20; the path bound agrees better (difference 0.40, 95 % "
     "interval 0.10 to 0.70)"),
    (lambda: beside_null(-0.4, -0.7, -0.1), "the path bound agrees worse"),
    (lambda: beside_null(0.0, 0.0, 0.0), "reaches ρ = 0.20; the path bound agrees exactly as well."),
    (lambda: beside_null(0.1, -0.2, 0.4), "whether the path bound agrees better is undecided"),
    (lambda: beside_null(0.1, 0.0004, 0.4), "agrees better (difference 0.10, 95 % interval 0.0004 to 0.40)"),
    (lambda: summary(0.5), "has 3 tokens and is measured at its last token, “t2”"),
    (lambda: summary(0.999), "“9” (probability 0.999)"),
    (lambda: summary(0.99999), "“9” (probability above 0.999)"),
    (lambda: say.agreement(dataset(n=2)), "cannot be computed"),
    (lambda: say.agreement(dataset(n=20)), "cannot be computed"),  # all constant: ρ is not a number
    (lambda: along(-0.9, -0.97, -0.6, 0.001), "favours early tokens beyond what causality alone does"),
    (lambda: along(0.9, 0.6, 0.97, 0.001), "favours late tokens more than causality alone does"),
    (lambda: along(0.1, -0.3, 0.5, 0.5), "is undecided on this prompt"),
    (lambda: along(0.01, -0.06, 0.08, 0.5), "favours neither early nor late tokens"),
    (lambda: along(0.1, -0.3, 0.5, 0.5), "20 compared tokens, the true sensitivity falls (strong trend, Spearman "
     "ρ = -0.80, 95 % interval -0.85 to -0.72, p = 0.010) and the path bound rises (moderate to very strong trend"),
    (lambda: bounding(path_bound=[1, 1, 5, 5], jacobian=[2] * 4), "not a bound for this model: it lies below the true "
     "Jacobian norm at 2 of 4 tokens (bound ÷ Jacobian runs from 0.5 to 2.5, median 1.5)"),
    (lambda: bounding(path_bound=[4] * 4, jacobian=[2] * 4), "Nothing guarantees that"),
    (lambda: bounding(jacobian=[0] * 4), "cannot be compared"),
    (lambda: say.beside_sink(with_sinks([])), ""),
    (lambda: say.beside_sink(with_sinks([0])), "“t0” at position 0 is an attention sink: it has 97 % of the summed "
     "path bound, 20 % of the null, and 20 % of the summed Jacobian norms. Trends and agreement are those"),
    (lambda: say.beside_sink(with_sinks([0, 2])), "“t0” at position 0, “t2” at position 2 are attention sinks: they "
     "have 98 % of the summed path bound, 40 % of the null"),
    (lambda: freezing(0.5), "lowers the typical token's sensitivity, by a median factor of 0.5"),
    (lambda: freezing(2.0), "raises the typical token's sensitivity, by a median factor of 2 "),
    (lambda: freezing(1.0), "does not change the typical token's sensitivity"),
]  # fmt: skip


def with_sinks(places: list[int]) -> xr.Dataset:
    sink = np.isin(range(5), places).astype(float)
    ds = dataset(n=5, path_bound=[97, 0, 1, 1, 1])
    return ds.assign(sink=("position", sink), compared_tokens=4 - len(places))


def freezing(frozen: float) -> str:
    return say.freezing(dataset(n=5, jacobian_frozen=[frozen] * 5))


@pytest.mark.parametrize(("said", "expected"), SAID)
def test_what_is_said(said: Callable[[], str], expected: str) -> None:
    assert expected in said()


def test_spread() -> None:
    shares = xr.DataArray(
        [[0.7, 0.2, 0.05, 0.05], [0, 0, 0, 1.0]],
        dims=("layer", "position"),
        coords={"layer": [0, 1], "position": range(4), "token": ("position", list("abcd"))},
    )
    text = say.spread(shares)
    assert "70 % of the paths start at “a” at position 0" in text
    assert "5 % never leave the last token" in text
    assert "90 % start at 2 of the 4 tokens" in text
