"""What can be told apart above rounding, and what is made of it: recovery by layer, and the log-odds of answers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.shapes import LAYERS, curve
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escape
from squashlens.figures.drawing.themes import COLOURS, FAINT, INK, series

VERDICTS = {  # symbol and colour
    "used": ("circle", "#009E73"),
    "present, not used": ("square", "#D55E00"),
    "lost": ("x", INK),
    "not resolved": ("diamond", "#7F7F7F"),
    "undecided": ("triangle-up", "#CC79A7"),
}


@draws("squashlens.separation", "recovery: ... layer", "recovery_y chance: ...")
def separation_curve(separation: xr.Dataset | Mapping[str, xr.Dataset]) -> go.Figure:
    """Draw the share of lengths that another run recovers, by layer, with random weights and chance beside it.

    Several results by label, or several runs of one, are lines of one panel.
    """
    several = {"": separation} if isinstance(separation, xr.Dataset) else separation
    lines: dict[str, xr.Dataset] = {}
    for label, whole in several.items():
        for run in map(str, whole["run"].values) if "run" in whole.dims else [""]:
            lines[f"{label} {run}".strip()] = whole.sel(run=run) if run else whole
    figure, top = go.Figure(), max(int(one["layer"].values[-1]) for one in lines.values())
    for number, (label, one) in enumerate(lines.items()):
        x, y = [*one["layer"].values, top + 1], np.append(one["recovery"].values, one["recovery_y"].values)
        style: dict[str, Any] = series(number) | {"hover": f"{label} layer %{{x}}: %{{y:.3f}}"}
        figure.add_trace(curve(x, y, label or "model", **style))
        if "recovery_random" in one:
            random = np.append(one["recovery_random"].values[0], one["recovery_random_y"].values[0])
            name = f"{label}, random weights".removeprefix(", ")
            figure.add_trace(curve(x, random, name, dash="dot", width=1.2, size=4, **style))
    chance = float(next(iter(lines.values()))["chance"])
    figure.add_hline(y=chance, line={"color": FAINT, "width": 2})
    figure.update_xaxes(LAYERS | {"dtick": max(1, (top + 1) // 10), "title": f"layer ℓ ({top + 1}: y)"})
    figure.update_yaxes(title="lengths recovered", range=[-0.04, 1.04])
    return finish(figure, "Lengths that can be told apart", 260, lines.values(), f"grey line: chance, {chance:.2g}")


@draws("squashlens.verdict", "log_odds log_odds_after log_odds_noise: pair")
def verdict_odds(found: xr.Dataset) -> go.Figure:
    """Draw the log-odds of each two answers after both prompts, and the verdict on each pair.

    A model that uses the change has the first above 0 and the second below. The symbol says what became of it.
    """
    named = "length" in found.coords
    labels = [str(n) for n in (found["length"] if named else found["answer"]).values]
    after = [str(n) for n in (found["length_after"] if named else found["answer_after"]).values]
    x = np.arange(len(labels))
    figure = go.Figure()
    figure.add_hline(y=0, line={"color": FAINT, "width": 2})
    sides = {"after the first prompt": ("log_odds", COLOURS["path_bound"]), "after the second": ("log_odds_after", INK)}
    for name, (variable, colour) in sides.items():
        hover = f"{name}: %{{y:.3g}} nats"
        figure.add_trace(curve(x, found[variable].values, name, colour=colour, size=5, hover=hover))
    verdicts, height = found["verdict"].values.astype(str), float(np.abs(found["log_odds"].values).max()) * 1.25 or 1.0
    for verdict, (symbol, colour) in VERDICTS.items():
        here = verdicts == verdict
        if here.any():
            marks = curve(
                x[here], np.full(here.sum(), height), verdict, colour=colour, symbol=symbol, size=10, mode="markers",
                hover=verdict,
            )  # fmt: skip
            figure.add_trace(marks)
    texts = [escape(f"{a} | {b}") for a, b in zip(labels, after, strict=True)]
    figure.update_xaxes(tickvals=x, ticktext=texts, title="lengths of the two prompts" if named else "right answers")
    figure.update_yaxes(title="log-odds of first and second answer (nats)")
    return finish(figure, "Which of the two answers is preferred", 280, found)


@draws("squashlens.verdict", "margin: pair layer", "margin_y: pair", usual=False)
def verdict_margins(found: xr.Dataset) -> go.Figure:
    """Draw how far the two prompts of each pair are apart at the last token, in units of their rounding, by layer."""
    figure, top = go.Figure(), int(found["layer"].values[-1])
    x = [*found["layer"].values, top + 1]
    for number, pair in enumerate(found["pair"].values):
        one = found.sel(pair=pair)
        label = f"{one['answer'].item()} or {one['answer_after'].item()}" if "answer" in one.coords else f"pair {pair}"
        style: dict[str, Any] = series(number) | {"hover": f"{label}, layer %{{x}}: %{{y:.3g}}", "log": True}
        figure.add_trace(curve(x, np.append(one["margin"].values, one["margin_y"].values), escape(label), **style))
        if "margin_random" in found:
            random = np.append(one["margin_random"].values[0], one["margin_random_y"].values[0])
            figure.add_trace(
                curve(x, random, f"{escape(label)}, random weights", dash="dot", width=1.2, size=4, **style)
            )
    figure.add_hline(y=1, line={"color": FAINT, "width": 2})
    figure.update_xaxes(LAYERS | {"dtick": max(1, (top + 1) // 10), "title": f"layer ℓ ({top + 1}: y)"})
    figure.update_yaxes(type="log", title="distance ÷ rounding")
    return finish(figure, "Can the two prompts be told apart?", 260, found, "grey line: as far apart as rounding")
