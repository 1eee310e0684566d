"""Figures as they are seen: nothing is cut or covered at any width."""

from typing import Any

import plotly.graph_objects as go
import pytest

import squashlens as sl
from tests.figures import looks, specimens

# The first, which runs by default, has the least width.
SIZES: dict[str, dict[str, Any]] = {
    "column": {"theme": "paper", "width": "column"},
    "notebook": {},
    "page": {"theme": "paper", "width": "page"},
    "slides": {"theme": "slides"},
}


@pytest.fixture(scope="module")
def page(browser: Any) -> Any:
    return looks.opened(browser)


@pytest.mark.browser
@pytest.mark.few(1)
@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_cut_or_covered(page: Any, size: str) -> None:
    """All texts are on the page and apart from each other and from other panels, and no panel is too narrow."""
    shown = {
        name: sl.figures.styled(figure, **SIZES[size])
        for name, figure in specimens.drawn().items()
    }
    found = looks.faults(page, shown)
    assert {name: faults for name, faults in found.items() if faults} == {}


@pytest.mark.browser
def test_text_is_drawn_as_it_is(browser: Any) -> None:
    """Nothing is typeset as mathematics, and no element of a token is made. The stand-in for MathJax counts how often
    plotly asks for its version: once, and for all that it typesets.
    """
    page = looks.opened(browser)
    page.evaluate(
        "window.asked = 0; window.MathJax = {get version() { window.asked += 1; return '0'; }}"
    )
    looks.texts_of(page, go.Figure(layout={"title": {"text": "plain"}}))
    once = page.evaluate("asked")
    hard = "$5 to $9 <b>%{x}</b>\u202e\ufffd"
    image = "<img src=x onerror='window.ran = 1'>"
    tokens = ("position", [hard, image, *"ab"])
    bound = specimens.bound(4).assign_coords(token=tokens)
    figure = sl.figures.styled(sl.figures.of({hard: bound, image: bound}), title=hard)
    texts = looks.texts_of(page, figure)
    assert page.evaluate("asked") == once
    assert sum("$5 to $9 <b>%{x}</b>\\u202e\\ufffd" in text for text in texts) >= 2
    assert any("$5 to $9 <b>%…" in text for text in texts)  # a token
    assert image in texts
    page.evaluate(f"void Plotly.newPlot('figure', {figure.to_json()})")
    assert page.evaluate("window.ran") is None
    assert page.evaluate("document.images.length") == 0


@pytest.mark.browser
def test_a_fault_is_seen(page: Any) -> None:
    """The instrument itself: a title that is too long, two texts at one place, and a panel of twenty pixels."""
    figure = go.Figure(
        go.Scatter(y=[1, 2]),
        {"title": {"text": "long " * 100}, "width": 300, "height": 300},
    )
    for _ in range(2):
        figure.add_annotation(x=0.5, y=1.5, text="here", showarrow=False)
    figure.update_xaxes(domain=[0, 0.1])
    found = looks.faults(page, {"bad": figure})["bad"]
    for fault in (
        "is cut by the edge",
        "note 'here' covers note 'here'",
        "a panel has 14 x",
    ):
        assert any(fault in one for one in found), fault
