"""Every figure and table given every kind of result: it is drawn, or refused with the name of the right measurement."""

import inspect
from collections.abc import Callable
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
TABLES = {"answer_frequencies": sl.results.answer_frequencies}


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    found = {name: measurements.result(name) for name in measurements.results()}
    return found | {
        "profile of one query": found["token_influence"]["path_bound"].isel(query=-1)
    }


def drawers() -> dict[str, Any]:
    figures = {
        f"figures.{name}": getattr(sl.figures, name)
        for name in sl.figures.__all__
        if name not in NOT_OF_ONE
    }
    return figures | TABLES


def block_titles(figure: Any) -> list[str]:
    return [block[0].head for block in Page.of(figure).blocks]


def test_one_variable_is_drawn_as_itself_and_several_or_their_means_in_panels(
    results: dict[str, Any],
) -> None:
    found = results["bound_vs_jacobian"]
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


@pytest.mark.few(1)
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
                sl.figures.of(part)
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


@pytest.mark.few(3)
@pytest.mark.parametrize("name", drawers())
def test_few_results_are_drawn_by_one_figure_and_others_refused(
    name: str, results: dict[str, Any]
) -> None:
    function = drawers()[name]
    _, *others = inspect.signature(function).parameters.values()
    rest = {one.name: "title" for one in others if one.default is one.empty}
    drawn = []
    for label, result in results.items():
        with suppress(InputError):
            drawn.append((label, function(result, **rest)))
    assert 0 < len(drawn) <= 4, drawn


def test_what_was_selected_is_said(results: dict[str, Any], tiny: Any) -> None:
    headless = sl.figures.collapse_curve(results["collapse"].isel(block=[0]))
    assert not [trace for trace in headless.data if "heads" in trace.name]
    one_head = results["head_statistics"]["sink_rate"].isel(head=1)
    assert "head 1" in Page.of(sl.figures.of(one_head)).notes
    one_seed = sl.figures.of(results["evaluate_task"].isel(mode=0, seed=0))
    assert "seed 0" in Page.of(one_seed).notes
    bound = sl.path_bound(tiny, ["110 =", "010 ="], to_layer=[3, 6])
    layers = [
        f"to layer {layer}, prompt {prompt}" for layer in (3, 6) for prompt in (0, 1)
    ]
    assert block_titles(sl.figures.of(bound)) == layers


CUBE = xr.DataArray(np.ones((13, 14, 15)))
F = sl.figures
REFUSED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a layer": lambda r: F.collapse_curve(r["collapse"].isel(layer=-1)),
    "no length": lambda r: F.collapse_curve(r["collapse"].isel(length=slice(0))),
    "no result": lambda r: F.collapse_curve({}),
    "no results": lambda r: F.of({}),
    "a number": lambda r: F.of(r["path_bound"].mean()),
    "numbers": lambda r: F.of(r["collapse"].mean()),
    "a mean": lambda r: F.by_token(r["path_bound"].mean("position")),
    "a mean of several": lambda r: F.attribution(
        r["bound_vs_jacobian"].mean("position")
    ),
    "a mean over layers": lambda r: F.collapse_curve(r["collapse"].mean("layer")),
    "text": lambda r: F.of(xr.DataArray(["a"])),
    "nothing": lambda r: F.of(xr.DataArray([])),
    "a cube": lambda r: F.of(CUBE),
    "no panels": lambda r: F.panels({}),
    "columns": lambda r: F.panels([r["path_bound"]], columns=3),
    "panels of panels": lambda r: F.panels([F.panels([r["path_bound"]])]),
    "another's figure": lambda r: F.styled(go.Figure(go.Scatter(y=[1, 2]))),
    "too low": lambda r: F.styled(
        F.of(r["bound_vs_jacobian"]), width="column", height=1.2
    ),
    "too wide": lambda r: F.styled(F.of(r["bound_vs_jacobian"]), width=1000),
    "an ending": lambda r: F.save(F.of(r["path_bound"]), "figure.doc"),
    "dots": lambda r: F.save(F.of(r["path_bound"]), "figure.png", dpi=1),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_refused(
    call: Callable[[dict[str, Any]], Any], results: dict[str, Any]
) -> None:
    with pytest.raises(InputError):
        call(results)
