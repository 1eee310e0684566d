"""Figures of interventions and prescriptions show their Datasets' values, and texts as texts."""

from typing import Any

import numpy as np
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError

RNG = np.random.default_rng(0)
FORM: dict[str, Any] = {"prefix": "How many ones are in the following sequence?", "suffix": "="}
ALL = ["delete", "substitute", "extra_digits", "random_places", "mask", "zero_values"]


def values(points: Any) -> np.ndarray:
    return np.asarray(points, dtype=np.float64)


def ones(content: tuple[str, ...]) -> str:
    return str(content.count("1"))


@pytest.fixture(scope="module")
def compared(tiny: Any) -> xr.Dataset:
    changes: Any = {"window": sl.hooks.sliding_window(3), "<b>a & b</b>": sl.hooks.uniform_attention()}
    sequence = sl.prompts.bernoulli(tiny, 9, seed=0, **FORM)
    return sl.compare(tiny, sequence, changes, answer=ones, n_samples=2, lengths=[3, 6, 9], progress=False)


@pytest.fixture(scope="module")
def prescribed() -> xr.Dataset:
    """Made up: a figure needs no model, only numbers, names and units."""
    one, model = {"units": "1"}, {"units": "model units"}
    over, shape = ("separator", "every"), (3, 2)
    separation = RNG.uniform(1, 9, shape)
    return xr.Dataset(
        {
            "separation": (over, separation, model),
            "separation_none": ((), 2.5, model),
            "gain": (over, separation / 2.5, one),
            "cost": (over, RNG.uniform(0, 1, shape), one),
            "accuracy": (over, RNG.uniform(0, 1, shape), one),
            "accuracy_none": ((), 0.25, one),
            "random": (("placement",), RNG.uniform(1, 9, 7), model),
            "best_separator": ((), "<b>"),
            "best_every": ((), 3),
        },
        coords={"separator": ["<b>", " ,", "dog"], "every": [2, 3]},
    )


def panels(compared: xr.Dataset) -> list[np.ndarray]:
    """What the three columns of `changes` are to show, (change, length) or (change,)."""
    bound = compared["bound"].values
    return [
        compared["distance"].sel(layer=6).values,
        compared["accuracy"].values,
        bound[:, :1] / bound.sum(axis=1, keepdims=True),
    ]


def test_changes_draws_a_row_for_each(compared: xr.Dataset) -> None:
    figure = sl.figures.changes(compared)
    assert len(figure.data) == 3 * 3 * 2
    traces = iter(figure.data)
    for column, expected in enumerate(panels(compared), start=1):
        for row in range(3):
            dots, mark = next(traces), next(traces)
            np.testing.assert_array_equal(values(dots.x), expected[row])
            np.testing.assert_array_equal(values(dots.y), row)
            assert values(mark.x).tolist() == [np.median(expected[row])]
            assert values(mark.y).tolist() == [row]
            assert dots.xaxis == mark.xaxis == f"x{column if column > 1 else ''}"
    assert [note.text.replace("<br>", " ") for note in figure.layout.annotations] == [
        "D ÷ rms(v) (L∞), last layer", "share answered correctly", "path bound: share of the first content token",
    ]  # fmt: skip
    assert figure.layout.xaxis.type == "log"
    assert figure.layout.xaxis2.type is None
    first, *others = (trace.marker.color for trace in figure.data[::2][:3])
    assert first not in others  # the model as it is stands out
    np.testing.assert_array_equal(compared["accuracy"].sel(change="as it is"), 1)  # else the columns say nothing
    assert compared["accuracy"].sel(change="window").min() == 0


def test_nothing_is_lost_but_zeros(compared: xr.Dataset) -> None:
    """A logarithm has none; where all are zero the row is there and empty."""
    gone = compared.copy(deep=True)
    gone["distance"][1, -1, 0] = 0
    gone["distance"][2, -1] = 0
    figure = sl.figures.changes(gone)
    last = gone["distance"].sel(layer=6).values
    np.testing.assert_array_equal(values(figure.data[2].x), last[1, 1:])
    assert values(figure.data[3].x).tolist() == [np.median(last[1, 1:])]
    assert len(figure.data[4].x) == 0
    assert list(figure.layout.yaxis.ticktext)[2].startswith("&lt;")
    assert len(figure.data) == 3 * 3 * 2 - 1


def test_a_prescription_draws_the_grid_and_chance(prescribed: xr.Dataset) -> None:
    figure = sl.figures.separator_search(prescribed)
    heat, random, best, none = figure.data
    gain, right = prescribed["gain"].values, prescribed["accuracy"].values
    np.testing.assert_array_equal(values(heat.z), np.log(gain))
    assert list(heat.x) == ["every 2", "every 3"]
    for row in range(3):
        for column in range(2):
            ratio, share = heat.text[row][column].split("<br>")
            assert float(ratio) == pytest.approx(gain[row, column], abs=0.05)
            assert share == f"{100 * right[row, column]:.0f} %"
    assert (heat.zmid, heat.texttemplate) == (0, "%{text}")
    np.testing.assert_array_equal(values(random.y), prescribed["random"])
    assert values(best.y).tolist() == [prescribed["separation"].values.max()] * 2
    assert values(none.y).tolist() == [2.5, 2.5]
    assert none.name == "no separators"
    assert figure.layout.yaxis2.title.text.startswith("median of D")
    relative = prescribed.copy()
    relative["separation"].attrs["units"] = "1"
    assert sl.figures.separator_search(relative).layout.yaxis2.title.text.startswith("median of D ÷ rms(v)")


@pytest.fixture(scope="module")
def ablation(tiny: Any) -> xr.Dataset:
    sequence = sl.prompts.figure5(tiny, 12)["d"]
    return sl.separator_ablation(tiny, sequence, kinds=ALL, from_blocks=[1, 4], progress=False)


@pytest.mark.parametrize("chosen", [{}, {"layer": 3, "from_block": 4}])
def test_retained_by_kind_draws_every_length(chosen: dict[str, int], ablation: xr.Dataset) -> None:
    figure = sl.figures.retained_by_kind(ablation, **chosen)
    layer, block = chosen.get("layer", 6), chosen.get("from_block", 1)
    here = ablation.sel(layer=layer)
    rows = {
        "replaced by another token": here["retained"].sel(edit="substitute"),
        "replaced by a digit": here["retained"].sel(edit="extra_digits"),
        "at random places": here["retained"].sel(edit="random_places"),
        "masked": here["retained_from"].sel(hook="mask", from_block=block),
        "values zeroed": here["retained_from"].sel(hook="zero_values", from_block=block),
    }
    assert list(figure.layout.yaxis.ticktext) == list(rows)
    traces = iter(figure.data)
    for height, retained in enumerate(rows.values()):
        kept = retained.values[np.isfinite(retained.values)]
        assert 0 < len(kept) < len(retained)
        dots, bar, mark = next(traces), next(traces), next(traces)
        np.testing.assert_array_equal(values(dots.x), np.clip(kept, -0.6, 1.6))
        low, middle, high = np.quantile(kept, [0.25, 0.5, 0.75])
        assert values(bar.x).tolist() == [low, high]
        assert values(mark.x).tolist() == [middle]
        assert {*values(dots.y), *values(bar.y), *values(mark.y)} == {height}
        assert f"median {middle:.4g}, middle half {low:.4g} to {high:.4g}" in mark.hovertemplate
    assert next(traces, None) is None
    assert [line.x0 for line in figure.layout.shapes] == [0, 1]
    assert f"layer {layer}" in figure.layout.title.text


def test_retained_by_kind_wants_an_ablation(tiny: Any, ablation: xr.Dataset) -> None:
    edits = sl.figures.retained_by_kind(ablation.drop_vars(["retained_from", "distance_from"]))
    assert len(edits.layout.yaxis.ticktext) == 3
    nothing = ablation.sel(edit=["none", "separators", "delete"]).drop_vars("retained_from")
    with pytest.raises(InputError, match="There is no ablation to draw"):
        sl.figures.retained_by_kind(nothing)
    unclear = ablation.copy(deep=True)
    unclear["retained"][:] = np.nan
    assert len(sl.figures.retained_by_kind(unclear).data) == 3 + 2 * 3  # a row without values stays, empty
    assert len(sl.figures.retained_by_kind(unclear).layout.yaxis.ticktext) == 5
