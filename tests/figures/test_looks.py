"""Figures as they are seen: nothing is cut or covered at any width, and curves differ without their colours."""

import itertools
from functools import cache
from typing import Any

import plotly.graph_objects as go
import pytest
from plotly.colors import hex_to_rgb, unlabel_rgb

import squashlens as sl
from squashlens.errors import InputError
from tests.figures import looks, specimens

SIZES: dict[str, dict[str, Any]] = {
    "notebook": {},
    "page": {"theme": "paper", "width": "page"},
    "column": {"theme": "paper", "width": "column"},
    "slides": {"theme": "slides"},
}
TOO_WIDE = {
    ("small", "audit"),
    *(("full", name) for name in ("audit", "survey", "statements", "mixture")),
}  # for a column; they say the width that they need
NEAR = 25.0  # of 100: two greys that are nearer can be confused in print


@cache
def drawn(kind: str) -> dict[str, go.Figure]:
    return specimens.SETS[kind]()


@pytest.fixture(scope="module")
def page(browser: Any) -> Any:
    return looks.opened(browser)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        pytest.param(kind, size, marks=[] if kind == "full" and size in ("notebook", "column") else pytest.mark.slow)
        for kind, size in itertools.product(specimens.SETS, SIZES)
    ],
)
@pytest.mark.xdist_group("looks")
def test_nothing_is_cut_or_covered(page: Any, kind: str, size: str) -> None:
    """All texts are on the page and apart from each other and from other panels, and no panel is too narrow."""
    shown = {}
    for name, figure in drawn(kind).items():
        if size == "column" and (kind, name) in TOO_WIDE:
            with pytest.raises(InputError, match="Use width="):
                sl.figures.styled(figure, **SIZES[size])
        else:
            shown[name] = sl.figures.styled(figure, **SIZES[size])
    assert looks.faults(page, shown) == {}


@pytest.mark.browser
def test_a_fault_is_seen(page: Any) -> None:
    """The instrument itself: a title that is too long, two texts at one place, and a panel of twenty pixels."""
    figure = go.Figure(go.Scatter(y=[1, 2]), {"title": {"text": "long " * 100}, "width": 300, "height": 300})
    for _ in range(2):
        figure.add_annotation(x=0.5, y=1.5, text="here", showarrow=False)
    figure.update_xaxes(domain=[0, 0.1])
    found = looks.faults(page, {"bad": figure})["bad"]
    for fault in ("is cut by the edge", "note 'here' covers note 'here'", "a panel has 14 x"):
        assert any(fault in one for one in found), fault


@pytest.mark.parametrize("kind", [pytest.param("small", marks=pytest.mark.slow), "full"])
def test_entries_of_a_legend_differ(kind: str) -> None:
    """No two have the same colour, dash and mark; two of one panel that are equally dark differ in dash or mark."""
    alike = []
    for figure_name, figure in drawn(kind).items():
        for first, second in itertools.combinations(listed(figure), 2):
            one, two = style_of(first), style_of(second)
            known = (
                "block" in first.name or figure_name == "audit"
            )  # blocks have an order, and rows of estimates a name
            grey = one[1:] == two[1:] and abs(lightness(one[0]) - lightness(two[0])) < NEAR
            if one == two or (grey and not known and first.yaxis == second.yaxis):
                alike.append((figure_name, first.name, second.name))
    assert alike == []


def listed(figure: go.Figure) -> list[Any]:
    shown: Any = figure.data
    return [t for t in shown if t.name and t.type in ("scatter", "bar") and t.showlegend is not False]


def style_of(trace: Any) -> tuple[str, str, str, str]:
    """Colour, kind, dash or pattern, and symbol of an entry of a legend."""
    if trace.type == "bar":
        edge = trace.marker.line.color or ""
        return trace.marker.color, "bar", trace.marker.pattern.shape or "", edge if "rgba" in trace.marker.color else ""
    colour = trace.line.color if "lines" in trace.mode else trace.marker.color
    if not isinstance(colour, str):
        colour = trace.marker.line.color
    dash = (trace.line.dash or "solid") if "lines" in trace.mode else ""
    symbol = trace.marker.symbol if isinstance(trace.marker.symbol, str) else "circle"
    return colour, trace.mode, dash, symbol if "markers" in trace.mode else ""


def lightness(colour: str) -> float:
    """CIE L* of a colour, from 0 to 100."""
    values = hex_to_rgb(colour) if colour.startswith("#") else unlabel_rgb(colour.replace("rgba", "rgb"))[:3]
    linear = [v / 255 / 12.92 if v <= 10 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in values]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 116 * luminance ** (1 / 3) - 16 if luminance > 0.008856 else 903.3 * luminance
