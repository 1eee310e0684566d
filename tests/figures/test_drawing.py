"""Theme, size, panels and files of figures: everything is laid out anew, nothing is lost, nothing else is changed."""

import json
import shutil
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io
import pytest

import squashlens as sl
from tests import typeset
from tests.figures import looks, specimens


def as_json(figure: go.Figure) -> Any:
    return json.loads(str(figure.to_json()))


@pytest.fixture(scope="module")
def figure() -> go.Figure:
    return sl.figures.attribution(specimens.bound_vs_jacobian(20))


def test_a_figure_is_not_changed_by_another_look(figure: go.Figure) -> None:
    before, template = figure.to_json(), plotly.io.templates.default
    sl.figures.styled(figure, theme="dark", width="column", title="<b>")
    assert as_json(figure) == json.loads(str(before))
    assert plotly.io.templates.default == template


def test_a_theme_changes_colours_and_no_text(figure: go.Figure) -> None:
    """A token, a name or a title that is spelled like a colour stays what it is. A look can be taken back."""
    named = go.Figure(figure)
    named.data[0].update(name="#1d2330", hovertemplate="#1d2330")
    dark = sl.figures.styled(named, theme="dark")
    assert (dark.data[0].name, dark.data[0].hovertemplate) == ("#1d2330", "#1d2330")
    assert (
        dark.layout.template.layout.font.color,
        dark.layout.template.layout.paper_bgcolor,
    ) == (
        "#e8eaf0",
        "#14171f",
    )
    assert as_json(sl.figures.styled(dark, theme="notebook")) == as_json(
        sl.figures.styled(named)
    )
    assert as_json(dark)["data"] == as_json(named)["data"]


def test_lines_and_dots_grow_with_large_text() -> None:
    """On a slide they are 24/13 as large as in a notebook, and a small text does not make them smaller."""
    plain: Any = sl.figures.by_token(specimens.with_low(20))
    slide: Any = sl.figures.styled(plain, theme="slides")
    column: Any = sl.figures.styled(slide, theme="paper", width="column")
    (curve,), (large,), (small,) = plain.data, slide.data, column.data
    assert large.line.width == pytest.approx(curve.line.width * 24 / 13)
    assert large.marker.size == pytest.approx(curve.marker.size * 24 / 13)
    assert large.error_y.thickness == pytest.approx(curve.error_y.thickness * 24 / 13)
    assert small.line.width == pytest.approx(curve.line.width)
    assert small.marker.size == pytest.approx(curve.marker.size)


def test_numbers_between_powers_of_ten_are_written_out(browser: Any) -> None:
    figure = sl.figures.collapse_vs_readout(specimens.readout())
    texts = looks.texts_of(looks.opened(browser), figure)
    assert any(text.startswith("2x10") for text in texts)


def test_panels_share_scales_the_legend_and_the_colours() -> None:
    results = {
        f"{count} tokens": specimens.bound_vs_jacobian(count) for count in (4, 6, 5)
    }
    found: Any = sl.figures.panels(results, columns=3)
    alone: Any = sl.figures.attribution(next(iter(results.values())))
    shown = [[t.name for t in page.data if t.showlegend] for page in (found, alone)]
    assert shown[0] == shown[1] != []  # each name once
    # Tokens differ, so the tokens' axes are not shared, and each has its own labels.
    assert [len(found.layout[f"xaxis{n}"].labelalias) for n in (3, 6, 9)] == [4, 6, 5]
    one, other = specimens.collapse(), specimens.collapse()
    other["distance"] = 100 * other["distance"]
    maps: Any = sl.figures.collapse_heatmap(
        {"a": specimens.relative(one), "b": specimens.relative(other)}
    )
    assert [cells.coloraxis for cells in maps.data] == ["coloraxis", "coloraxis"]
    mixed: Any = sl.figures.panels([specimens.composition(4), specimens.map_of(4)])
    assert [cells.coloraxis for cells in mixed.data] == ["coloraxis", "coloraxis2"]


def test_files_without_a_browser(figure: go.Figure, tmp_path: Path) -> None:
    read = plotly.io.read_json(sl.figures.save(figure, tmp_path / "figure.json"))
    assert sl.figures.styled(read, theme="paper", width="column").layout.width == 312
    assert as_json(read) == as_json(figure)
    page = sl.figures.save(figure, tmp_path / "figure.html").read_text()
    assert (
        len(page.partition("width:max(100%, 700px);")[2]) > 4_000_000
    )  # a narrow screen cuts no text


@pytest.mark.slow
@pytest.mark.browser
def test_pictures(figure: go.Figure, tmp_path: Path) -> None:
    """A PDF has the size of its page and its fonts in it; a PNG has the pixels that were asked for."""
    paper = sl.figures.styled(figure, theme="paper", width="column", height=5)
    pdf = sl.figures.save(paper, tmp_path / "figure.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert b"/FontFile" in pdf
    if shutil.which("pdffonts"):
        assert all(typeset.fonts_of(tmp_path / "figure.pdf").values())
    png = sl.figures.save(paper, tmp_path / "figure.png", dpi=192).read_bytes()
    assert (int.from_bytes(png[16:20]), int.from_bytes(png[20:24])) == (624, 960)


@pytest.mark.parametrize(
    ("theme", "width"),
    [("notebook", 4), ("paper", "page"), ("slides", 13), ("dark", 4)],
)
def test_the_same_look_twice_is_the_same(
    figure: go.Figure, theme: Any, width: Any
) -> None:
    once = sl.figures.styled(figure, theme=theme, width=width)
    again = sl.figures.styled(sl.figures.styled(once), theme=theme, width=width)
    assert as_json(again) == as_json(once)
    read = plotly.io.from_json(once.to_json())
    assert as_json(sl.figures.styled(read, width=width)) == as_json(once)


def test_what_a_user_added_stays(figure: go.Figure) -> None:
    mine = go.Figure(figure)
    mine.add_scatter(x=[0, 1], y=[1, 2], name="mine")
    mine.add_annotation(text="here", x=0.5, y=0.5, xref="paper", yref="paper")
    mine.add_shape(type="rect", x0=0, x1=1, y0=0, y1=1, xref="paper", yref="paper")
    mine.update_layout(title="My own title", xaxis_range=[0, 5], yaxis_title="my unit")
    found = sl.figures.styled(sl.figures.styled(mine, theme="paper"), width="column")
    assert found.data[-1].name == "mine"
    assert [one.text for one in found.layout.annotations if not one.name] == ["here"]
    assert found.layout.shapes[-1].type == "rect"
    assert found.layout.title.text == "My own title"
    assert tuple(found.layout.xaxis.range) == (0, 5)
    assert found.layout.yaxis.title.text == "my unit"
    assert sl.figures.styled(mine, title="Another").layout.title.text == "Another"


def test_annotations_move_with_their_panel() -> None:
    found = sl.figures.collapse_curve(
        {"a": specimens.collapse(), "b": specimens.collapse()}, trained=16
    )
    notes = [
        note for note in found.layout.annotations if note.text == "trained lengths"
    ]
    assert [(note.xref, note.yref, note.x) for note in notes] == [
        ("x", "y domain", 0.0),
        ("x2", "y2 domain", 0.0),
    ]
    assert [shape.xref for shape in found.layout.shapes] == ["x", "x2"]
