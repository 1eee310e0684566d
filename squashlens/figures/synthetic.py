"""Random attention stacks: figures 8 and 9."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.shapes import (
    band,
    curve,
    grid,
    interval,
    shade_range,
    tint,
)
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.themes import COLOURS, series
from squashlens.records.sentences import listed

LENGTH = "length n (tokens)"


@draws(
    "squashlens.synthetic.convergence",
    "distance total_variation: seed layer length",
    "exponent_mean variation_exponent_mean: layer",
    "rate:",
)
def synthetic_convergence(found: xr.Dataset | Mapping[str, xr.Dataset]) -> go.Figure:
    """Draw D after the last layer (left) and δ of the first layer's attention rows (right) by length: figure 8.

    Lines are means over seeds and bands span minimum to maximum. The sentence has the exponents of the means with their
    intervals. Dashed lines have the exponent that can be derived for infinite length. Both panels share one logarithmic
    scale, so zeros are missing.
    """
    several: Any = found  # by label
    first, last = (
        listed([*dict.fromkeys(str(int(one["layer"][at])) for one in several.values())])
        for at in (0, -1)
    )
    panels = [f"D after layer {last}", f"δ of the attention rows of layer {first}"]
    figure, _ = grid(panels, 2, shared_yaxes=True)
    says = list[str]()
    for number, (label, one) in enumerate(several.items()):
        style = series(number)
        colour = style["colour"]
        shown = f"{label}: " if label else ""
        top, bottom = one.isel(layer=-1), one.isel(layer=0)
        rate = float(top["rate"])
        limit = (
            f" (by theory n<sup>{_minus(rate, 1)}</sup> in the limit, dashed)"
            if np.isfinite(rate)
            else ""
        )
        says.append(
            f"{shown}D {_power(top, 'exponent')}{limit} and δ {_power(bottom, 'variation_exponent')}"
        )
        name = label or "mean"
        for column, values in ((1, top["distance"]), (2, bottom["total_variation"])):
            x, kept = values["length"].values, values.where(values > 0)
            low, middle, high = (
                getattr(kept, edge)("seed").values for edge in ("min", "mean", "max")
            )
            line = curve(x, middle, name, **style, hover="n = %{x}: %{y:.4g}")
            for trace in (*band(x, low, high, tint(colour), name), line):
                figure.add_trace(trace, row=1, col=column)
        if np.isfinite(
            rate
        ):  # the derived exponent as a line through the middle of the curve
            x, values = (
                top["length"].values.astype(float),
                top["distance"].mean("seed").values,
            )
            law = values[len(x) // 2] * (x / x[len(x) // 2]) ** rate
            figure.add_trace(
                curve(x, law, colour=colour, dash="dash", width=1.2, mode="lines"),
                row=1,
                col=1,
            )
    figure.update_xaxes(type="log", title=LENGTH).update_yaxes(type="log")
    norm = str(next(iter(several.values()))["distance"].attrs["long_name"]).split()[0]
    title = (
        f"Distance of v and v* at the last token of random attention stacks ({norm})"
    )
    return finish(
        figure,
        title,
        320,
        several.values(),
        says=f"At the longer lengths, {'; '.join(says)}.",
    )


@draws(
    "squashlens.synthetic.softmax_total_variation",
    "total_variation: seed length",
    "expected: length",
    "exponent_mean leading_mean rate perturbed:",
)
def synthetic_total_variation(found: xr.Dataset) -> go.Figure:
    """Draw the total variation δ of the softmax of two growing sequences by length: figure 9.

    Dots are means over seeds, with bars from minimum to maximum, and the line is the derived mean. Lengths
    at which all entries are perturbed are shaded. The sentence has two exponents: that of δ, and that of δ ÷ (1 − k/n),
    which is comparable with the derived −1.
    """
    values, colour, lengths = (
        found["total_variation"],
        COLOURS["distance"],
        found["length"].values,
    )
    middle, low, high = (
        getattr(values, edge)("seed").values for edge in ("mean", "min", "max")
    )
    says = f"At the longer lengths, δ {_power(found, 'exponent')}; divided by 1 − k/n, it {_power(found, 'leading')}. "
    says += (
        f"By theory it is n<sup>{_minus(float(found['rate']), 0)}</sup> in the limit."
    )
    hover, bars = "n = %{x}<br>δ: %{y:.4g}", interval(middle, low, high, colour, 4)
    figure = go.Figure(
        curve(
            lengths,
            found["expected"].values,
            "theory",
            colour=COLOURS["path_bound"],
            mode="lines",
        )
    )
    figure.add_trace(
        curve(
            lengths,
            middle,
            "",
            colour=colour,
            mode="markers",
            error_y=bars,
            hover=hover,
        )
    )
    k, first = int(found["perturbed"]), float(lengths[0])
    if first < k:
        shade_range(figure, first, k, f"n ≤ {k}: all entries perturbed")
    figure.update_xaxes(type="log", title=LENGTH).update_yaxes(type="log", title="δ")
    notes = (
        "dots: means over seeds",
        "bars: smallest to largest",
        "line: derived mean",
    )
    return finish(
        figure,
        "Total variation of the softmax of two growing sequences",
        290,
        (),
        *notes,
        says=says,
    )


def _power(found: xr.Dataset, name: str) -> str:
    """The exponent of n that was fitted, with its interval if there is one, as text."""
    mean, low, high = (
        float(found[f"{name}_{edge}"]) for edge in ("mean", "low", "high")
    )
    if np.isnan(low):
        return (
            "has no fitted exponent"
            if np.isnan(mean)
            else f"is fitted by n<sup>{_minus(mean)}</sup>"
        )
    return f"is fitted by n<sup>{_minus(mean)}</sup> [{_minus(low)}, {_minus(high)}]"


def _minus(value: float, digits: int = 3) -> str:
    return f"{round(value, digits) + 0.0:.{digits}f}".replace(
        "-", "−"
    )  # adding 0 turns −0 into 0
