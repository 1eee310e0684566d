"""Shared parts of the figures of answers: checks of their results, names of modes, and the line under the title."""

import html
from collections.abc import Iterable, Mapping
from typing import Any

import plotly.graph_objects as go
import xarray as xr

from squashlens.errors import InputError
from squashlens.figures._needle import LINES
from squashlens.figures._theme import BOTTOM, COLOURS, dress
from squashlens.results import provenance

Found = xr.Dataset | Mapping[str, xr.Dataset]
Dims = tuple[str, ...]

# Name, colour, dash and symbol of each mode.
MODES = {
    "answer_only": ("answer only", LINES[0], "solid", "circle"),
    "cot": ("chain of thought", LINES[3], "dash", "square"),
    "cot_few_shot": ("chain of thought, examples", LINES[2], "dot", "diamond"),
}
LABELS = tuple(LINES[place] for place in (0, 3, 2, 5, 4, 1, 6, 7))  # an order in which neighbours differ clearly
HEAD, LINE, WIDTH = 64, 24, 880  # pixels: the title with its subtitle, a line of the legend, the legend's width
TITLED = 26  # pixels of a panel's title


def labelled(found: Found, needed: Mapping[str, Dims], maker: str) -> dict[str, xr.Dataset]:
    """Results by label (empty for a single result); an error if a variable or one of its dimensions is missing."""
    several = {"": found} if isinstance(found, xr.Dataset) else {html.escape(text): one for text, one in found.items()}
    if not several:
        raise InputError("There is nothing to draw.", f"Give a result of {maker}.")
    by_mode = any("mode" in dims for dims in needed.values())
    for text, one in several.items():
        if by_mode and "mode" in one.coords and "mode" not in one.dims:  # the user selected one mode
            several[text] = one = one.expand_dims("mode")
        for name, dims in needed.items():
            if name not in one or one[name].dims != dims:
                where = f" of {text!r}" if text else ""
                raise InputError(
                    f"There is no {name} over ({', '.join(dims)}){where}.", f"Give the unchanged result of {maker}."
                )
    return several


def headed(
    figure: go.Figure, title: str, found: Iterable[xr.Dataset], names: Iterable[str] = (), *, height: int,
    notes: Iterable[str] = (), lift: int = 0, bottom: int = BOTTOM,
) -> go.Figure:  # fmt: skip
    """Apply the theme to a figure, with model, task and notes under the title and room for a legend of `names`.

    `height` is the height of the panels, `lift` the space between panels and legend, `bottom` the space under the
    panels, all in pixels.
    """
    facts = [facts_of(one) for one in found]
    models = _few([name for one in facts for name in _all(one.get("model"))], "models")
    tasks = _few([name for one in facts for name in _all(one.get("task", {}).get("name"))], "tasks")
    shown = list(names)
    in_a_line = max(1, int(WIDTH / (52 + 7 * max(map(len, shown), default=0))))
    top = HEAD + lift + (LINE * -(-len(shown) // in_a_line) if len(shown) > 1 else 0)
    dress(figure, title=title, height=height + top + bottom, top=top)
    figure.update_layout(
        margin_b=bottom,
        legend_y=1 + lift / height,
        title_y=1 - 8 / (height + top + bottom),
        title_subtitle={
            "text": " · ".join(filter(None, [models, tasks, *notes])),
            "font": {"size": 12, "color": COLOURS["null"]},
        },
    )
    return figure.update_annotations(font_size=13)


def modes_of(several: Iterable[xr.Dataset]) -> list[str]:
    """All modes of the results, in order."""
    return list(dict.fromkeys(str(mode) for one in several for mode in one["mode"].values))


def mode_named(mode: str) -> tuple[str, str, str, str]:
    """Name, colour, dash and symbol of a mode."""
    return MODES.get(mode, (html.escape(mode), LINES[5], "dashdot", "cross"))


def only(modes: list[str]) -> list[str]:
    """The name of the mode for the line under the title, if there is only one; several have a legend."""
    return [mode_named(mode)[0] for mode in modes] if len(modes) == 1 else []


def facts_of(found: xr.Dataset) -> dict[str, Any]:
    """The provenance of a result."""
    return provenance(found)


def percent(share: float) -> str:
    """A share as a percentage, without the rounding errors of subtractions.

    >>> percent(1 / 3), percent(1 - 0.9 - 0.1)
    ('33.3 %', '0 %')
    """
    return f"{round(100 * share, 9) + 0.0:.3g} %"


def _all(name: str | list[str] | None) -> list[str]:
    """A name or several names as a list."""
    return [name] if isinstance(name, str) else list(name or [])


def _few(names: list[str], what: str) -> str:
    once = list(dict.fromkeys(names))
    return html.escape(", ".join(once)) if len(once) < 4 else f"{len(once)} {what}"
