"""The specimens that are looked at: one of every figure, short and long, with the dimensions of real results."""

from typing import Any

import plotly.graph_objects as go
import pytest
import xarray as xr

import squashlens as sl
from squashlens.figures.drawing.page import Page
from squashlens.figures.usual import _fits, usual_figures
from squashlens.records.provenance import PREFIX
from tests import measurements
from tests.figures import specimens

NO_DRAWING = {"of", "panels", "save", "styled"}
# Drawn as they are measured, or like another.


@pytest.mark.parametrize(
    "kind", [pytest.param("small", marks=pytest.mark.slow), "full"]
)
def test_every_figure_has_a_specimen(kind: str) -> None:
    assert {*sl.figures.__all__} - specimens.drawn(kind)[1] <= NO_DRAWING


@pytest.mark.parametrize(
    "kind", [pytest.param("small", marks=pytest.mark.slow), "full"]
)
def test_every_figure_has_a_title_and_axes_that_say_what_they_show(kind: str) -> None:
    """A panel's y axis has a title, or the panel or its rows have names; that of x, or of the panel below, has one."""
    for name, figure in specimens.drawn(kind)[0].items():
        page, layout = Page.of(figure), figure.layout
        assert layout.title.text, name
        for panel in page.panels:
            assert panel.up or panel.title or layout[panel.y].ticktext, (name, panel)
        for block in page.blocks:
            assert block[-1].across or block[-1].title, (name, block[-1])


def test_no_text_of_a_token_can_be_read_as_mathematics() -> None:
    """Plotly looks for two `$` in any text that it draws; the specimens' tokens have them."""
    written = {
        name: go.Figure(figure).update_layout(meta=None).to_json()
        for name, figure in specimens.drawn("full")[0].items()
    }
    assert [name for name, text in written.items() if "$" in text] == []
    assert sum("&#36;" in text for text in written.values()) > 5


def test_each_result_has_the_figure_that_its_measurement_names() -> None:
    """The first that `@measurement` says is what `of` draws."""
    for name in {*measurements.results()} - {*specimens.NO_FIGURE}:
        result = measurements.result(name)
        measures = getattr(
            getattr(sl, name, getattr(sl.attention_paths, name, None)),
            "__measures__",
            None,
        )
        if measures is not None:
            fitting = [
                figure.__name__ for figure in usual_figures() if _fits(result, figure)
            ]
            assert fitting[:1] == [*measures[0][:1]], name


# What the small calls leave out, since it takes seconds.
WITH_BASELINES: dict[str, Any] = {
    "distinguishable_lengths": {"n_random_models": 1},
    "diagnose": {"n_random_models": 1},
    "collapse_vs_readout": {"task": measurements.LAST},
}


@pytest.mark.few(5)
@pytest.mark.parametrize("name", specimens.MEASUREMENTS)
def test_specimens_have_the_dimensions_of_real_results(name: str) -> None:
    """A variable with other dimensions than the measured one would hide what its figure cannot draw."""
    ours = specimens.MEASUREMENTS[name]()
    whole = WITH_BASELINES.get(name)
    real = (
        measurements.result(name)
        if whole is None
        else measurements.ROWS[name].called(**whole)
    )
    assert dimensions(ours).items() <= dimensions(real).items()


def dimensions(result: Any) -> dict[str, tuple[str, ...]]:
    """The dimensions of each variable by name, in their order."""
    if isinstance(result, xr.DataArray):
        return {
            "values": result.dims,
            **{
                str(name): values.dims
                for name, values in result.coords.items()
                if values.dims != (name,) and not str(name).startswith(PREFIX)
            },
        }
    return {
        str(name): values.dims
        for name, values in result.variables.items()
        if values.dims != (name,) and not str(name).startswith(PREFIX)
    }
