"""Theme, size, panels and files of figures: everything is laid out anew, nothing is lost, nothing else is changed."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import plotly.io
import pytest

import squashlens as sl
from squashlens.errors import InputError, OutputError
from squashlens.figures.drawing.notes import notes_of
from tests import odd, typeset
from tests.figures import specimens


@pytest.fixture(scope="module")
def figure() -> go.Figure:
    return sl.figures.attribution(specimens.sensitivity(20))


def test_a_figure_is_not_changed_by_another_look(figure: go.Figure) -> None:
    before, template = figure.to_json(), plotly.io.templates.default
    sl.figures.styled(figure, theme="dark", width="column", title="<b>", legend="right")
    assert json.loads(str(figure.to_json())) == json.loads(str(before))
    assert plotly.io.templates.default == template


def test_a_look_can_be_taken_back(figure: go.Figure) -> None:
    there = sl.figures.styled(figure, theme="dark")
    assert there.layout.paper_bgcolor == "#14171f"
    back = sl.figures.styled(there, theme="notebook")
    assert json.loads(str(back.to_json())) == json.loads(str(figure.to_json()))


def test_a_theme_changes_colours_and_no_text(figure: go.Figure) -> None:
    """A token, a name or a title that is spelled like a colour stays what it is."""
    named = go.Figure(figure)
    named.data[0].update(name="#1d2330", hovertemplate="#1d2330")
    dark = sl.figures.styled(named, theme="dark")
    assert (dark.data[0].name, dark.data[0].hovertemplate) == ("#1d2330", "#1d2330")
    assert dark.layout.font.color == "#e8eaf0"
    assert {shape.line.color for shape in dark.layout.shapes} == {"#e8eaf0"}


def test_panels_fill_what_text_leaves(figure: go.Figure) -> None:
    """Panels do not overlap, stay on the page, and keep their order and the weights of their heights."""
    for width in (3.25, 6.75, 13.0):
        layout = sl.figures.styled(figure, width=width).layout
        (low, middle), (upper, top) = layout.yaxis3.domain, layout.yaxis.domain
        assert 0 <= low < middle < layout.yaxis2.domain[0] < layout.yaxis2.domain[1] < upper < top <= 1
        assert (top - upper) / (middle - low) == pytest.approx(0.36 / 0.28)
        margin = layout.margin
        assert margin.l + margin.r < 0.5 * layout.width
        assert margin.t + margin.b < layout.height


def test_a_page_that_is_too_small_is_refused_with_a_size_that_is_enough(figure: go.Figure) -> None:
    with pytest.raises(InputError, match=r"no room for its panels.*Use height=\d") as refusal:
        sl.figures.styled(figure, width="column", height=1.2)
    enough = float(str(refusal.value).split("Use height=")[1].split(" ")[0])
    assert sl.figures.styled(figure, width="column", height=enough).layout.height == pytest.approx(96 * enough)


def test_more_tokens_are_labelled_on_a_wider_page(figure: Any) -> None:
    many = sl.figures.by_token(specimens.bound(500))
    assert len(many.layout.xaxis.labelalias) == 500
    narrow, wide = (sl.figures.styled(many, width=inches).layout.xaxis.nticks for inches in (3.25, 13.0))
    assert 5 < narrow < 0.4 * wide < 100
    assert figure.layout.xaxis2.dtick == 1


def test_another_packages_figure_is_refused() -> None:
    with pytest.raises(InputError, match="not drawn by squashlens"):
        sl.figures.styled(go.Figure(go.Scatter(y=[1, 2])))


def test_a_title_is_text_and_can_be_removed(figure: go.Figure) -> None:
    assert sl.figures.styled(figure, title="<script>").layout.title.text == "&lt;script&gt;"
    bare = sl.figures.styled(figure, title="")
    assert bare.layout.title.text is None
    assert bare.layout.height < figure.layout.height


def _heads(figure: Any) -> list[Any]:
    return [note for note in figure.layout.annotations if (note.name or "").startswith("block title")]


def test_panels_share_scales_the_legend_and_the_colours() -> None:
    results = {f"{count} tokens": specimens.sensitivity(count) for count in (4, 6, 5)}
    found: Any = sl.figures.panels(results, columns=3)
    alone: Any = sl.figures.attribution(next(iter(results.values())))
    assert [t.name for t in found.data if t.showlegend is not False] == [t.name for t in alone.data]
    assert [note.text for note in _heads(found)] == [*results]
    assert [found.layout[f"yaxis{n}"].matches for n in (4, 7, 5, 8, 6, 9)] == ["y", "y", "y2", "y2", "y3", "y3"]
    assert found.layout.yaxis.autorange is True  # else plotly gives it its default range if others have a range
    # Tokens differ, so the tokens' axes are not shared, and each has its own labels.
    assert [len(found.layout[f"xaxis{n}"].labelalias) for n in (3, 6, 9)] == [4, 6, 5]
    one, other = specimens.collapse(), specimens.collapse()
    other["distance"] = 100 * other["distance"]
    maps: Any = sl.figures.collapse_heatmap({"a": specimens.relative(one), "b": specimens.relative(other)})
    values = np.concatenate([np.asarray(t.z, float).ravel() for t in maps.data])
    assert {(t.zmin, t.zmax) for t in maps.data} == {(values.min(), values.max())}
    assert [t.showscale for t in maps.data] == [False, True]


def test_different_figures_share_no_scale_and_cannot_be_composed_twice(figure: go.Figure) -> None:
    found: Any = sl.figures.panels({"a": figure, "b": specimens.composition(5)})
    assert (found.layout.yaxis4.matches, found.data[-1].yaxis) == (None, "y4")
    for parts, options, complaint in (
        ({"c": found}, {}, "panels of several results already"), ({}, {}, "parts is empty"),
        ({"a": figure, "b": figure}, {"columns": 3}, "columns=3 is not usable"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=complaint):
            sl.figures.panels(parts, **options)


def _halved_with_a_name_that_is_longer_than_a_line_has_room_for(tensor: Any, hook: Any) -> Any:
    return tensor / 2


@pytest.mark.slow
def test_the_line_under_the_title(tiny: Any) -> None:
    """Model, task, norm, and the hooks that were on the model throughout, not those that were compared."""
    with sl.applied(tiny, sl.hooks.mask_tokens([1])):
        under = sl.figures.of(sl.sensitivity(tiny, "110 =")).layout.title.subtitle.text
    assert under == "tiny-gemma · mask_tokens(1) at 6 points · spectral norm"
    long = sl.hooks.mask_tokens([*range(1, 40)])
    with sl.applied(
        tiny,
        long,
        ("blocks.3.attn.hook_z", _halved_with_a_name_that_is_longer_than_a_line_has_room_for),
        sl.hooks.zero_residual([2], blocks=(1,)),
    ):
        under = sl.figures.of(sl.path_bound(tiny, "110 =")).layout.title.subtitle.text
    names = "mask_tokens(1 … 39, 39 in all, 61847ccd), zero_residual(2), _halved_with_a_name_that_is_longer_than_…"
    assert under.replace("<br>", " ") == f"tiny-gemma · {names} at 8 points"
    with sl.applied(tiny, sl.hooks.mask_tokens([1])):
        hooked = sl.path_bound(tiny, "110 =")
    joined = sl.results.concat({"hooked": hooked, "plain": sl.path_bound(tiny, "110 =")}, dim="change")
    assert notes_of(joined) == "tiny-gemma"
    compared = sl.figures.of(odd.result("compare")).layout.title.subtitle.text
    assert compared == "tiny-gemma · dots: lengths · rings: medians"


@pytest.mark.parametrize("ending", [".html", ".json"])
def test_files_without_a_browser(figure: go.Figure, tmp_path: Path, ending: str) -> None:
    path = sl.figures.save(figure, tmp_path / f"figure{ending}")
    if ending == ".json":
        read = plotly.io.read_json(path)
        assert sl.figures.styled(read, theme="paper", width="column").layout.width == 312
        assert json.loads(read.to_json()) == json.loads(str(figure.to_json()))
    else:
        assert path.stat().st_size > 4_000_000


def test_pages_share_one_program(figure: go.Figure, tmp_path: Path) -> None:
    for name in ("a", "b"):
        path = sl.figures.save(figure, tmp_path / f"{name}.html", plotlyjs="file")
        assert path.stat().st_size < 200_000
        assert '<script charset="utf-8" src="plotly.min.js"' in path.read_text().replace("src='", 'src="')
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "b.html", "plotly.min.js"]


def test_without_a_browser_there_is_one_sentence(
    figure: go.Figure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from choreographer.browsers.chromium import Chromium

    monkeypatch.delenv("BROWSER_PATH", raising=False)
    monkeypatch.setattr(Chromium, "find_browser", classmethod(lambda *_, **__: None))
    with pytest.raises(OutputError, match=r"drawn as \.pdf by a browser, and none was found\. Install Chromium"):
        sl.figures.save(figure, tmp_path / "figure.pdf")
    assert not list(tmp_path.iterdir())


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
