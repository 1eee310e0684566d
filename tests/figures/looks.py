"""Look at figures in a browser: where every text and every panel is, and what is cut, covered or too small."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import plotly
import plotly.graph_objects as go

PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
NARROW = 23.0  # pixels: a panel that is narrower or lower shows nothing
OUTSIDE = 0.7  # the share of a trace; guides may leave their panel
SLACK = 0.15  # of the height of a text: space above and below its letters, where two texts may meet
# Figures and findings are handed over as JSON: Playwright takes long for many numbers, one by one.
LOOK = """async figures => {
  const parts = {
    title: '.gtitle', notes: '.gtitle-subtitle', legend: '.legendtext', note: '.annotation-text',
    'axis title': '.infolayer [class^=g-x] text, .infolayer [class^=g-y] text',
    'tick label': '.xaxislayer-above text, .yaxislayer-above text, .xaxislayer-below text, .yaxislayer-below text',
    'colour bar': '.colorbar text', 'cell': '.heatmap-label text, .bartext',
  };
  const div = document.getElementById('figure'), found = {};
  for (const [name, figure] of Object.entries(JSON.parse(figures))) {
    await Plotly.newPlot(div, figure.data, figure.layout, {staticPlot: true});
    const frame = div.querySelector('.main-svg').getBoundingClientRect(), boxes = [], seen = new Set();
    for (const [kind, selector] of Object.entries(parts)) for (const text of div.querySelectorAll(selector)) {
      const style = getComputedStyle(text);
      if (!text.textContent || seen.has(text) || style.opacity === '0' || style.visibility === 'hidden') continue;
      seen.add(text);
      const box = text.getBBox(), matrix = text.getScreenCTM();
      const [x, y, w, h] = [box.x, box.y, box.width, box.height];
      const corners = [[x, y], [x + w, y], [x + w, y + h], [x, y + h]].map(([a, b]) => {
        const point = new DOMPoint(a, b).matrixTransform(matrix);
        return [point.x - frame.x, point.y - frame.y];
      });
      boxes.push({kind, text: text.textContent, corners, size: parseFloat(style.fontSize)});
    }
    const full = div._fullLayout;
    const panels = Object.values(full._plots).map(
      ({xaxis, yaxis}) => [xaxis._offset, yaxis._offset, xaxis._length, yaxis._length]);
    const outside = div._fullData.filter(t => ['scatter', 'heatmap', 'bar'].includes(t.type) && t.visible === true)
      .map(t => ['x', 'y'].map(side => {
        const axis = full[t[side + 'axis'].replace(side, side + 'axis')], values = Array.from(t[side] || []);
        const known = values.filter(v => typeof v === 'number' && !(axis.type === 'log' && !(v > 0)));
        const places = known.map(v => axis.d2p(v)).filter(Number.isFinite);
        return places.filter(p => p < -9 || p > axis._length + 9).length / Math.max(places.length, 1);
      })).map(([a, b]) => Math.max(a, b));
    const legends = Object.keys(full).filter(n => /^legend[0-9]*$/.test(n));
    const scrolled = legends.filter(n => full[n] && full[n]._height > full[n]._effHeight + 1);
    found[name] = {boxes, panels, outside: Math.max(0, ...outside), scrolled, size: [frame.width, frame.height]};
    Plotly.purge(div);
  }
  return JSON.stringify(found);
}"""


@dataclass(frozen=True)
class Box:
    """A text, or a panel, and its four corners in pixels."""

    kind: str
    text: str
    corners: np.ndarray
    size: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind} {self.text[:30]!r}"

    def meets(self, other: "Box") -> bool:
        """Whether two boxes, which may be rotated, have an area in common: no side of either separates them."""
        for one in (self.corners, other.corners):
            for side in (one[1] - one[0], one[2] - one[1]):
                normal = np.array([-side[1], side[0]])
                ours, theirs = self.corners @ normal, other.corners @ normal
                if ours.max() <= theirs.min() or theirs.max() <= ours.min():
                    return False
        return True


def opened(browser: Any) -> Any:
    """A page that figures are drawn in, as wide as a notebook's."""
    page = browser.new_page(viewport={"width": 1400, "height": 2000})
    page.set_content("<div id='figure' style='width: 700px'></div>")
    page.add_script_tag(path=str(PLOTLY))
    return page


def texts_of(page: Any, figure: go.Figure) -> list[str]:
    """All texts that are drawn."""
    drawn = json.loads(page.evaluate(LOOK, f'{{"one": {figure.to_json()}}}'))
    return [box["text"] for box in drawn["one"]["boxes"]]


def faults(page: Any, figures: dict[str, go.Figure]) -> dict[str, list[str]]:
    """What is wrong with each figure that has something wrong."""
    given = ", ".join(
        f"{json.dumps(name)}: {figure.to_json()}" for name, figure in figures.items()
    )
    drawn = json.loads(page.evaluate(LOOK, f"{{{given}}}"))
    found = {name: list(_faults(one)) for name, one in drawn.items()}
    return {name: each for name, each in found.items() if each}


def _faults(drawn: dict[str, Any]) -> Iterator[str]:
    wide, tall = drawn["size"]
    texts = [_text(one) for one in drawn["boxes"]]
    for box in texts:
        x, y = box.corners.T
        if min(x.min(), y.min()) < -0.5 or x.max() > wide + 0.5 or y.max() > tall + 0.5:
            yield f"{box} is cut by the edge"
    for one, other in _near(texts):
        if one.meets(other):
            yield f"{one} covers {other}"
    for place in drawn["panels"]:
        yield from _faults_of_panel(
            place, [box for box in texts if box.kind not in ("cell", "note")]
        )
    if drawn["outside"] > OUTSIDE:
        yield f"{drawn['outside']:.0%} of a trace is outside of its panel"
    yield from (f"{name} is longer than its place" for name in drawn["scrolled"])


def _near(texts: list[Box]) -> Iterator[tuple[Box, Box]]:
    """The pairs of texts that can meet: their upright frames do."""
    if not texts:
        return
    corners = np.array([box.corners for box in texts])
    low, high = corners.min(1), corners.max(1)
    near = ((low[:, None] < high) & (low < high[:, None])).all(2)
    for one, other in zip(*np.nonzero(np.triu(near, 1)), strict=True):
        yield texts[one], texts[other]


def _faults_of_panel(place: list[float], texts: list[Box]) -> Iterator[str]:
    x, y, w, h = place
    if min(w, h) < NARROW:
        yield f"a panel has {w:.0f} x {h:.0f} pixels"
    panel = Box("panel", "", _rectangle(x + 1, y + 1, w - 2, h - 2))
    yield from (f"{box} covers a panel" for box in texts if box.meets(panel))


def _text(found: dict[str, Any]) -> Box:
    """A text without the space above and below its letters."""
    corners = np.array(found["corners"])
    down = SLACK * (corners[3] - corners[0])
    if (
        found["kind"] == "cell"
    ):  # boxes of tokens stand side by side, and so may their texts
        side = 0.1 * (corners[1] - corners[0])
        corners = corners + np.array([side, -side, -side, side])
    return Box(
        found["kind"],
        found["text"],
        corners + np.array([down, down, -down, -down]),
        found["size"],
    )


def _rectangle(x: float, y: float, w: float, h: float) -> np.ndarray:
    return np.array([[x, y], [x + w, y], [x + w, y + h], [x, y + h]])
