"""What can be told apart above rounding, and what is made of it: recovery by layer, and the log-odds of answers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.shapes import curve, guide, line, steps
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escape, shortened
from squashlens.figures.drawing.themes import BROWN, COLOURS, series

VERDICTS = {  # symbol and colour
    "answered": ("circle", "#009E73"),
    "preferred, not answered": ("square", "#56B4E9"),
    "reaches the last token, not used": ("diamond", "#D55E00"),
    "lost": ("x", "#CC79A7"),
    "undecided": ("triangle-up", "#7F7F7F"),
}
GREY = {"colour": COLOURS["null"], "width": 1.5, "size": 4, "dash": "dash"}
ABOVE = 1.25  # times the largest log-odds, where verdicts are marked
ANSWER = 12  # characters of an answer on an axis


@draws("squashlens.separation", "recovery: ... layer", "recovery_y chance: ...")
def separation_curve(
    separation: xr.Dataset | Mapping[str, xr.Dataset],
) -> go.Figure:
    """Draw the share of lengths that another run recovers, by layer, with random weights and chance beside it.

    Several results by label, or several runs of one, are lines of one panel.
    """
    several: Any = separation  # by label
    lines: dict[str, xr.Dataset] = {}
    for label, whole in several.items():
        runs = whole["run"].values if "run" in whole.dims else []
        lines |= {f"{label} {run}".strip(): whole.sel(run=run) for run in runs}
        lines |= {} if len(runs) else {label: whole}
    figure = go.Figure()
    for one in lines.values():
        if "recovery_random" in one:
            figure.add_traces(
                _by_layer(one, "recovery_random", "random weights", **GREY)
            )
    for number, (label, one) in enumerate(lines.items()):
        figure.add_traces(
            _by_layer(one, "recovery", label or "model", **series(number))
        )
    guide(figure, *dict.fromkeys(float(one["chance"]) for one in lines.values()))
    figure.update_xaxes(_layers_and_y(*lines.values()))
    figure.update_yaxes(title="lengths recovered", range=[-0.04, 1.04])
    title = "Lengths that can be told apart"
    return finish(figure, title, lines.values(), "dotted line: chance")


def _layers_and_y(*several: xr.Dataset) -> dict[str, Any]:
    """An axis of layers, and of y as the layer after the last."""
    tops = [int(one["layer"][-1]) + 1 for one in several]
    told = ", ".join(map(str, dict.fromkeys(tops)))
    return steps([0, *tops], f"layer ℓ ({told}: y, after the final norm)")


def _by_layer(one: xr.Dataset, name: str, text: str, **style: Any) -> list[go.Scatter]:
    """A variable by layer, with y as a further layer; a curve for each model with random weights."""
    y = one[f"{name}_y"].expand_dims(layer=[int(one["layer"][-1]) + 1])
    values = xr.concat([one[name], y], dim="layer").transpose(..., "layer")
    rows = values if values.ndim == 2 else [values]
    return [line(row, text, **style) for row in rows]


@draws("squashlens.verdict", "log_odds log_odds_after log_odds_noise: pair")
def verdict_odds(found: xr.Dataset) -> go.Figure:
    """Draw the log-odds of each two answers after both prompts, and the verdict on each pair.

    A model that prefers each prompt's own answer has the first above 0 and the second below. The symbol says what
    became of the change.
    """
    by_length = "length" in found.coords
    kind = "length" if by_length else "answer"
    pairs = zip(found[kind].values, found[f"{kind}_after"].values, strict=True)
    texts = [
        " | ".join(shortened(str(text), ANSWER) for text in pair) for pair in pairs
    ]
    x = np.arange(len(texts))
    figure = go.Figure()
    guide(figure, 0)
    first, second = found["log_odds"].values, found["log_odds_after"].values
    blue = COLOURS["path_bound"]
    figure.add_trace(curve(x, first, "after the first prompt", colour=blue, size=5))
    figure.add_trace(curve(x, second, "after the second", colour=BROWN, size=5))
    verdicts = found["verdict"].values.astype(str)
    above = ABOVE * max(np.abs(first).max(), np.abs(second).max()) or 1.0
    for verdict, (symbol, colour) in VERDICTS.items():
        places = x[verdicts == verdict]
        marks = {"symbol": symbol, "size": 10, "mode": "markers", "hover": verdict}
        if len(places):
            figure.add_trace(
                curve(places, [above] * len(places), verdict, colour=colour, **marks)
            )
    title = "lengths of the two prompts" if by_length else "right answers"
    figure.update_xaxes(tickvals=x, ticktext=list(map(escape, texts)), title=title)
    figure.update_yaxes(title="log-odds of first and second answer (nats)")
    note = "symbols: the verdict on each pair"
    return finish(
        figure, "Which of the two answers is preferred", found, note, height=300
    )


@draws(
    "squashlens.verdict", "margin: pair layer", "margin_y verdict: pair", usual=False
)
def verdict_margins(found: xr.Dataset) -> go.Figure:
    """Draw how far the two prompts of each pair are apart at the last token, in units of their rounding, by layer."""
    figure = go.Figure()
    for pair, verdict in enumerate(found["verdict"].values.astype(str)):
        symbol, colour = VERDICTS.get(verdict, VERDICTS["undecided"])
        look = {
            "symbol": symbol,
            "colour": colour,
            "width": 1.2,
            "size": 5,
            "log": True,
        }
        figure.add_traces(_by_layer(found.isel(pair=pair), "margin", verdict, **look))
    guide(figure, 1)
    figure.update_xaxes(_layers_and_y(found))
    figure.update_yaxes(type="log", title="distance ÷ rounding")
    notes = ["lines: pairs, by verdict", "dotted line: as far as rounding"]
    return finish(figure, "Can the two prompts be told apart?", found, *notes)
