"""What an atlas measures of each model, which numbers it keeps of the results, and how all models are drawn."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.errors import InputError

PROMPT = "How many ones are in the following sequence? 110111011101 ="
TEXTS = [
    "The old man walked slowly down to the harbour, where his daughter had been waiting in the rain.",
    "Water boils at a lower temperature on a mountain, because the air presses less on it there.",
    "If you add two odd numbers the result is always even, but the product of two odd numbers is odd.",
    "The engine would not start, so the driver called her friend, who came with a cable and a battery.",
]
ONES, N = {"token": "1", "n": 64}, 64
SEQUENCES = {
    "ones": {"repeated": ONES},
    "ones with commas": {"repeated": {**ONES, "separator": {"separator": ",", "every": 3}}},
    "random digits": {"bernoulli": {"n": N, "seed": 0}},
}
ESTIMATES = ["paper", "rollout", "value", "gradient", "all-ones", "knockout KL"]
EFFECT = "knockout KL"
BATTERY: list[dict[str, Any]] = [
    {"measurement": "collapse", "arguments": {"norm": {"scale": "relative"}}, "each": {"sequence": SEQUENCES}},
    {"measurement": "collapse", "name": "window", "arguments": {
        "norm": {"scale": "relative"}, "sequence": SEQUENCES["ones"], "hooks": [{"sliding_window": {"window": 8}}]}},
    {"measurement": "collapse", "name": "rounded", "arguments": {"sequence": SEQUENCES["ones"]}, "each": {
        "round_to": ["bfloat16", "float16"]}},
    {"measurement": "profile", "arguments": {"prompt": PROMPT, "method": "none", "extras": {"n_random_models": 0}}},
    {"measurement": "audit", "arguments": {"estimates": ESTIMATES, "seed": 0}, "each": {"prompt": TEXTS}},
]  # fmt: skip
WEIGHTS = {"trained": None, "untrained": 0}
COLUMNS = ("model", "weights", "quantity", "condition", "x", "value", "low", "high", "units")
PANELS = [  # title, quantity, condition if one is drawn along x, title of x, and whether y is logarithmic
    ("D of y by length, ones", "distance of y", "ones", "length", True),
    (f"D of y at {N} digits", "distance of y", "", "", True),
    ("influence by distance", "influence by distance", "path bound", "distance in tokens", True),
    ("attention to the first token", "attention to the first token", "", "", False),
    ("agreement of estimates with knockout", "agreement with knockout", "", "", False),
    (f"coordinates of y that rounding makes equal at {N} ones", "equal coordinates of y", "", "", False),
]


def numbers(grid: str, label: str, result: Any) -> Iterator[dict[str, Any]]:
    """The rows that the data set has of one result."""
    if grid in ("collapse", "window"):
        condition = label or "ones, window of 8"
        yield from _rows("distance at the last layer", condition, result["distance"].isel(layer=-1))
        yield from _rows("distance of y", condition, result["distance_y"])
        yield from _rows("total variation of the next token", condition, result["total_variation"])
    elif grid == "rounded":
        yield from _rows("equal coordinates of y", label, result["bit_identical_y"])
    elif grid == "profile":
        whole = result.sel(quantity="path_bound").isel(layer=0)
        influence = whole["influence"].where(whole["pairs"] > 0, drop=True)
        relative = (influence / influence.sel(distance=1)).assign_attrs(units="1")
        yield from _rows("influence by distance", "path bound", relative)
        ends = [whole[f"exponent{end}"].where(whole["exponent_at_end"] == 0) for end in ("", "_low", "_high")]
        yield from _rows("exponent of influence by distance", "path bound", *ends)
        for name, of in {"largest": "max", "mean": "mean"}.items():
            yield from _rows("attention to the first token", f"{name} of heads", getattr(result["sink_rate"], of)())
    elif grid == "audit":
        found = result["agreement"].sel(reference=EFFECT, way="partial")
        yield from _rows("agreement with knockout", "estimate", found.drop_sel(estimate=["null", EFFECT]))


def _rows(quantity: str, condition: str, values: xr.DataArray, *ends: xr.DataArray) -> Iterator[dict[str, Any]]:
    """The numbers of an array of at most one dimension, whose labels are `x`, or the condition if they are texts."""
    (dim,) = values.dims or (None,)
    labels = [np.nan] if dim is None else values[dim].values.tolist()
    each = [np.atleast_1d(one.values).astype(float) for one in (values, *ends)]
    for place, label in enumerate(labels):
        named = isinstance(label, str)
        low, high = (each[1][place], each[2][place]) if ends else (np.nan, np.nan)
        yield {"quantity": quantity, "condition": label if named else condition, "x": np.nan if named else float(label),
               "value": each[0][place], "low": low, "high": high, "units": values.attrs.get("units", "1")}  # fmt: skip


def ends(table: Any) -> Any:
    """A row for each curve, with its value at the largest x, and for what has no x, with the mean over its cells."""
    by = ["quantity", "condition", "weights", "model"]
    last = table.groupby(by)["x"].transform("max")
    return table[table["x"].isna() | (table["x"] == last)].groupby(by, sort=False)["value"].mean().reset_index()


def draw(table: Any, model: str | None) -> go.Figure:
    """A panel for each quantity, with all models."""
    from plotly.subplots import make_subplots

    from squashlens.figures.drawing.style import finish

    names = list(table["model"].unique())
    if not names or (model is not None and model not in names):
        raise InputError(f"The atlas has no {'models' if not names else repr(model)}.", "Run it, or pull another.")
    colours = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
    look = {name: colours[place % 6] if model is None else "#B0B0B0" for place, name in enumerate(names)}
    look |= {model: colours[0]} if model else {}
    order = sorted(names, key=lambda name: name == model)  # the one in colour last, above the others
    figure = make_subplots(rows=len(PANELS) // 2, cols=2, subplot_titles=[title for title, *_ in PANELS])
    for place, (_, quantity, condition, along, logarithmic) in enumerate(PANELS):
        at: Any = {"row": place // 2 + 1, "col": place % 2 + 1}
        for name, weights in itertools.product(order, WEIGHTS):
            part = table[(table["quantity"] == quantity) & (table["model"] == name) & (table["weights"] == weights)]
            part = part[part["condition"] == condition].sort_values("x") if condition else ends(part)
            trained = weights == "trained"
            figure.add_scatter(
                x=part["x" if condition else "condition"], y=part["value"], mode="lines" if condition else "markers",
                line={"color": look[name], "dash": "solid" if trained else "dot"}, name=f"{name}, {weights}",
                marker={"color": look[name], "symbol": "circle" if trained else "circle-open"},
                legendgroup=f"{name} {weights}", showlegend=not place, **at,
            )  # fmt: skip
        figure.update_yaxes(type="log" if logarithmic else "linear", **at)
        figure.update_xaxes(title=along, **at)
    return finish(figure, title=f"Atlas of {len(names)} models", height=280 * len(PANELS) // 2)
