"""Figures of synthetic stacks show their Datasets' values, and leave them alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import squashlens as sl
from squashlens import synthetic
from squashlens.errors import InputError
from squashlens.synthetic import Stack

LENGTHS = [10, 50, 200, 400, 800]


def values(points: Any) -> np.ndarray:
    return np.asarray(points, dtype=np.float64)


@pytest.fixture(scope="module")
def several() -> dict[str, xr.Dataset]:
    stacks = {"plain": Stack(projections="direct"), "<b>deep</b>": Stack(depth=2, encoding="rope")}
    return {name: synthetic.convergence(stack, LENGTHS, progress=False) for name, stack in stacks.items()}


@pytest.fixture(scope="module")
def softmaxes() -> xr.Dataset:
    return synthetic.softmax_total_variation([10, 100, 300, 600, 1000], k=20)


@pytest.fixture(scope="module")
def surveyed() -> xr.Dataset:
    over = {"encoding": ["none", "alibi"], "depth": [1, 2, 3], "window": [None, 4]}
    return synthetic.survey(Stack(scale=0.5), over, LENGTHS, progress=False)


def test_convergence_draws_d_and_delta_with_their_bands(several: dict[str, xr.Dataset]) -> None:
    figure = sl.figures.synthetic_convergence(several)
    traces = iter(figure.data)
    for name, found in several.items():
        for axis, data in (("y", found["distance"][:, -1]), ("y2", found["total_variation"][:, 0])):
            high, low, line = next(traces), next(traces), next(traces)
            np.testing.assert_allclose(values(high.y), data.max("seed"), rtol=1e-12)
            np.testing.assert_allclose(values(low.y), data.min("seed"), rtol=1e-12)
            np.testing.assert_allclose(values(line.y), data.mean("seed"), rtol=1e-12)
            assert values(line.x).tolist() == LENGTHS
            assert {trace.yaxis for trace in (high, low, line)} == {axis}
            assert (line.showlegend is None) == (axis == "y")
            mean, edges = f"{found['exponent_mean'].values[-1]:.3f}", found["variation_exponent_low"].values[0]
            assert mean.replace("-", "−") in line.name
            assert f"[{edges:.3f}".replace("-", "−") in line.name
            assert line.name.startswith("plain: " if name == "plain" else "&lt;b&gt;deep&lt;/b&gt;: ")
        if name == "plain":
            guide = next(traces)
            assert guide.showlegend is False
            np.testing.assert_allclose(values(guide.y) * LENGTHS, values(guide.y)[0] * LENGTHS[0])
            assert values(guide.y)[2] == pytest.approx(found["distance"][:, 0, 2].mean().item())
            assert "(derived limit: n<sup>−1.0</sup>, dashed)" in line.name
    assert next(traces, None) is None
    assert figure.layout.yaxis2.matches == "y"
    assert "(L1)" in figure.layout.title.text


def test_total_variation_draws_bars_and_the_derived_mean(softmaxes: xr.Dataset) -> None:
    figure = sl.figures.synthetic_total_variation(softmaxes)
    line, derived = figure.data
    data = softmaxes["total_variation"]
    np.testing.assert_allclose(values(line.y), data.mean("seed"))
    np.testing.assert_allclose(values(line.y) + values(line.error_y.array), data.max("seed"))
    np.testing.assert_allclose(values(line.y) - values(line.error_y.arrayminus), data.min("seed"))
    np.testing.assert_array_equal(values(derived.y), softmaxes["expected"])
    (shade,) = figure.layout.shapes
    assert (shade.x0, shade.x1) == (10, 20)
    (note,) = figure.layout.annotations
    assert (note.x, note.text) == (1, "n ≤ 20: all entries perturbed")
    for name, told in (("exponent", "δ ∝"), ("leading", "δ ÷ (1 − k/n) ∝")):
        mean, low, high = (f"{float(softmaxes[f'{name}_{edge}']):.3f}" for edge in ("mean", "low", "high"))
        assert f"{told} n<sup>{mean}</sup> [{low}, {high}]".replace("-", "−") in line.name
    assert derived.name.endswith("n<sup>−1</sup>")


@pytest.mark.parametrize("first", [20, 30])
def test_no_shade_where_all_lengths_are_beyond_k(first: int) -> None:
    found = synthetic.softmax_total_variation([first, 200, 400, 800], k=20)
    figure = sl.figures.synthetic_total_variation(found)
    assert not figure.layout.shapes
    assert not figure.layout.annotations


def test_a_survey_draws_every_cell(surveyed: xr.Dataset) -> None:
    figure = sl.figures.survey(surveyed)
    assert len(figure.data) == 2 * 6
    titles = [note.text for note in figure.layout.annotations]
    assert titles[:4] == ["depth 1, window all", "depth 2, window all", "depth 3, window all", "depth 1, window 4"]
    panels = {(depth, window): index for index, (depth, window) in enumerate((d, w) for d in (1, 2, 3) for w in "a4")}
    for (depth, window), index in panels.items():
        here = surveyed.sel(depth=depth, window="all" if window == "a" else "4")
        both = figure.data[2 * index : 2 * index + 2]
        number = depth + (3 if window == "4" else 0)
        for trace, name in zip(both, ("exponent", "variation_exponent"), strict=True):
            assert trace.xaxis == f"x{number if number > 1 else ''}"
            np.testing.assert_array_equal(values(trace.x), here[f"{name}_mean"])
            np.testing.assert_allclose(values(trace.x) + values(trace.error_x.array), here[f"{name}_high"])
            np.testing.assert_allclose(values(trace.x) - values(trace.error_x.arrayminus), here[f"{name}_low"])
            assert values(trace.y).round().tolist() == [0, 1]
            assert (trace.showlegend is None) == (index == 0)
        open_marks = [colour == "white" for colour in both[1].marker.color]
        assert open_marks == (~here["premise"]).values.tolist()
        assert "white" not in both[0].marker.color
    assert list(figure.layout.yaxis.ticktext) == ["none", "alibi"]
    assert 0 < surveyed["premise"].sum() < surveyed["premise"].size


@pytest.mark.slow
def test_a_study_of_stacks_has_the_numbers_and_the_figure_of_one_survey(surveyed: xr.Dataset, tmp_path: Path) -> None:
    grid = {
        "measurement": "synthetic.survey",
        "arguments": {"stack": {"scale": 0.5}, "over": {"window": [None, 4]}, "lengths": list(LENGTHS)},
        "each": {"stack.encoding": ["none", "alibi"], "stack.depth": [1, 2, 3]},
    }
    study = sl.Study(grid, store=tmp_path)
    assert study.run(progress=False)["done"].tolist() == [6]
    found = study.combine().load()
    assert found["distance"].dims == ("stack_encoding", "stack_depth", "window", "seed")
    for name, expected in surveyed.data_vars.items():
        assert found[name].dtype == expected.dtype
        np.testing.assert_array_equal(found[name], expected)
    one, other = sl.figures.survey(found), sl.figures.survey(surveyed)
    assert one.layout == other.layout
    assert [values(a.x).tolist() for a in one.data] == [values(a.x).tolist() for a in other.data]


def test_surveys_over_fewer_and_more_options(surveyed: xr.Dataset) -> None:
    assert len(sl.figures.survey(surveyed.isel(depth=0, window=0, drop=True)).data) == 2
    assert len(sl.figures.survey(surveyed.isel(window=0, drop=True)).data) == 6
    wide = surveyed.expand_dims(heads=[1]).transpose("encoding", "depth", "window", "heads", "seed")
    with pytest.raises(InputError, match="no place for the options heads"):
        sl.figures.survey(wide)
    over = {"encoding": ["none"], "depth": [1], "window": [None], "heads": [1, 2]}
    with pytest.raises(InputError, match="no place for the options heads"):
        sl.figures.survey(synthetic.survey(Stack(scale=0.5), over, LENGTHS, progress=False))
