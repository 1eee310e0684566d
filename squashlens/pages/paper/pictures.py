"""The paper's figures: how each is drawn from its results, at the width that it has in a paper, and its caption.

The texts of captions are in `captions.jinja`; each ends with what differs from the paper's figure. All numbers are read
from the results that are drawn.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens import example_models, figures
from squashlens.figures.collapse import fitted_exponent
from squashlens.measure.answers.frequencies import answer_frequencies
from squashlens.pages.collapse_sentences import collapses
from squashlens.pages.page import template
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
COPIED = {
    "": "(a) 1…10 and 01…1",
    "_hint": "(b) with a hint",
    "_alternating": "(c) alternating",
}
COLLAPSED = {
    "collapse_a": "(a) count ones",
    "collapse_b": "(b) count ones among digits",
    "collapse_c": "(c) copy ones",
    "collapse_d": "(d) copy ones with commas",
}
COUNTED = {
    "sum": "(i) sum",
    "count_ones": "(ii) ones",
    "count_bernoulli": "(iii) ones among zeros",
}


def caption_of(number: int, found: Found) -> str:
    """The caption of a figure, from its results by the names of their parts."""
    results = list(found.values())
    contents: dict[str, Any] = {}
    if number < 8:
        model = str(provenance(results[0])["model"])
        contents["trained"] = example_models.trained_length(model)
    if number in (2, 3, 4, 6, 7):  # answers
        unread = [result["unread"].sum("why").mean() for result in results]
        asked = [_shorten(provenance(result)["task"]["template"]) for result in results]
        unable = [name for name in found if (found[name]["able"] != "yes").any()]
        contents |= {
            "unread": np.mean(unread),
            "questions": list(dict.fromkeys(asked)),
            "unable": unable,
            "seeds": [result.sizes["seed"] for result in results],
        }
    if number == 5:
        floors = [result["noise_floor"].isel(layer=-1).max() for result in results]
        contents["floor"] = max(floors)
    text = template("paper/captions.jinja").render(
        contents,
        number=number,
        found=found,
        stacks=STACKS,
        copying=len(COPYING),
        provenance=provenance,
        models_of=models_of,
        escape=escape,
        shortened=_shorten,
        g=sentences.number,
        percent=sentences.percent,
        collapses=collapses,
        exponent=partial(fitted_exponent, interval="(95 % interval {low} to {high})"),
        start_at_the_first=start_at_the_first,
    )
    return " ".join(text.split())


def _shorten(text: str) -> str:
    """A prompt as text that can be seen, or its beginning."""
    shown = escape(text)
    return shown if len(shown) <= LONG else f"{shown[:LONG]}…"


def width_of(number: int) -> Literal["column", "page"]:
    """The width of a figure in a paper of two columns."""
    return "column" if number in COLUMN else "page"


def draw_figure(number: int, found: Found) -> go.Figure:
    """A figure, without a title, because the caption says what it shows."""
    match number:
        case 1:
            figure = _first(found)
        case 2:
            figure = _copying(found)
        case 3 | 6:
            figure = figures.task_error(_counted(found))
        case 4 | 7:
            counted = _counted(data_of(number, found))
            figure = figures.answer_frequencies(counted)
        case 5:
            figure = _collapse(found)
        case 8:
            stacks = {STACKS[name]: stack for name, stack in found.items()}
            figure = figures.synthetic_convergence(stacks)
        case _:
            figure = figures.synthetic_total_variation(found["total_variation"])
    height = HEIGHTS.get(number)
    if any(result.sizes.get("mode", 1) > 1 for result in found.values()):
        height = None  # as high as the panels of all modes need
    width = width_of(number)
    return figures.styled(figure, theme="paper", width=width, height=height, title="")


def data_of(number: int, found: Found) -> dict[str, xr.Dataset]:
    """The numbers that a figure shows, by the name of their table."""
    if number in (4, 7):
        return {name: answer_frequencies(result) for name, result in found.items()}
    if number == 5:
        return {name: result.isel(layer=[-1]) for name, result in found.items()}
    return dict(found)


def start_at_the_first(paths: xr.Dataset) -> int:
    """How many paths start at the first token."""
    return int((paths["position_at"].isel(layer=0) == 0).sum())


def _first(found: Found) -> go.Figure:
    """Figure 1: collapse, and the strongest paths; where all of these start at the first token, those that do not."""
    paths = found["strongest_paths_model"]
    if start_at_the_first(paths) == paths.sizes["path"]:
        paths = found["strongest_paths_others"]
    collapse = figures.collapse_heatmap(found["ones_and_zero"])
    parts = {
        "(a) collapse, by layer and number of ones": collapse,
        "(b) strongest paths": figures.strongest_paths(paths),
    }
    return figures.panels(parts, columns=1)


def _copying(found: Found) -> go.Figure:
    """Figure 2: the share of right copies of the last and of the first digit, a panel for each kind of sequence."""
    parts = {}
    for kind, title in COPIED.items():
        last = found.get(f"copy_last{kind}")
        first = found.get(f"copy_first{kind}")
        if last is not None and first is not None:
            ends: Any = {"last digit": last, "first digit": first}
            parts[title] = figures.task_accuracy(ends)
    return figures.panels(parts)


def _counted(found: Found) -> Any:
    """Results by the title of the paper's panel, for each task of counting."""
    return {COUNTED[name.removesuffix("_sampled")]: found[name] for name in found}


def _collapse(found: Found) -> go.Figure:
    """Figure 5: D by length, a panel for each sequence; lengths that the model was trained on are shaded, if known."""
    named: Any = {COLLAPSED[name]: result for name, result in found.items()}
    model = str(provenance(found["collapse_a"])["model"])
    trained = example_models.trained_length(model)
    return figures.collapse_curve(named, trained=trained)
