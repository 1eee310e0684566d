"""Figures under odd treatment: styled many times, edited, copied, composed of anything, saved where it cannot be."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import plotly.io
import pytest

import squashlens as sl
from squashlens.figures.drawing.axes import set_axis
from squashlens.figures.drawing.page_blocks import Page
from squashlens.figures.drawing.text import unbreak, width_of, wrap
from squashlens.records.joining import restated
from tests.figures import specimens

SIZE = 10 / 0.85  # of a font whose tick labels have 10 pixels
HOSTILE = ["<script>alert(1)</script>", "", "a label without end " * 20, "W" * 300]


def as_json(figure: go.Figure) -> Any:
    return json.loads(str(figure.to_json()))


@pytest.fixture(scope="module")
def curves() -> go.Figure:
    return sl.figures.of(specimens.sensitivity(20))


@pytest.fixture(scope="module")
def shares() -> go.Figure:
    return sl.figures.of(specimens.composition(20))


@pytest.fixture(scope="module")
def bars() -> go.Figure:
    return sl.figures.of(specimens.top_tokens())


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("theme", "place", "width"),
    [("notebook", "top", 4), ("paper", "right", "page"), ("slides", "right", 13), ("dark", "none", 4),
     ("notebook", "right", "page"), ("paper", "top", 13)],
)  # fmt: skip
def test_the_same_look_twice_is_the_same(curves: go.Figure, theme: Any, place: Any, width: Any) -> None:
    once = sl.figures.styled(curves, theme=theme, width=width, legend=place)
    again = sl.figures.styled(sl.figures.styled(once), theme=theme, width=width, legend=place)
    assert as_json(again) == as_json(once)
    read = plotly.io.from_json(once.to_json())
    assert as_json(sl.figures.styled(read, width=width)) == as_json(once)


def test_what_a_user_added_stays(curves: go.Figure) -> None:
    mine = go.Figure(curves)
    mine.add_scatter(x=[0, 1], y=[1, 2], name="mine")
    mine.add_annotation(text="here", x=0.5, y=0.5, xref="paper", yref="paper")
    mine.add_shape(type="rect", x0=0, x1=1, y0=0, y1=1, xref="paper", yref="paper")
    mine.update_layout(title="My own title", xaxis_range=[0, 5], yaxis_title="my unit")
    found = sl.figures.styled(sl.figures.styled(mine, theme="paper"), width="column")
    assert found.data[-1].name == "mine"
    assert [one.text for one in found.layout.annotations] == ["here"]
    assert found.layout.shapes[-1].type == "rect"
    assert found.layout.title.text == "My own title"
    assert tuple(found.layout.xaxis.range) == (0, 5)
    assert unbreak(found.layout.yaxis.title.text) == "my unit"
    assert sl.figures.styled(mine, title="Another").layout.title.text == "Another"


@pytest.mark.few(2)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 12])
def test_any_number_of_any_figures(curves: go.Figure, shares: go.Figure, bars: go.Figure, count: int) -> None:
    kinds = itertools.cycle([curves, shares, bars, plotly.io.from_json(shares.to_json())])
    parts = {f"part {at}": figure for at, figure in zip(range(count), kinds, strict=False)}
    found = sl.figures.panels(parts, columns=min(count, 3))
    page = Page.of(found)
    assert [block.title for block in page.blocks] == list(parts)
    assert len(found.data) == sum(len(figure.data) for figure in parts.values())
    places = [(*found.layout[x].domain, *found.layout[y].domain) for block in page.blocks for x, y, *_ in block.panels]
    for one, other in itertools.combinations(places, 2):
        apart = one[1] <= other[0] or other[1] <= one[0] or one[3] <= other[2] or other[3] <= one[2]
        assert apart, (one, other)


def test_labels_are_text_and_fit(bars: go.Figure) -> None:
    found = sl.figures.styled(sl.figures.panels(dict.fromkeys(HOSTILE, bars), columns=2), theme="paper", width=7)
    titles = [note for note in found.layout.annotations if (note.name or "").startswith("block title")]
    assert [unbreak(note.text) for note in titles] == ["&lt;script&gt;alert(1)&lt;/script&gt;", *HOSTILE[1:]]
    assert max(width_of(note.text, note.font.size) for note in titles if note.text) < 7 * 96 / 2


def test_a_long_word_is_divided_and_joined_again() -> None:
    """Entities stay whole, and a sign in the word is preferred."""
    text = "see meta-llama/Llama-3.1-70B &lt;" + "&amp;" * 20 + " x<sub>12</sub>"
    lines = wrap(text, 60, 10).split("<br>")
    assert all(width_of(line, 10) <= 60 for line in lines)
    assert "meta-" in [line.strip("\u200b") for line in lines]
    assert not any(set("&;") & set(line.replace("&amp;", "").replace("&lt;", "")) for line in lines)
    assert all(line.count("<sub>") == line.count("</sub>") for line in lines)
    assert unbreak("<br>".join(lines)) == text
    assert unbreak(wrap("<br>".join(lines), 3000, 10)) == text


def test_parts_take_the_first_theme(curves: go.Figure) -> None:
    dark = sl.figures.styled(sl.figures.of(specimens.MEASUREMENTS["runs"]()), theme="dark")
    found = sl.figures.panels({"a": curves, "b": dark})
    assert next(t for t in found.data if t.name == "float32").line.color == "#1d2330"


def test_annotations_move_with_their_panel() -> None:
    found = sl.figures.collapse_curve({"a": specimens.collapse(), "b": specimens.collapse()}, trained=16)
    notes = [note for note in found.layout.annotations if note.text == "trained lengths"]
    assert [(note.xref, note.yref, note.x) for note in notes] == [("x", "y domain", 0.0), ("x2", "y2 domain", 0.0)]
    assert [shape.xref for shape in found.layout.shapes] == ["x", "x2"]


def test_maps_of_nothing() -> None:
    nothing = (specimens.composition(5) * np.nan).assign_attrs(long_name="no shares")
    found = sl.figures.panels({"a": sl.figures.composition(nothing), "b": sl.figures.composition(nothing)})
    assert [(t.zmin, t.zmax) for t in found.data] == [(-6, 0)] * 2
    bits = {name: restated(specimens.MEASUREMENTS["precision"]() * np.nan, {}) for name in "ab"}
    assert all(np.isfinite(t.zmin) for t in sl.figures.bits_needed(bits).data)


@pytest.mark.parametrize(("low", "high"), [(0.02, 1), (1e-9, 2e-8), (1, 1e9)])
@pytest.mark.parametrize("length", [40, 150, 600])
def test_logarithmic_axes_have_labels_that_fit(low: float, high: float, length: int) -> None:
    """At least one, and none over another."""
    figure = go.Figure(go.Scatter(x=[0, 1], y=[low, high]))
    figure.update_yaxes(type="log")
    set_axis(figure, "yaxis", length, SIZE, limit=100.0)
    step = figure.layout.yaxis.dtick
    each = (1, 2, 5) if step == "D2" else (1,)
    powers = range(-12, 12, 1 if step == "D2" else int(step))
    ticks = [digit * 10.0**power for power in powers for digit in each]
    shown = np.log10([one for one in ticks if low * 0.999999 <= one <= high * 1.000001])
    assert len(shown) >= 1
    assert (np.diff(shown) * length / np.log10(high / low) > 11).all()


def test_each_result_has_the_figure_that_the_page_says() -> None:
    """The table of docs/figures.md, which says what `of` draws."""
    from squashlens.figures.usual import _fits, usual_figures
    from tests import odd

    page = (Path(__file__).parents[2] / "docs" / "figures.md").read_text()
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]
    said: dict[str, set[str]] = {}
    for left, right in rows:
        names = [name.split(".")[-1] for name in re.findall(r"`([\w.]+)`", left)]
        drawn = re.findall(r"`(\w+)`", right)
        for at, name in enumerate(names):
            said[name] = {drawn[min(at, len(drawn) - 1)]} if drawn else set()
        said |= {figure: {figure} for figure in drawn[len(names) :]}  # of a measurement's other results
    makers = {"collapse relative": "collapse", "families": "remedies"}
    for name in odd.result(""):
        if name in specimens.NO_FIGURE:
            continue
        result = odd.result(name)
        fitting = [figure.__name__ for figure in usual_figures() if _fits(result, figure)]
        assert said.get(makers.get(name, name), set()) == {*fitting[:1]}, name
