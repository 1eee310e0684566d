"""Figures as they are seen: nothing is cut or covered at any width, and curves differ without their colours."""

import itertools
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from plotly.colors import hex_to_rgb, unlabel_rgb

import squashlens as sl
from squashlens.figures.drawing.themes import COLOURS, LINES
from tests.figures import looks, specimens

SIZES: dict[str, dict[str, Any]] = {
    "notebook": {},
    "page": {"theme": "paper", "width": "page"},
    "column": {"theme": "paper", "width": "column"},
    "slides": {"theme": "slides"},
}


def drawn(kind: str) -> dict[str, go.Figure]:
    return specimens.drawn(kind)[0]


@pytest.fixture(scope="module")
def page(browser: Any) -> Any:
    return looks.opened(browser)


@pytest.mark.browser
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        pytest.param(
            kind,
            size,
            marks=[]
            if kind == "full" and size in ("notebook", "column")
            else pytest.mark.slow,
        )
        for kind, size in itertools.product(specimens.SETS, SIZES)
    ],
)
def test_nothing_is_cut_or_covered(page: Any, kind: str, size: str) -> None:
    """All texts are on the page and apart from each other and from other panels, and no panel is too narrow."""
    shown = {
        name: sl.figures.styled(figure, **SIZES[size])
        for name, figure in drawn(kind).items()
    }
    found = looks.faults(page, shown)
    assert {name: faults for name, faults in found.items() if faults} == {}


@pytest.mark.browser
def test_text_is_drawn_as_it_is_where_mathematics_is_typeset(browser: Any) -> None:
    """The stand-in for MathJax counts how often plotly asks for its version: once, and for all that it typesets."""
    page = looks.opened(browser)
    page.evaluate(
        "window.asked = 0; window.MathJax = {get version() { window.asked += 1; return '0'; }}"
    )
    looks.texts_of(page, go.Figure(layout={"title": {"text": "plain"}}))
    once = page.evaluate("asked")
    hard = "$5 to $9 <b>%{x}</b>\u202e\ufffd"
    bound = specimens.bound(4).assign_coords(token=("position", [hard, *"abc"]))
    figure = sl.figures.styled(sl.figures.of({hard: bound, "b": 2 * bound}), title=hard)
    texts = looks.texts_of(page, figure)
    assert page.evaluate("asked") == once
    assert sum("$5 to $9 <b>%{x}</b>\\u202e\\ufffd" in text for text in texts) >= 2
    assert any("$5 to $9 <b>%…" in text for text in texts)  # a token
    figure.update_layout(title={"text": "$5 to $9"})
    page.evaluate(f"void Plotly.newPlot('figure', {figure.to_json()})")
    page.wait_for_function(f"asked > {once}")


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


# CIE76: two colours that are nearer can be confused; 2.3 is just noticeable side by side.
APART = 15.0
# What people see who lack one kind of cones, as linear RGB from linear RGB: Machado, Oliveira and Fernandes (2009), "A
# Physiologically-based Model for Simulation of Color Vision Deficiency", table 1, severity 1.0.
SIGHTS = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
# sRGB, D65
TO_XYZ = np.array(
    [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
)  # sRGB, D65


@pytest.mark.parametrize("sight", SIGHTS)
def test_colours_differ_for_every_sight(sight: str) -> None:
    """Neighbours in the palette, and the curves of `attribution`."""
    together = [
        COLOURS[name] for name in ("path_bound", "null", "jacobian_frozen", "jacobian")
    ]
    pairs = {*itertools.pairwise(LINES), *itertools.combinations(together, 2)}
    for one, other in pairs:
        assert np.linalg.norm(seen(one, sight) - seen(other, sight)) > APART, (
            one,
            other,
        )


def seen(colour: str, sight: str) -> np.ndarray:
    """CIE L*a*b* of a colour as it is seen."""
    values = np.array(
        hex_to_rgb(colour)
        if colour.startswith("#")
        else unlabel_rgb(colour.replace("rgba", "rgb"))[:3]
    )
    values = values / 255
    linear = np.where(
        values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4
    )
    white = TO_XYZ.sum(1)
    ratio = TO_XYZ @ np.clip(SIGHTS[sight] @ linear, 0, 1) / white
    x, y, z = np.where(
        ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29
    )
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])
