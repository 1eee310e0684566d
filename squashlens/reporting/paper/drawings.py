"""The paper's figures drawn from the results of their parts, at the width that they have in a paper."""

from collections.abc import Mapping
from typing import Any, Literal

import plotly.graph_objects as go
import xarray as xr

from squashlens import figures, zoo
from squashlens.measure.answers.frequencies import answer_frequencies
from squashlens.records.joining import restated
from squashlens.records.results import provenance
from squashlens.reporting.paper.captions import COUNTED, PANELS, STACKS, role

Found = Mapping[str, xr.Dataset]
COLUMN = (9,)  # figures that are as wide as one column; others are as wide as the page
# Inches that leave room for the caption on a page, except for several modes, which have a panel each.
HEIGHTS = {1: 5.0, 4: 5.0, 5: 4.8, 7: 5.0}


def width_of(number: int) -> Literal["column", "page"]:
    """The width of a figure in a paper of two columns."""
    return "column" if number in COLUMN else "page"


def draw_figure(number: int, found: Found) -> go.Figure:
    """A figure, without a title, because the caption says what it shows."""
    draw = {
        1: _first, 2: _copying, 3: _errors, 4: _frequencies, 5: _collapse, 6: _errors, 7: _frequencies,
        8: _convergence, 9: lambda one: figures.synthetic_total_variation(one["total_variation"]),
    }[number]  # fmt: skip
    several = any(one.sizes.get("mode", 1) > 1 for one in found.values())
    height = None if several else HEIGHTS.get(number)
    return figures.styled(draw(found), theme="paper", width=width_of(number), height=height, title="")


def data_of(number: int, found: Found) -> dict[str, xr.Dataset]:
    """The numbers that a figure shows, by the name of their table."""
    if number in (4, 7):
        return {name: answer_frequencies(one) for name, one in found.items()}
    if number == 5:
        return {name: one.isel(layer=[-1]) for name, one in found.items()}
    return dict(found)


def _first(found: Found) -> go.Figure:
    parts = {
        "(a) collapse, by layer and number of ones": figures.collapse_heatmap(found["ones_and_zero"]),
        "(b) strongest paths": figures.strongest_paths(found["strongest_paths_model"]),
    }
    return figures.panels(parts, columns=1, share="none")


def _copying(found: Found) -> go.Figure:
    parts: dict[str, Any] = {}
    texts = {"copy": "1…10 and 01…1", "copy_hint": "with a hint", "copy_alternating": "alternating"}
    for name, panel in PANELS.items():
        tail = name.removeprefix("copy")
        ends = {f"{end} digit": found.get(f"copy_{end}{tail}") for end in ("last", "first")}
        if all(one is not None for one in ends.values()):
            parts[f"{panel} {texts[name]}"] = figures.accuracy_by_length(ends)  # pyright: ignore[reportArgumentType]
    return figures.panels(parts)


def _errors(found: Found) -> go.Figure:
    return figures.error_by_length({COUNTED[role(name)]: one for name, one in found.items()})


def _frequencies(found: Found) -> go.Figure:
    return figures.answer_frequencies({COUNTED[role(name)]: answer_frequencies(one) for name, one in found.items()})


def _collapse(found: Found) -> go.Figure:
    texts = {"a": "count ones", "b": "count ones among digits", "c": "copy ones", "d": "copy ones with commas"}
    named = {f"({name[-1]}) {texts[name[-1]]}": one for name, one in found.items()}
    # A sequence of one digit that must be a one has no other content, so that this baseline begins with the second.
    (b,) = (name for name in named if name.startswith("(b)"))
    named[b] = restated(named[b].assign(unrelated=named[b]["unrelated"].where(named[b]["length"] > 1)), {})
    trained = zoo.trained_length(str(provenance(found["collapse_a"])["model"]))
    return figures.collapse_curve(named, trained=trained)  # pyright: ignore[reportArgumentType]


def _convergence(found: Found) -> go.Figure:
    return figures.synthetic_convergence({STACKS[name]: one for name, one in found.items()})
