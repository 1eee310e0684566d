"""The report's sentences on data whose truth is known: true, false, undecided and degenerate."""

from typing import Any

import numpy as np
import pytest
import xarray as xr

from squashlens.measure.sensitivity import ESTIMATES
from squashlens.reporting import sentences as say

Given = dict[str, float] | None


def dataset(n: int = 20, agreement: Given = None, trend: Given = None, **values: Any) -> xr.Dataset:
    base: dict[str, Any] = dict.fromkeys(ESTIMATES, np.ones(n)) | values
    ds = xr.Dataset(
        {name: ("position", np.asarray(v, dtype=float)) for name, v in base.items()},
        coords={"position": range(n), "token": ("position", [f"t{i}" for i in range(n)]), "estimate": list(ESTIMATES)},
    )
    for variable, given in (("rank_agreement", agreement), ("position_trend", trend)):
        ds[variable] = ("estimate", [(given or {}).get(name, np.nan) for name in ESTIMATES])
    ds["compared_tokens"] = ((), n)
    return ds


@pytest.mark.parametrize(
    ("rho", "null", "expected"),
    [
        (0.9, 0.2, ["ranks tokens much as the true Jacobian", "ρ = 0.90", "reaches 0.20"]),
        (-0.9, 0.1, ["ranks tokens against the true Jacobian", "ρ = -0.90"]),
        (0.2, 0.8, ["is undecided here", "does better (0.80)"]),
        (0.7, 0.701, ["does just as well (0.70)"]),
    ],
)
def test_agreement(rho: float, null: float, expected: list[str]) -> None:
    text = say.agreement(dataset(agreement={"path_bound": rho, "null": null}))
    for part in expected:
        assert part in text


@pytest.mark.parametrize(("share", "said"), [(0.5, "0.500"), (0.999, "0.999"), (0.99999, "above 0.999")])
def test_asked(share: float, said: str) -> None:
    answer = xr.DataArray([share], dims="rank", coords={"token": ("rank", ["9"])})
    text = say.asked(dataset(n=3), answer)
    assert "has 3 tokens and is read at its last one, “t2”" in text
    assert f"“9” (probability {said})" in text


def test_agreement_with_too_few_tokens() -> None:
    assert "nothing can be said" in say.agreement(dataset(n=2))
    assert "nothing can be said" in say.agreement(dataset(n=20))  # all constant: ρ is not a number


def test_decided_uses_the_number_of_tokens() -> None:
    assert say.decided(0.5, 20)
    assert not say.decided(0.5, 10)
    assert not say.decided(float("nan"), 100)
    assert not say.decided(1.0, 2)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (-0.9, "favours early tokens beyond what causality alone does"),
        (0.9, "favours late tokens more than causality alone does"),
        (0.1, "favours neither early nor late tokens"),
    ],
)
def test_position(ratio: float, expected: str) -> None:
    trend = {"jacobian": -0.8, "path_bound": 0.8, "null": -1.0, "bound_over_null": ratio}
    text = say.position(dataset(trend=trend))
    assert expected in text
    assert "true sensitivity falls (ρ = -0.80)" in text
    assert "path bound rises (ρ = 0.80)" in text


def test_is_it_a_bound() -> None:
    below = say.is_it_a_bound(dataset(n=4, path_bound=[1, 1, 5, 5], jacobian=[2, 2, 2, 2]))
    assert "not a bound for this model" in below
    assert "2 of 4 tokens" in below
    assert "from 0.5 to 2.5, median 1.5" in below
    above = say.is_it_a_bound(dataset(n=4, path_bound=[4] * 4, jacobian=[2] * 4))
    assert "nothing guarantees that" in above
    assert "cannot be compared" in say.is_it_a_bound(dataset(n=4, jacobian=[0] * 4))


@pytest.mark.parametrize(
    ("frozen", "expected"),
    [
        (0.5, "lowers the typical token's sensitivity, by a median factor of 0.5"),
        (2.0, "raises the typical token's sensitivity, by a median factor of 2 "),
        (1.0, "leaves the typical token's sensitivity as it is"),
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
