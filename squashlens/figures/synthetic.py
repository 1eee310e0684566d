"""Random attention stacks: figures 8 and 9."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.shapes import line, over_seeds, shade_range
from squashlens.figures.drawing.style import finish, grid
from squashlens.figures.drawing.themes import COLOURS, series

LENGTH = "length n (tokens)"


@draws(
    "squashlens.synthetic.convergence",
    "distance total_variation: seed layer length",
    "exponent_mean variation_exponent_mean: layer",
    "rate:",
)
def synthetic_convergence(
    found: xr.Dataset | Mapping[str, xr.Dataset],
) -> go.Figure:
    """Draw D after the last layer (left) and δ of the first layer's attention rows (right) by length: figure 8.

    Lines are means over seeds and bands span minimum to maximum. Names of lines have the exponents that were fitted
    at the longer lengths, with their intervals. Dashed lines have the exponent that can be derived for infinite length.
    Both panels share one logarithmic scale, so zeros are missing.
    """
    several: Any = found  # by label
    ends = {
        at: {str(int(one["layer"][at])) for one in several.values()} for at in (0, -1)
    }
    first, last = (", ".join(sorted(ends[at])) for at in (0, -1))
    titles = [f"D after layer {last}", f"δ of the attention rows of layer {first}"]
    figure, places = grid(titles, 2, [280.0, 280.0], shared_yaxes=True)
    for number, (label, one) in enumerate(several.items()):
        top, bottom = one.isel(layer=-1), one.isel(layer=0)
        powers = (_power(top, "exponent"), _power(bottom, "variation_exponent"))
        name = f"{label or 'mean'}: D ∝ n^{powers[0]}, δ ∝ n^{powers[1]}"
        panels = (top["distance"], bottom["total_variation"])
        for place, values in zip(places, panels, strict=True):
            for trace in over_seeds(values, "mean", name, **series(number)):
                figure.add_trace(trace, **place)
        if np.isfinite(
            top["rate"]
        ):  # the derived exponent, through the middle of the curve
            middle = top["distance"].mean("seed")
            far = middle["length"] / middle["length"][len(middle) // 2]
            law = middle[len(middle) // 2] * far ** float(top["rate"])
            dashed = {"dash": "dash", "width": 1.5, "mode": "lines"}
            figure.add_trace(line(law, **series(number), **dashed), **places[0])
    figure.update_xaxes(type="log", title=LENGTH).update_yaxes(type="log")
    norm = str(next(iter(several.values()))["distance"].attrs["long_name"]).split()[0]
    title = f"Distance of v and v* in random attention stacks ({norm})"
    notes = ["95 % intervals of exponents", "dashed: derived exponent"]
    return finish(figure, title, several.values(), *notes, "bands: smallest to largest")


@draws(
    "squashlens.synthetic.softmax_total_variation",
    "total_variation: seed length",
    "expected: length",
    "exponent_mean leading_mean rate perturbed:",
)
def synthetic_total_variation(found: xr.Dataset) -> go.Figure:
    """Draw the total variation δ of the softmax of two growing sequences by length: figure 9.

    Dots are means over seeds, with bars from minimum to maximum, and the line is the derived mean. Lengths
    at which all entries are perturbed are shaded. The line below the title has two exponents at the longer lengths:
    that of δ, and that of δ ÷ (1 − k/n), which is comparable with the derived −1.
    """
    values = found["total_variation"]
    ends = {"low": values.min("seed"), "high": values.max("seed")}
    means = values.mean("seed").assign_coords(ends)
    derived = {"colour": COLOURS["path_bound"], "mode": "lines"}
    dots = {"colour": COLOURS["distance"], "mode": "markers"}
    figure = go.Figure(line(found["expected"], "derived mean", **derived))
    figure.add_trace(line(means, "mean over seeds, smallest to largest", **dots))
    perturbed, first = int(found["perturbed"]), float(values["length"][0])
    if first < perturbed:
        shade_range(figure, first, perturbed, f"n ≤ {perturbed}: all entries perturbed")
    figure.update_xaxes(type="log", title=LENGTH).update_yaxes(type="log", title="δ")
    rate = f"{float(found['rate']):.0f}".replace("-", "−")
    notes = [f"δ ∝ n^{_power(found, 'exponent')}, derived n^{rate}"]
    notes += [f"δ ÷ (1 − k/n) ∝ n^{_power(found, 'leading')}"]
    title = "Total variation of the softmax of two growing sequences"
    return finish(figure, title, (), *notes, height=280)


def _power(found: xr.Dataset, name: str) -> str:
    """The exponent of n that was fitted, with its interval if there is one, as text."""
    ends = [float(found[f"{name}_{edge}"]) for edge in ("mean", "low", "high")]
    mean, low, high = (f"{end:z.3f}".replace("-", "−") for end in ends)
    if "nan" in (mean, low):
        return mean.replace("nan", "(none fitted)")
    return f"{mean} [{low}, {high}]"
