"""The report's sentences on data whose truth is known: true, false, undecided and degenerate."""

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


@pytest.mark.parametrize(
    ("over_null", "expected"),
    [
        (
            (0.4, 0.1, 0.7),
            "reaches ρ = 0.20; the path bound agrees better (difference 0.40, 95 % interval 0.10 to 0.70)",
        ),
        ((-0.4, -0.7, -0.1), "the path bound agrees worse"),
        ((0.1, -0.2, 0.4), "whether the path bound agrees better is undecided"),
        ((0.1, 0.0004, 0.4), "agrees better (difference 0.10, 95 % interval 0.0004 to 0.40)"),
    ],
)
def test_agreement_beside_the_null(over_null: Any, expected: str) -> None:
    both = {"path_bound": (0.6, 0.4, 0.8, 0.001), "null": (0.2, -0.1, 0.5, 0.4)}
    assert expected in say.agreement(dataset(agreement=both, over_null=over_null))


@pytest.mark.parametrize(("share", "said"), [(0.5, "0.500"), (0.999, "0.999"), (0.99999, "above 0.999")])
def test_prompt_summary(share: float, said: str) -> None:
    answer = xr.DataArray([share], dims="rank", coords={"token": ("rank", ["9"])})
    text = say.prompt_summary(dataset(n=3), answer)
    assert "has 3 tokens and is measured at its last token, “t2”" in text
    assert f"“9” (probability {said})" in text


def test_agreement_with_too_few_tokens() -> None:
    assert "cannot be computed" in say.agreement(dataset(n=2))
    assert "cannot be computed" in say.agreement(dataset(n=20))  # all constant: ρ is not a number


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        ((-0.9, -0.97, -0.6, 0.001), "favours early tokens beyond what causality alone does"),
        ((0.9, 0.6, 0.97, 0.001), "favours late tokens more than causality alone does"),
        ((0.1, -0.3, 0.5, 0.5), "is undecided on this prompt"),
        ((0.01, -0.06, 0.08, 0.5), "favours neither early nor late tokens"),
    ],
)
def test_position(ratio: Rho, expected: str) -> None:
    trend: Given = {
        "jacobian": (-0.8, -0.85, -0.72, 0.01), "path_bound": (0.8, 0.5, 0.95, 0.01), "null": (-1, -1, -0.99, 0.01),
        "bound_over_null": ratio,
    }  # fmt: skip
    text = say.position(dataset(trend=trend))
    assert expected in text
    assert "true sensitivity falls (strong trend, Spearman ρ = -0.80, 95 % interval -0.85 to -0.72, p = 0.010)" in text
    assert "path bound rises (moderate to very strong trend" in text
    assert "20 compared tokens" in text


def test_is_it_a_bound() -> None:
    below = say.is_it_a_bound(dataset(n=4, path_bound=[1, 1, 5, 5], jacobian=[2, 2, 2, 2]))
    assert "not a bound for this model" in below
    assert "2 of 4 tokens" in below
    assert "from 0.5 to 2.5, median 1.5" in below
    above = say.is_it_a_bound(dataset(n=4, path_bound=[4] * 4, jacobian=[2] * 4))
    assert "Nothing guarantees that" in above
    assert "cannot be compared" in say.is_it_a_bound(dataset(n=4, jacobian=[0] * 4))


@pytest.mark.parametrize(
    ("frozen", "expected"),
    [
        (0.5, "lowers the typical token's sensitivity, by a median factor of 0.5"),
        (2.0, "raises the typical token's sensitivity, by a median factor of 2 "),
        (1.0, "does not change the typical token's sensitivity"),
    ],
)
def test_freezing(frozen: float, expected: str) -> None:
    assert expected in say.freezing(dataset(n=5, jacobian_frozen=[frozen] * 5))


def test_extremes_and_zero() -> None:
    text = say.extremes(dataset(n=4, jacobian=[1, 8, 2, 4]))
    assert "“t1” at position 1" in text
    assert "“t0” at position 0, 8 times less (8 against 1)" in text
    assert "infinitely less" in say.extremes(dataset(n=2, jacobian=[0, 1]))


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
