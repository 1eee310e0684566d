"""Figures of collapse, mechanism and separators show their Datasets' values and nothing else."""

from typing import Any

import numpy as np
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError
from squashlens.records.joining import restated
from tests import captured


def rounded_up(value: float) -> str:
    """The least number of one digit that is not below."""
    power = next(p for p in range(-20, 20) if 9 * 10.0**p >= value)
    return f"{next(digit * 10.0**power for digit in range(1, 10) if digit * 10.0**power >= value):.1g}"


def values(trace: Any) -> np.ndarray:
    return np.asarray(trace.y, dtype=np.float64)


@pytest.fixture(scope="module")
def panel(tiny: Any) -> Any:
    sequence = sl.prompts.figure5(tiny, 12)["a"]
    return captured.collapse(
        tiny,
        sequence,
        baselines=["contrast", "unrelated"],
        n_samples=2,
        by_head="value",
        noise_lengths=3,
        progress=False,
    )


@pytest.fixture(scope="module")
def ablation(tiny: Any) -> Any:
    return sl.separator_ablation(tiny, sl.prompts.figure5(tiny, 12)["d"], progress=False)


def test_the_curve_draws_everything_the_dataset_has(panel: Any) -> None:
    figure = sl.figures.collapse_curve(panel, trained=8)
    traces = {t.name: t for t in figure.data if t.name}
    last = panel.sel(layer=6)
    np.testing.assert_array_equal(values(traces["v and v* (last token repeated)"]), last["distance"])
    np.testing.assert_array_equal(values(traces["contrast: another last token"]), last["contrast"])
    np.testing.assert_array_equal(values(traces["heads: mean, min to max"]), panel["head_mean"].sel(block=5))
    floor = last["noise_floor"].values
    # The noise floor is far below: it is named, and does not squeeze what is drawn.
    assert "noise floor" not in traces
    assert f"noise floor below the axis, at most {rounded_up(np.nanmax(floor))}" in figure.layout.title.subtitle.text
    drawn = np.concatenate([values(t)[values(t) > 0] for t in figure.data])
    low, high = figure.layout.yaxis.range
    assert low < np.log10(drawn.min()) < low + 0.2
    assert high - 0.2 < np.log10(drawn.max()) < high
    near = restated(panel.assign(noise_floor=panel["noise_floor"] * 1e6), {})
    trace = next(t for t in sl.figures.collapse_curve(near).data if t.name == "noise floor")
    np.testing.assert_array_equal(values(trace), np.where(floor > 0, floor * 1e6, np.nan))
    draws = [values(t) for t in figure.data if t.name == "unrelated: other content"]
    np.testing.assert_array_equal(draws, last["unrelated"])
    band = [values(t) for t in figure.data if t.name is None]
    np.testing.assert_array_equal(band, [panel[f"head_{edge}"].sel(block=5) for edge in ("max", "min")])
    assert list(traces["contrast: another last token"].x) == panel["length"].values.tolist()
    assert (figure.layout.shapes[0].x0, figure.layout.shapes[0].x1) == (1, 8)
    assert figure.layout.yaxis.type == figure.layout.xaxis.type == "log"
    lower = sl.figures.collapse_curve(panel, layer=3)
    np.testing.assert_array_equal(values(lower.data[-1]), panel["distance"].sel(layer=3))
    assert "layer 3" in lower.layout.title.text


def test_a_draw_of_the_same_content_is_left_out(panel: Any) -> None:
    """Its distance is rounding at all layers. One that is near at a single layer has other content, and stays."""
    floor = panel["noise_floor"].max("replayed").values
    draws = panel["unrelated"].transpose("draw", "layer", "length").values.copy()
    draws[0, :, 0], draws[1, -1, 3] = floor / 2, floor[-1] / 2
    changed = restated(panel.assign(unrelated=(("draw", "layer", "length"), draws, panel["unrelated"].attrs)), {})
    first, second = (values(t) for t in sl.figures.collapse_curve(changed).data if t.name == "unrelated: other content")
    np.testing.assert_array_equal(first, [np.nan, *draws[0, -1, 1:]])
    np.testing.assert_array_equal(second, draws[1, -1])


def test_the_heatmap_draws_both_scales_alike(tiny: Any) -> None:
    pairs = sl.capture(tiny, sl.prompts.figure5(tiny, 12)["a"], progress=False)
    absolute, relative = (sl.collapse(tiny, pairs, scale=scale) for scale in ("absolute", "relative"))
    expected = relative["distance"].values
    for found in (absolute, relative):
        heat = sl.figures.collapse_heatmap(found).data[0]
        np.testing.assert_allclose(heat.z[1:], np.log10(expected[1:]), rtol=1e-5)
        assert np.isnan(heat.z[0]).all()  # layer 0 is identical, and zero has no logarithm
    with pytest.raises(InputError, match="it has no 'rms' over"):
        sl.figures.collapse_heatmap(absolute.drop_vars("rms"))


def test_mechanism_draws_its_steps(tiny: Any) -> None:
    ds = captured.mechanism(tiny, sl.prompts.figure5(tiny, 12)["a"], progress=False)
    figure = sl.figures.mechanism(ds, length=9)
    lines = [t for t in figure.data if t.type == "scatter"]
    np.testing.assert_array_equal(values(lines[2]), ds["attention_tv_mean"].sel(block=2))
    np.testing.assert_array_equal(values(lines[6 + 4]), ds["self_weight_mean"].sel(block=4))
    np.testing.assert_array_equal(values(lines[-2]), ds["observed"])
    np.testing.assert_array_equal(values(lines[-1]), ds["bound"])
    bars = {t.name: values(t) for t in figure.data if t.type == "bar"}
    for part, found in bars.items():
        np.testing.assert_array_equal(found, ds["share"].sel(part=part, length=9))
    np.testing.assert_allclose(sum(bars.values()), 1)


def test_runs_have_their_own_distances_and_noise() -> None:
    """Made up: two runs at two layers; zeros have no place on a logarithm."""
    distance = np.array([[[4, 2, 1], [8, 0, 2]], [[3, 2, 1], [6, 5, 4]]], dtype=float)
    noise = np.array([[[0.1, 0.2], [0.3, 0.4]], [[0.5, 0.6], [0.7, 0]]])
    found = xr.Dataset(
        {
            "distance": (("run", "layer", "length"), distance, {"units": "model units"}),
            "noise_floor": (("run", "layer", "replayed"), noise),
        },
        coords={"run": ["float32", "bfloat16"], "layer": [0, 1], "length": [2, 4, 8], "replayed": [2, 8]},
    )
    own, floor, other, its_floor = sl.figures.runs(found).data
    assert [own.name, floor.name, other.name] == ["float32", "float32, noise floor", "bfloat16"]
    np.testing.assert_array_equal(values(own), [8, np.nan, 2])
    np.testing.assert_array_equal(values(other), [6, 5, 4])
    np.testing.assert_array_equal(values(floor), [0.3, 0.4])
    np.testing.assert_array_equal(values(its_floor), [0.7, np.nan])
    assert list(own.x) == [2, 4, 8]
    assert list(its_floor.x) == [2, 8]
    assert other.line.color == its_floor.marker.color != own.line.color
    lower = sl.figures.runs(found, layer=0)
    np.testing.assert_array_equal(values(lower.data[0]), [4, 2, 1])
    assert lower.layout.title.text.endswith("layer 0")
    assert lower.layout.yaxis.title.text == "D"


def test_layer_trace_draws_every_ablation(ablation: Any) -> None:
    figure = sl.figures.layer_trace(ablation, length=10, from_block=2)
    traces = {t.name: values(t) for t in figure.data}
    assert len(traces) == 12
    here = ablation.sel(length=10)
    for axis, others in (("y", 4), ("y2", 6)):
        own = [t for t in figure.data if t.yaxis == axis]
        assert len({t.line.color for t in own}) == len(own) == others + 2
        assert [t.name for t in own][:2] == ["no separators", "separators"]
    assert [note.text for note in figure.layout.annotations] == ["changed prompts", "hooks from block 2 on"]
    assert len(sl.figures.layer_trace(ablation.drop_vars("distance_from")).data) == 6
    alone = sl.figures.layer_trace(ablation.sel(edit=["none", "separators"]), from_block=2)
    assert [note.text for note in alone.layout.annotations] == ["hooks from block 2 on"]
    assert len(alone.data) == 8
    np.testing.assert_array_equal(traces["separators"][1:], here["distance"].sel(edit="separators")[1:])
    masked = here["distance_from"].sel(hook="mask", from_block=2)
    np.testing.assert_array_equal(traces["masked"][1:], masked[1:])
    assert np.isnan(traces["separators"][0])


def test_from_block_map_draws_what_is_retained(ablation: Any) -> None:
    heat = sl.figures.from_block_map(ablation, hook="zero_values", length=10).data[0]
    expected = ablation["retained_from"].sel(hook="zero_values", length=10)
    np.testing.assert_array_equal(heat.customdata, expected)
    assert list(heat.y) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(InputError, match="hook='mask' was not measured"):
        sl.figures.from_block_map(ablation.sel(hook=["zero_values"]))
