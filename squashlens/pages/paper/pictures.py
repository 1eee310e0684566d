"""The paper's figures: how each is drawn from its results, at the width that it has in a paper, and its caption.

The texts of captions are in `captions.jinja`; each ends with what differs from the paper's figure. All numbers are read
from the results that are drawn.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens import figures, zoo
from squashlens.measure.answers.frequencies import answer_frequencies
from squashlens.pages.collapse_sentences import collapses
from squashlens.pages.markup import template
from squashlens.pages.paper.parts import COPYING
from squashlens.records import sentences
from squashlens.records.provenance import models_of, provenance
from squashlens.records.sentences import escape

Found = Mapping[str, xr.Dataset]
COLUMN = (9,)  # figures that are as wide as one column; others are as wide as the page
# Inches that leave room for the caption on a page, except for several modes, which have a panel each.
HEIGHTS = {1: 5.0, 4: 5.0, 5: 7.0, 7: 5.0}
LONG = 160  # characters of a prompt
STACKS = {
    "stack_no_positions": "no positions",
    "stack_queries_keys": "sines on queries and keys",
    "stack_inputs": "sines on the inputs",
}
PANELS = {"copy": "(a)", "copy_hint": "(b)", "copy_alternating": "(c)"}
COUNTED = {
    "sum": "(i) sum",
    "count_ones": "(ii) ones",
    "count_bernoulli": "(iii) ones among zeros",
}


def caption_of(number: int, found: Found) -> str:
    """The caption of a figure, for its results by the names of their parts."""
    given: dict[str, Any] = {
        "number": number,
        "found": found,
        "stacks": STACKS,
        "copying": len(COPYING),
        "provenance": provenance,
        "models_of": models_of,
        "escape": escape,
        "shortened": _shorten,
        "g": sentences.number,
        "percent": lambda share: sentences.percent(float(share)),
        "collapses": collapses,
        "exponent": _exponent,
        "start_at_the_first": start_at_the_first,
    }
    if number < 8:
        given["trained"] = zoo.trained_length(
            str(provenance(next(iter(found.values())))["model"])
        )
    if number in (2, 3, 4, 6, 7):
        given["unread"] = np.mean(
            [one["unread"].sum("why").mean() for one in found.values()]
        )
        asked = dict.fromkeys(
            _shorten(str(provenance(one)["task"]["template"])) for one in found.values()
        )
        given["questions"] = list(asked)
        given["unable"] = [
            name for name, one in found.items() if bool((one["able"] != "yes").any())
        ]
        given["seeds"] = [one.sizes["seed"] for one in found.values()]
    if number == 5:
        given["floor"] = max(
            float(one["noise_floor"].isel(layer=-1).max()) for one in found.values()
        )
    return " ".join(template("paper/captions.jinja").render(given).split())


def role(name: str) -> str:
    """The name of a part, without what says that its answers are sampled."""
    return name.removesuffix("_sampled")


def _exponent(one: xr.Dataset, name: str) -> str:
    mean, low, high = (
        f"{float(one[f'{name}_{edge}']):.3f}" for edge in ("mean", "low", "high")
    )
    return f"{mean} (95 % interval {low} to {high})".replace("-", "−").replace(
        "−0.000", "0.000"
    )


def _shorten(text: str) -> str:
    shown = escape(text)
    return shown if len(shown) <= LONG else f"{shown[:LONG]}…"


def width_of(number: int) -> Literal["column", "page"]:
    """The width of a figure in a paper of two columns."""
    return "column" if number in COLUMN else "page"


def draw_figure(number: int, found: Found) -> go.Figure:
    """A figure, without a title, because the caption says what it shows."""
    draw = {
        1: _first,
        2: _copying,
        3: _errors,
        4: _frequencies,
        5: _collapse,
        6: _errors,
        7: _frequencies,
        8: lambda found: figures.synthetic_convergence(
            {STACKS[name]: one for name, one in found.items()}
        ),
        9: lambda found: figures.synthetic_total_variation(found["total_variation"]),
    }[number]
    several = any(one.sizes.get("mode", 1) > 1 for one in found.values())
    height = None if several else HEIGHTS.get(number)
    return figures.styled(
        draw(found), theme="paper", width=width_of(number), height=height, title=""
    )


def data_of(number: int, found: Found) -> dict[str, xr.Dataset]:
    """The numbers that a figure shows, by the name of their table."""
    if number in (4, 7):
        return {name: answer_frequencies(one) for name, one in found.items()}
    if number == 5:
        return {name: one.isel(layer=[-1]) for name, one in found.items()}
    return dict(found)


def start_at_the_first(paths: xr.Dataset) -> int:
    """How many paths start at the first token."""
    return int((paths["position_at"].isel(layer=0) == 0).sum())


def _first(found: Found) -> go.Figure:
    """Collapse, and the strongest paths; where all of these start at the first token, those that do not."""
    paths = found["strongest_paths_model"]
    if start_at_the_first(paths) == paths.sizes["path"]:
        paths = found["strongest_paths_others"]
    parts = {
        "(a) collapse, by layer and number of ones": figures.collapse_heatmap(
            found["ones_and_zero"]
        ),
        "(b) strongest paths": figures.strongest_paths(paths),
    }
    return figures.panels(parts, columns=1)


def _copying(found: Found) -> go.Figure:
    parts: dict[str, Any] = {}
    texts = {
        "copy": "1…10 and 01…1",
        "copy_hint": "with a hint",
        "copy_alternating": "alternating",
    }
    for name, panel in PANELS.items():
        tail = name.removeprefix("copy")
        ends = {
            f"{end} digit": found.get(f"copy_{end}{tail}") for end in ("last", "first")
        }
        if all(one is not None for one in ends.values()):
            parts[f"{panel} {texts[name]}"] = figures.accuracy_by_length(ends)  # pyright: ignore[reportArgumentType]
    return figures.panels(parts)


def _errors(found: Found) -> go.Figure:
    return figures.error_by_length(
        {COUNTED[role(name)]: one for name, one in found.items()}
    )


def _frequencies(found: Found) -> go.Figure:
    return figures.answer_frequencies(
        {COUNTED[role(name)]: answer_frequencies(one) for name, one in found.items()}
    )


def _collapse(found: Found) -> go.Figure:
    texts = {
        "a": "count ones",
        "b": "count ones among digits",
        "c": "copy ones",
        "d": "copy ones with commas",
    }
    named = {f"({name[-1]}) {texts[name[-1]]}": one for name, one in found.items()}
    trained = zoo.trained_length(str(provenance(found["collapse_a"])["model"]))
    return figures.collapse_curve(named, trained=trained)  # pyright: ignore[reportArgumentType]
