"""What figures of answers share: the Datasets they take, the names of modes, the line under the title."""

import html
from collections.abc import Iterable, Mapping
from typing import Any

import plotly.graph_objects as go
import xarray as xr

from squashlens.errors import InputError
from squashlens.figures.needle import LINES
from squashlens.figures.theme import BOTTOM, COLOURS, dress
from squashlens.results import provenance

Found = xr.Dataset | Mapping[str, xr.Dataset]
Dims = tuple[str, ...]

# Name, colour, dash and symbol of each mode.
MODES = {
    "answer_only": ("answer only", LINES[0], "solid", "circle"),
    "cot": ("chain of thought", LINES[3], "dash", "square"),
    "cot_few_shot": ("chain of thought, examples", LINES[2], "dot", "diamond"),
}
LABELS = tuple(LINES[place] for place in (0, 3, 2, 5, 4, 1, 6, 7))  # neighbours unlike
HEAD, LINE, WIDTH = 64, 24, 880  # pixels: title with the line under it, a line of the legend, the legend's width
TITLED = 26  # pixels of a panel's title


def labelled(found: Found, needed: Mapping[str, Dims], maker: str) -> dict[str, xr.Dataset]:
    """Datasets by label, as figure text, empty for one alone; refused if they lack a variable or its dimensions."""
    several = {"": found} if isinstance(found, xr.Dataset) else {html.escape(text): one for text, one in found.items()}
    if not several:
        raise InputError("There is nothing to draw.", f"Give what {maker} gives.")
    by_mode = any("mode" in dims for dims in needed.values())
    for text, one in several.items():
        if by_mode and "mode" in one.coords and "mode" not in one.dims:  # one was selected
            several[text] = one = one.expand_dims("mode")
        for name, dims in needed.items():
            if name not in one or one[name].dims != dims:
                where = f" of {text!r}" if text else ""
                raise InputError(f"There is no {name} over ({', '.join(dims)}){where}.", f"Draw what {maker} gives.")
    return several


def headed(
    figure: go.Figure, title: str, found: Iterable[xr.Dataset], names: Iterable[str] = (), *, height: int,
    notes: Iterable[str] = (), lift: int = 0, bottom: int = BOTTOM,
) -> go.Figure:  # fmt: skip
    """The theme, with model, task and notes under the title, and room for a legend of these names over the panels.

    `height` is that of the panels, `lift` what is between them and the legend, `bottom` what is under them.
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
    """Every mode there is, in order."""
    return list(dict.fromkeys(str(mode) for one in several for mode in one["mode"].values))


def mode_named(mode: str) -> tuple[str, str, str, str]:
    """Name, colour, dash and symbol."""
    return MODES.get(mode, (html.escape(mode), LINES[5], "dashdot", "cross"))


def only(modes: list[str]) -> list[str]:
    """The name of a mode that is alone, for the line under the title; several are told apart in the figure."""
    return [mode_named(mode)[0] for mode in modes] if len(modes) == 1 else []


def facts_of(found: xr.Dataset) -> dict[str, Any]:
    """What made it; what made its first variable, where only those say so."""
    facts = provenance(found)
    return facts if "provenance" in found.attrs else next(iter(facts.values()))


def percent(share: float) -> str:
    """A share in percent, free of what is left of a subtraction.

    >>> percent(1 / 3), percent(1 - 0.9 - 0.1)
    ('33.3 %', '0 %')
    """
    return f"{round(100 * share, 9) + 0.0:.3g} %"


def _all(name: str | list[str] | None) -> list[str]:
    """A name, or each of several."""
    return [name] if isinstance(name, str) else list(name or [])


def _few(names: list[str], what: str) -> str:
    once = list(dict.fromkeys(names))
    return html.escape(", ".join(once)) if len(once) < 4 else f"{len(once)} {what}"
