"""The specimens that are looked at: one of every figure, short and long, with the dimensions of real results."""

import plotly.graph_objects as go

import squashlens as sl
from squashlens.figures.drawing.page import Page
from squashlens.figures.usual import _fits, usual_figures
from tests import measurements
from tests.figures import specimens


def test_every_figure_has_a_title_and_axes_that_say_what_they_show() -> None:
    """A panel's y axis has a title, or the panel or its rows have names; that of x, or of the panel below, has one."""
    for name, figure in specimens.drawn().items():
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
        for name, figure in specimens.drawn().items()
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
