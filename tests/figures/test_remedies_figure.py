"""The figure of interventions on families shows the Dataset's values, at the longest length."""

from typing import Any

import numpy as np
import pytest
import xarray as xr

import squashlens as sl

RNG = np.random.default_rng(0)
CHANGES, FAMILIES = ["as it is", "<b>window</b>", "log n"], ["counting", "<i>copy</i>"]


@pytest.fixture(scope="module")
def compared() -> xr.Dataset:
    """Made up: a figure needs no model, only numbers, names and units."""
    cell = ("change", "family", "length")

    def around(
        name: str, dims: tuple[str, ...], shape: tuple[int, ...]
    ) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        middle = RNG.uniform(0.4, 0.6, shape)
        return {name: (dims, middle), f"{name}_low": (dims, middle - 0.1), f"{name}_high": (dims, middle + 0.2)}

    found = xr.Dataset(
        {
            **around("distance_ratio", cell, (3, 2, 2)),
            **around("jacobian_norm_ratio", (*cell, "place"), (3, 2, 2, 3)),
            **around("accuracy", cell, (3, 2, 2)),
            **around("kl", ("change",), (3,)),
            "distance": ((*cell, "sample"), RNG.uniform(1, 2, (3, 2, 2, 7))),
        },
        coords={"change": CHANGES, "family": FAMILIES, "length": [3, 9], "place": ["first", "middle", "last"]},
    ).rename(kl="kl_median")
    for values in found.data_vars.values():
        values.attrs |= {"units": "1"}
    return found


def test_each_panel_has_the_values_of_each_family(compared: xr.Dataset) -> None:
    figure = sl.figures.remedies(compared)
    last = compared.isel(length=-1)
    expected = [
        *(last[f"distance_ratio{end}"] for end in ("", "_low", "_high")),
        *(
            last[f"jacobian_norm_ratio{end}"].sel(place=place)
            for place in ("first", "last")
            for end in ("", "_low", "_high")
        ),
        *(last[f"accuracy{end}"] for end in ("", "_low", "_high")),
    ]  # fmt: skip
    marks: list[Any] = [*figure.data]
    assert len(marks) == 4 * 2 + 1
    for number, mark in enumerate(marks[:8]):
        middle, low, high = (one.isel(family=number % 2) for one in expected[3 * (number // 2) :][:3])
        np.testing.assert_array_equal(mark.x, middle)
        np.testing.assert_allclose(np.asarray(mark.error_x.array), high - middle)
        np.testing.assert_allclose(np.asarray(mark.error_x.arrayminus), middle - low)
        assert np.abs(np.asarray(mark.y) - np.arange(3)).max() < 0.5
    np.testing.assert_array_equal(marks[8].x, compared["kl_median"])
    assert "9 content tokens" in figure.layout.title.subtitle.text + str(figure.layout)
    assert "&lt;b&gt;window" in figure.layout.yaxis.ticktext[1]
    assert [mark.name for mark in marks if mark.showlegend is None] == ["counting", "&lt;i&gt;copy&lt;/i&gt;"]


def test_intervals_that_are_missing_have_no_bars(compared: xr.Dataset) -> None:
    few = compared.copy(deep=True)
    for end in ("low", "high"):
        few[f"distance_ratio_{end}"][:] = np.nan
    figure = sl.figures.of(few.drop_vars(["jacobian_norm_ratio", "accuracy", "kl_median"]))
    marks: list[Any] = [*figure.data]
    assert len(marks) == 2
    assert all((np.asarray(mark.error_x.array) == 0).all() for mark in marks)
