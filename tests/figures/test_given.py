"""Every figure and table given every kind of result: it is drawn, or refused with the name of the right measurement."""

import inspect
import re
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError
from squashlens.figures.drawing.page import Page
from tests import measurements
from tests.figures import specimens

NOT_OF_ONE = ("of", "panels", "save", "styled")
PLURAL_OF_ONE = re.compile(
    r"(?<![\d.,−])\b1 (?:\w+ )?(?:length|prompt|pair|token|item|change|number|answer)s\b"
)
TABLES = {"answer_frequencies": sl.results.answer_frequencies}


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    found = {name: measurements.result(name) for name in measurements.results()}
    return found | {
        "profile of one query": found["influence"]["path_bound"].isel(query=-1)
    }


def drawers() -> dict[str, Any]:
    figures = {
        f"figures.{name}": getattr(sl.figures, name)
        for name in sl.figures.__all__
        if name not in NOT_OF_ONE
    }
    return figures | TABLES


@pytest.mark.few(3)
@pytest.mark.parametrize("name", drawers())
def test_another_result_is_refused_with_the_measurement_to_call(
    name: str, results: dict[str, Any]
) -> None:
    function = drawers()[name]
    _, *others = inspect.signature(function).parameters.values()
    rest = {one.name: "title" for one in others if one.default is one.empty}
    drawn = []
    for label, result in results.items():
        try:
            found = function(result, **rest)
        except InputError as refusal:
            said = str(refusal)
            assert (
                "squashlens." in said or "is of type" in said or "Measure with" in said
            ), (label, said)
            assert "\n" not in said
        else:
            drawn.append(label)
            assert isinstance(found, go.Figure) or name in TABLES
    assert drawn, "no result of ours is drawn"
    assert len(drawn) <= 4, drawn


def test_a_dimension_that_was_selected_away_is_missed(results: dict[str, Any]) -> None:
    with pytest.raises(
        InputError,
        match=r"no 'distance' over \(layer, length\).*squashlens\.collapse\.",
    ):
        sl.figures.collapse_curve(results["collapse"].isel(layer=-1))
    headless = sl.figures.collapse_curve(results["collapse"].isel(block=[0]))
    assert not [trace for trace in headless.data if "heads" in trace.name]
    one_head = results["attention_heads"]["sink_rate"].isel(head=1)
    assert "head 1" in Page.of(sl.figures.of(one_head)).notes
    one_seed = sl.figures.of(results["evaluate"].isel(mode=0, seed=0))
    assert "seed 0" in Page.of(one_seed).notes
    with pytest.raises(InputError, match="has no values"):
        sl.figures.collapse_curve(results["collapse"].isel(length=slice(0)))
    with pytest.raises(
        InputError, match="layer=99 was not measured. Use a measured value: 0, 1"
    ):
        sl.figures.collapse_curve(results["collapse"], layer=99)
    with pytest.raises(InputError, match="contains no result"):
        sl.figures.collapse_curve({})


def block_titles(figure: Any) -> list[str]:
    return [block[0].head for block in Page.of(figure).blocks]


def test_one_variable_is_drawn_as_itself_and_several_or_their_means_in_panels(
    results: dict[str, Any],
) -> None:
    found = results["sensitivity"]
    one: Any = sl.figures.of(found[["jacobian"]])
    assert one.data == sl.figures.by_token(found["jacobian"]).data
    several: Any = sl.figures.of({"a": found[["jacobian"]], "b": found["jacobian"]})
    assert len(several.data) == 2
    pairs = results["collapse"]
    two: Any = sl.figures.of(found[["jacobian", "null"]])
    assert block_titles(two) == ["jacobian", "null"]
    np.testing.assert_array_equal(two.data[1].y, found["null"])
    with_attributes: Any = sl.figures.of(pairs.mean("layer", keep_attrs=True))
    assert block_titles(with_attributes)[:2] == ["distance", "distance_y"]
    np.testing.assert_array_equal(
        with_attributes.data[0].y, pairs["distance"].mean("layer")
    )


def test_arrays_that_xarray_joined_have_a_panel_each(results: dict[str, Any]) -> None:
    """Also of different lengths: what is missing is not drawn."""
    bound = results["path_bound"]
    shorter = bound.isel(position=slice(0, -2)) / 9
    figure: Any = sl.figures.of(xr.concat([bound, shorter], "w", join="outer"))
    assert block_titles(figure) == ["w 0", "w 1"]
    np.testing.assert_array_equal(figure.data[0].y, bound)
    np.testing.assert_array_equal(figure.data[1].y, shorter)


def test_merged_results_have_the_figure_of_one(results: dict[str, Any]) -> None:
    merged = xr.merge([results["sensitivity"], results["collapse"]], compat="override")
    figure: Any = sl.figures.of(merged)
    np.testing.assert_array_equal(
        figure.data[0].y, results["sensitivity"]["path_bound"]
    )
    with xr.set_options(keep_attrs=False):
        doubled = results["collapse"][["distance"]] * 2
    assert isinstance(sl.figures.collapse_curve(doubled), go.Figure)  # without units


def test_a_mean_over_what_a_figure_needs_is_refused(results: dict[str, Any]) -> None:
    for one in (
        results["sensitivity"]["jacobian"],
        results["path_bound"],
        results["collapse"],
        results["influence"],
    ):
        with pytest.raises(InputError, match="no figure for scalars: .*Print them"):
            sl.figures.of(one.mean())
    for one, draw in (
        (results["path_bound"].mean("position"), sl.figures.by_token),
        (results["sensitivity"]["jacobian"].mean("position"), sl.figures.by_token),
        (results["sensitivity"].mean("position"), sl.figures.attribution),
        (results["collapse"].mean("layer"), sl.figures.collapse_curve),
    ):
        with pytest.raises(InputError, match="is the result of another measurement"):
            draw(one)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", measurements.results())
def test_a_part_of_joined_results_is_drawn_and_listed_as_it_was(
    name: str, results: dict[str, Any]
) -> None:
    """Beside a longer part: of its labels nothing is drawn, counted or listed."""
    result = results[name]
    both = sl.results.concat(
        {"longer": measurements.longer(result), "this": result}, dim="joined"
    )
    this, table = both.sel(joined="this"), sl.results.table(result)
    for listed in (
        sl.results.table(this),
        sl.results.table(both).query("joined == 'this'"),
    ):
        pd.testing.assert_frame_equal(
            listed[[*table]].reset_index(drop=True), table, check_dtype=False
        )
    if name not in specimens.NO_FIGURE:
        assert isinstance(sl.figures.of(this), go.Figure)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "name",
    sorted(
        measurements.results(), key=lambda name: name not in ("collapse", "jacobian")
    ),
)
def test_a_part_is_drawn_or_refused_and_another_order_is_drawn_alike(
    name: str, results: dict[str, Any]
) -> None:
    result = results[name]
    for dim in result.dims:
        for part in (result.isel({dim: 0}), result.isel({dim: [0]})):
            with suppress(InputError), np.errstate(all="raise"):
                assert not PLURAL_OF_ONE.search(sl.figures.of(part).to_json())
    numbers = [
        dim for dim, index in result.indexes.items() if index.dtype.kind in "iuf"
    ]
    if name not in specimens.NO_FIGURE:
        backwards = result.isel(dict.fromkeys(numbers, slice(None, None, -1)))
        traces = [
            [trace.to_json() for trace in sl.figures.of(one).data]
            for one in (result, backwards)
        ]
        assert traces[0] == traces[1]


def test_several_layers_have_a_panel_each(tiny: Any) -> None:
    bound = sl.path_bound(tiny, ["110 =", "010 ="], to_layer=[3, "y"])
    figure: Any = sl.figures.of(bound)
    titles = block_titles(figure)
    wanted = [
        f"to layer {layer}, prompt {prompt}" for layer in (3, "y") for prompt in (0, 1)
    ]
    assert titles == wanted
    with pytest.raises(
        InputError,
        match="values is over prompt and to_layer, and this function takes one of each",
    ):
        sl.figures.by_token(bound)
