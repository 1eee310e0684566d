"""What can be told apart above rounding, and what is made of it: recovery by layer, and the log-odds of answers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.shapes import LAYERS, curve, guide
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escape
from squashlens.figures.drawing.themes import BROWN, COLOURS, series
from squashlens.records.sentences import listed, percent, plural

VERDICTS = {  # symbol and colour
    "answered": ("circle", "#009E73"),
    "preferred, not answered": ("square", "#0072B2"),
    "reaches the last token, not used": ("diamond", "#D55E00"),
    "lost": ("x", BROWN),
    "undecided": ("triangle-up", "#7F7F7F"),
}
RANDOM = "random weights"
GREY: dict[str, Any] = {"colour": COLOURS["null"], "width": 1.2, "size": 4}


@draws("squashlens.separation", "recovery: ... layer", "recovery_y chance: ...")
def separation_curve(separation: xr.Dataset | Mapping[str, xr.Dataset]) -> go.Figure:
    """Draw the share of lengths that another run recovers, by layer, with random weights and chance beside it.

    Several results by label, or several runs of one, are lines of one panel.
    """
    several: Any = separation  # by label
    lines: dict[str, xr.Dataset] = {}
    for label, whole in several.items():
        for run in map(str, whole["run"].values) if "run" in whole.dims else [""]:
            lines[f"{label} {run}".strip()] = whole.sel(run=run) if run else whole
    figure = go.Figure()
    for one in lines.values():
        if "recovery_random" in one:
            figure.add_traces(_by_layer(one, "recovery_random", RANDOM, **GREY))
    for number, (label, one) in enumerate(lines.items()):
        figure.add_traces(
            _by_layer(one, "recovery", label or "model", **series(number))
        )
    chances = dict.fromkeys(float(one["chance"]) for one in lines.values())
    guide(figure, *chances)
    tops = dict.fromkeys(str(int(one["layer"][-1]) + 1) for one in lines.values())
    figure.update_xaxes(
        LAYERS | {"title": f"layer ℓ ({listed([*tops])}: y, after the final norm)"}
    )
    figure.update_yaxes(title="lengths recovered", range=[-0.04, 1.04])
    shares = [
        f"{percent(float(one['recovery_y']))}{f' ({escape(name)})' * bool(name)}"
        for name, one in lines.items()
    ]
    says = f"From y, {listed(shares)} of lengths are recovered; by chance {listed([*map(percent, chances)])} would be."
    return finish(
        figure,
        "Lengths that can be told apart",
        260,
        lines.values(),
        "dotted line: chance",
        says=says,
    )


def _by_layer(one: xr.Dataset, name: str, text: str, **style: Any) -> list[go.Scatter]:
    """A variable by layer, with y as a further layer; a curve for each model with random weights."""
    x = [*one["layer"].values, int(one["layer"].values[-1]) + 1]
    rows = (
        one[name].transpose(..., "layer").values.reshape(-1, len(x) - 1),
        one[f"{name}_y"].values.ravel(),
    )
    hover = f"{text}, layer %{{x}}: %{{y:.3g}}"
    return [
        curve(x, values, text, hover=hover, **style) for values in np.column_stack(rows)
    ]


@draws("squashlens.verdict", "log_odds log_odds_after log_odds_noise: pair")
def verdict_odds(found: xr.Dataset) -> go.Figure:
    """Draw the log-odds of each two answers after both prompts, and the verdict on each pair.

    A model that prefers each prompt's own answer has the first above 0 and the second below. The symbol says what
    became of the change.
    """
    kind, axis = (
        ("length", "lengths of the two prompts")
        if "length" in found.coords
        else ("answer", "right answers")
    )
    labels, after = (
        [str(n) for n in found[f"{kind}{end}"].values] for end in ("", "_after")
    )
    x = np.arange(len(labels))
    figure = go.Figure()
    guide(figure, 0)
    sides = (
        ("after the first prompt", "", COLOURS["path_bound"]),
        ("after the second", "_after", BROWN),
    )
    for name, end, colour in sides:
        hover = f"{name}: %{{y:.3g}} nats"
        figure.add_trace(
            curve(
                x,
                found[f"log_odds{end}"].values,
                name,
                colour=colour,
                size=5,
                hover=hover,
            )
        )
    verdicts, height = (
        found["verdict"].values.astype(str),
        float(np.abs(found["log_odds"].values).max()) * 1.25 or 1.0,
    )
    for verdict, (symbol, colour) in VERDICTS.items():
        here = verdicts == verdict
        if here.any():
            marks = curve(
                x[here],
                np.full(here.sum(), height),
                verdict,
                colour=colour,
                symbol=symbol,
                size=10,
                mode="markers",
                hover=verdict,
            )
            figure.add_trace(marks)
    texts = [escape(f"{a} | {b}") for a, b in zip(labels, after, strict=True)]
    figure.update_xaxes(tickvals=x, ticktext=texts, title=axis)
    figure.update_yaxes(title="log-odds of first and second answer (nats)")
    counts = [
        f"“{name}” for {(verdicts == name).sum()}"
        for name in VERDICTS
        if (verdicts == name).any()
    ]
    says = f"The verdict on {plural(len(labels), 'change')} of the answer is {listed(counts)}."
    return finish(
        figure, "Which of the two answers is preferred", 280, found, says=says
    )


@draws(
    "squashlens.verdict", "margin: pair layer", "margin_y verdict: pair", usual=False
)
def verdict_margins(found: xr.Dataset) -> go.Figure:
    """Draw how far the two prompts of each pair are apart at the last token, in units of their rounding, by layer."""
    figure, verdicts = go.Figure(), found["verdict"].values.astype(str)
    for pair, verdict in enumerate(verdicts):
        one = found.isel(pair=pair)
        _, colour = VERDICTS.get(verdict, VERDICTS["undecided"])
        figure.add_traces(
            _by_layer(
                one, "margin", verdict, colour=colour, width=1.2, size=4, log=True
            )
        )
    guide(figure, 1)
    figure.update_xaxes(
        LAYERS
        | {"title": f"layer ℓ ({int(found['layer'][-1]) + 1}: y, after the final norm)"}
    )
    figure.update_yaxes(type="log", title="distance ÷ rounding")
    apart = int((found["margin_y"] > 1).sum())
    says = f"At y, the prompts are further apart than rounding in {apart} of {plural(len(verdicts), 'pair')}."
    title = "Can the two prompts be told apart?"
    return finish(
        figure,
        title,
        260,
        found,
        "lines: pairs, by verdict",
        "dotted line: as far as rounding",
        says=says,
    )
