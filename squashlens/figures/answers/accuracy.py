"""Accuracy and error of a model's answers by length (figures 2, 3 and 6 of Barbero et al. 2024)."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens.errors import InputError
from squashlens.figures.answers.modes import Found, labelled, mode_named, modes_of, only, percent
from squashlens.figures.drawing.inputs.facts import notes_of
from squashlens.figures.drawing.inputs.given import draws
from squashlens.figures.drawing.maps import interval
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import label
from squashlens.figures.drawing.themes import series
from squashlens.tasks.reading import WHY

CELL, OVER = ("mode", "length"), ("mode", "length", "seed")
UNREAD = {"unread": (*CELL, "why")}
LENGTH = "length (items)"
EVALUATE = "squashlens.evaluate"
PANEL, THIN = 230, 46  # pixels of a panel, and of the thin one under it
SINGLE = "single answers"
QUARTILES = ("median_error", "error_q1", "error_q3")


@draws(EVALUATE, "accuracy accuracy_low accuracy_high accuracy_strict: length ...")
def accuracy_by_length(found: Found) -> go.Figure:
    """Draw the share of right answers by length.

    Error bars are 95 % intervals, if there are several seeds. Answers that could not be read count as wrong; the hover
    text has their share. A thin line with open marks is the share of right answers in the requested form, if it is
    smaller.

    Args:
        found: a result of `squashlens.evaluate`, or several by label.

    Returns:
        The figure.
    """
    needed = ("accuracy", "accuracy_low", "accuracy_high", "accuracy_strict")
    several = labelled(found, {name: CELL for name in needed} | UNREAD, EVALUATE)
    together = modes_of(several.values())
    lines = [(number, text, mode) for number, text in enumerate(several) for mode in modes_of([several[text]])]
    names, figure = [], go.Figure()
    for under, (number, text, mode) in zip(range(len(lines) - 1, -1, -1), lines, strict=True):
        mode_text, colour, dash, symbol = mode_named(mode)
        names.append(", ".join([text] * bool(text) + [mode_text] * (len(together) > 1)) or mode_text)
        if len(several) > 1:  # labels have colours and marks, and modes have dashes, or labels have all three
            colour, other, symbol = series(number)
            dash = dash if len(together) > 1 else other
        here, many = several[text].sel(mode=mode), several[text].sizes.get("seed", 1)
        share, low, high = (here[f"accuracy{end}"].values for end in ("", "_low", "_high"))
        bars = interval(share, low, high, colour, 4) | {"thickness": 1.2}
        wider = under * min(1.0, 4 / len(lines))  # keeps a line visible under an identical one
        figure.add_scatter(
            x=here["length"].values, y=share, name=names[-1], mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2 + wider / 3}, error_y=bars if many > 1 else None,
            marker={"color": colour, "symbol": symbol, "size": 7 + 2 * wider},
            text=_rights(names[-1], here, many), hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
        strict = here["accuracy_strict"].values
        if (strict < share).any():
            names.append(f"{names[-1]}, in the requested form")
            figure.add_scatter(
                x=here["length"].values, y=strict, name=names[-1], mode="lines+markers",
                line={"color": colour, "dash": dash, "width": 1}, marker={"symbol": f"{symbol}-open", "size": 6},
                text=_rights(names[-1], here, many, "accuracy_strict"), hovertemplate="%{text}<extra></extra>",
            )  # fmt: skip
    figure.update_xaxes(title=LENGTH)
    figure.update_yaxes(title="share answered correctly", range=[-0.04, 1.04])
    notes = notes_of(several.values(), *only(together))
    return finish(figure, title="How often the answer is right", height=280, notes=notes)


@draws(EVALUATE, "median_error error_q1 error_q3 mean_error: length ...", usual=False)
def error_by_length(found: Found) -> go.Figure:
    """Draw the median error of numeric answers by length, one panel for each label.

    Error bars are quartiles and faint dots are single answers. The hover text has the mean, which a single answer may
    dominate. Answers that could not be read have no error; a thin panel below shows their share.

    Args:
        found: a result of `squashlens.evaluate` with numeric answers, or several by label.

    Returns:
        The figure.

    Raises:
        InputError: if the answers are not numbers.
    """
    each = dict.fromkeys(("error", "value", "truth", "reading"), OVER)
    several = labelled(found, dict.fromkeys((*QUARTILES, "mean_error"), CELL) | each | UNREAD, EVALUATE)
    for one in several.values():
        if bool((one["reading"] == "read").any()) and not _has_errors(one):
            raise InputError("These answers are not numbers and have no error.", "Draw accuracy_by_length.")
    columns = len(several) if len(several) < 4 else 2
    figure, height = _panels(list(several), columns)
    seen: dict[str, None] = {}
    for number, one in enumerate(several.values()):
        row, column = number // columns * 2 + 1, number % columns + 1
        for mode in modes_of([one]):
            for below, trace in enumerate(_errors(one.sel(mode=mode), mode_named(mode))):
                trace.showlegend = trace.name not in seen and len(np.atleast_1d(trace.x)) > 0  # pyright: ignore
                seen |= {str(trace.name): None} if trace.showlegend else {}
                figure.add_trace(trace, row=row + (below == 2), col=column)
        _axes(figure, one, row, column)
    notes = notes_of(several.values(), *only(modes_of(several.values())), "bars: quartiles")
    return finish(figure, title="Error of the answers", height=height, notes=notes)


def _rights(name: str, here: xr.Dataset, many: int, measure: str = "accuracy") -> list[str]:
    """Hover text for each length: share of right answers, numbers of answers and prompts, share not read."""
    texts = []
    for length in here["length"].values:
        at = here.sel(length=length)
        share, low, high = (percent(float(at[f"{measure}{end}"])) for end in ("", "_low", "_high"))
        of = f"{many} answers{_to(at, many)} (95 % interval {low} to {high})" if many > 1 else "1 answer"
        strict = percent(float(at["accuracy_strict"]))
        texts.append(
            f"{name}, {length} items<br>{share} right of {of}<br>{strict} in the requested form<br>{_unread(at)}"
        )
    return texts


def _to(at: xr.Dataset, many: int) -> str:
    """The number of prompts as text, if the result says that there were fewer prompts than answers."""
    prompts = int(at["prompts"]) if "prompts" in at else many
    return f" to {prompts} prompt{'s' * (prompts > 1)}" if prompts < many else ""


def _unread(at: xr.Dataset) -> str:
    """The share of answers that was not read, with the reasons, as text."""
    shares = {str(why): float(at["unread"].sel(why=why)) for why in at["why"].values}
    reasons = ", ".join(f"{WHY.get(why, label(why))} {percent(share)}" for why, share in shares.items() if share)
    return f"{percent(sum(shares.values()))} not read" + (f": {reasons}" if reasons else "")


def _has_errors(one: xr.Dataset) -> bool:
    return bool(np.isfinite(one["error"]).any())


def _errors(here: xr.Dataset, mode: tuple[str, str, str, str]) -> tuple[go.Scatter, go.Scatter, go.Scatter]:
    """Traces of single errors, of their median with quartiles, and of the share not read."""
    name, colour, dash, symbol = mode
    error = here["error"].stack(answer=("length", "seed"))
    error = error[np.isfinite(error.values)]
    single = []
    for length, seed in error["answer"].values:
        at = here.sel(length=length, seed=seed)
        said, right = (label(str(at[part].item())) for part in ("value", "truth"))
        single.append(f"{name}, {length} items, seed {seed}<br>answer {said}, right answer {right}")
    lengths, means, unread = here["length"].values, here["mean_error"].values, here["unread"].sum("why").values
    median, low, high = (here[name].values for name in QUARTILES)
    bars = interval(median, low, high, colour, 4) | {"thickness": 1.2}
    texts = [f"{name}, {length} items<br>{_unread(here.sel(length=length))}" for length in lengths]
    over = [
        f"{text}<br>median error {half:.4g} items, quartiles {first:.4g} and {third:.4g}, mean {mean:.4g}"
        for text, half, first, third, mean in zip(texts, median, low, high, means, strict=True)
    ]
    shared: dict[str, Any] = {"cliponaxis": False, "hovertemplate": "%{text}<extra></extra>"}
    lines = {"mode": "lines+markers", "name": name, "legendgroup": name, "line": {"color": colour, "dash": dash}}
    dots = {
        "mode": "markers",
        "name": SINGLE,
        "legendgroup": SINGLE,
        "legendrank": 2000,
        "marker": {"color": colour, "opacity": 0.25},
    }
    return (
        go.Scatter(x=error["length"].values, y=error.values, text=single, marker_size=5, **dots, **shared),
        go.Scatter(
            x=lengths,
            y=median,
            text=over,
            marker={"symbol": symbol, "size": 8},
            error_y=bars if here.sizes["seed"] > 1 else None,
            **lines,
            **shared,
        ),
        go.Scatter(x=lengths, y=unread, text=texts, marker={"symbol": symbol, "size": 5}, **lines, **shared),
    )


def _panels(titles: list[str], columns: int) -> tuple[go.Figure, int]:
    """A figure of panels, each with a thin panel below it, and its height in pixels."""
    rows = -(-len(titles) // columns)
    parts = [titles[row * columns : (row + 1) * columns] for row in range(rows)]
    specs = [[{} if column < len(part) else None for column in range(columns)] for part in parts for _ in range(2)]
    names = [text for part in parts for text in (*part, *[""] * len(part))]
    heights = [PANEL, THIN] * rows
    figure = make_subplots(rows=2 * rows, cols=columns, specs=specs, row_heights=heights, subplot_titles=names)
    return figure, sum(heights)


def _axes(figure: go.Figure, one: xr.Dataset, row: int, column: int) -> None:
    """Set the axes of a panel and of the thin panel below it: equal lengths, errors from 0, shares from 0 to 1."""
    lengths = one["length"].values
    margin = 0.04 * max(float(np.ptp(lengths)), 1)
    ends = [float(lengths.min()) - margin, float(lengths.max()) + margin]
    figure.update_xaxes(range=ends, showticklabels=False, row=row, col=column)
    figure.update_xaxes(range=ends, title=LENGTH, row=row + 1, col=column)
    figure.update_yaxes(rangemode="tozero", row=row, col=column)
    figure.update_yaxes(range=[-0.25, 1.25], tickvals=[0, 1], row=row + 1, col=column)
    if column == 1:
        figure.update_yaxes(title="median error (items)", row=row, col=1)
        figure.update_yaxes(title="share not read", row=row + 1, col=1)
    if not _has_errors(one):
        figure.update_yaxes(range=[0, 1], showticklabels=False, row=row, col=column)
        figure.add_annotation(
            text="no answer was read", showarrow=False, x=float(lengths.mean()), y=0.5, row=row, col=column
        )
