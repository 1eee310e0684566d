"""Captions of the paper's figures, computed from the results: what is shown, for which model, and with which settings.

The texts are in `captions.jinja`; each caption ends with what differs from the paper's figure.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from squashlens import zoo
from squashlens.engine.text.tokens import escape
from squashlens.records.facts import named_models
from squashlens.records.results import provenance
from squashlens.reporting.collapse_sentences import falls
from squashlens.reporting.markup import template
from squashlens.reporting.paper.parts import COPYING
from squashlens.theory.statistics.trends import holm

LONG = 160  # characters of a prompt
STACKS = {
    "stack_no_positions": "no positions",
    "stack_queries_keys": "sines on queries and keys",
    "stack_inputs": "sines on the inputs",
}
PANELS = {"copy": "(a)", "copy_hint": "(b)", "copy_alternating": "(c)"}
COUNTED = {"sum": "(i) sum", "count_ones": "(ii) ones", "count_bernoulli": "(iii) ones among zeros"}


def caption_of(number: int, found: Mapping[str, xr.Dataset]) -> str:
    """The caption of a figure, for its results by the names of their parts."""
    given: dict[str, Any] = {
        "number": number, "found": found, "stacks": STACKS, "copying": len(COPYING), "provenance": provenance,
        "named_models": named_models, "escape": escape, "shortened": _shorten, "percent": _percent, "g": _g,
        "falls": lambda one, p: falls(one, float(p)).replace(" -", " −"), "exponent": _exponent,
    }  # fmt: skip
    if number < 8:
        given["trained"] = zoo.trained_length(str(provenance(next(iter(found.values())))["model"]))
    if number in (2, 3, 4, 6, 7):
        given["unread"] = np.mean([one["unread"].sum("why").mean() for one in found.values()])
        asked = dict.fromkeys(_shorten(str(provenance(one)["task"]["template"])) for one in found.values())
        given["questions"] = list(asked)
        given["seeds"] = [one.sizes["seed"] for one in found.values()]
    if number == 5:
        trends = holm([float(one["length_trend_p"][-1]) for one in found.values()])
        given["trends"] = dict(zip(found, trends, strict=True))
        given["floor"] = max(float(one["noise_floor"].isel(layer=-1).max()) for one in found.values())
    return " ".join(template("paper/captions.jinja").render(given).split())


def role(name: str) -> str:
    """The name of a part, without what says that its answers are sampled."""
    return name.removesuffix("_sampled")


def _exponent(one: xr.Dataset, name: str) -> str:
    mean, low, high = (f"{float(one[f'{name}_{edge}']):.3f}" for edge in ("mean", "low", "high"))
    return f"{mean} (95 % interval {low} to {high})".replace("-", "−").replace("−0.000", "0.000")


def _shorten(text: str) -> str:
    shown = escape(text)
    return shown if len(shown) <= LONG else f"{shown[:LONG]}…"


def _percent(share: Any) -> str:
    return f"{100 * float(share):.3g} %"


def _g(value: Any) -> str:
    return f"{float(value):.3g}".replace("-", "−")
