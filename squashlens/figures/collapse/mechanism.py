"""The mechanism of collapse: the quantities in the proof of Theorem B.3, measured."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from squashlens.checks.results import chosen
from squashlens.figures.drawing.inputs.facts import norm_named, notes_of
from squashlens.figures.drawing.inputs.given import draws
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.themes import COLOURS, evenly

PANELS = {
    "attention_tv_mean": "δ: total variation of the last row",
    "self_weight_mean": "α*: weight of the new token on itself",
}

HATCH = {"residual": "", "attention": "", "mlp": "/"}


@draws(
    "squashlens.mechanism",
    "attention_tv_mean self_weight_mean: block length",
    "observed bound: length",
    "share: part block length",
)
def mechanism(mechanism: xr.Dataset, *, length: int | None = None) -> go.Figure:
    """Draw the quantities in the proof of Theorem B.3: δ and α* by block, the bound of block 0, shares of D by block.

    Args:
        mechanism: a result of `squashlens.mechanism`.
        length: the length for the shares, in content tokens; the longest by default.

    Returns:
        The figure.
    """
    at = chosen(mechanism, "length", length)
    titles = [*PANELS.values(), "block 0: observed and bound", f"shares of D after each block, length {at}"]
    figure = make_subplots(rows=2, cols=2, subplot_titles=titles)
    lengths, blocks = mechanism["length"].values, mechanism["block"].values
    colours = list(map(str, sample_colorscale("Viridis", list(np.linspace(0, 0.9, len(blocks))))))
    for column, name in enumerate(PANELS, start=1):
        for place, (block, colour) in enumerate(zip(blocks, colours, strict=True)):
            shown = column == 1 and place in evenly(len(blocks))
            figure.add_trace(
                _line(mechanism[name].sel(block=block), f"block {block}", colour, shown), row=1, col=column
            )
        figure.update_yaxes(type="log", row=1, col=column)
    for name, colour in (("observed", COLOURS["distance"]), ("bound", COLOURS["contrast"])):
        trace = _line(mechanism[name], f"{name} ‖o − o*‖₁", colour, True)
        figure.add_trace(trace.update(line_dash="dash" if name == "bound" else "solid"), row=2, col=1)
    figure.update_yaxes(type="log", row=2, col=1)
    for part in mechanism["part"].values:
        shares = mechanism["share"].sel(part=part, length=at).values
        figure.add_trace(
            go.Bar(x=blocks, y=shares, name=str(part),
                   marker={"color": COLOURS[str(part)], "pattern_shape": HATCH[str(part)]},
                   hovertemplate=f"block %{{x}}<br>{part}: %{{y:.3f}}<extra></extra>"),
            row=2, col=2,
        )  # fmt: skip
    for row, column in ((1, 1), (1, 2), (2, 1)):
        figure.update_xaxes(
            type="log", title="length (content tokens)", row=row, col=column,
            range=[np.log10(lengths[0]), np.log10(lengths[-1])],
        )  # fmt: skip
    figure.update_xaxes(title="block", dtick=1, row=2, col=2)
    figure.update_layout(barmode="relative")
    notes = notes_of(mechanism, *norm_named(mechanism))
    return finish(figure, title="The quantities in the proof of Theorem B.3", height=440, notes=notes)


def _line(values: xr.DataArray, name: str, colour: str, legend: bool) -> go.Scatter:
    data = values.values.astype(np.float64)
    return go.Scatter(
        x=values["length"].values,
        y=np.where(data > 0, data, np.nan),
        name=name,
        legendgroup=name,
        showlegend=legend,
        mode="lines",
        line={"color": colour, "width": 1.8},
        hovertemplate=f"length %{{x}}<br>{name}: %{{y:.4g}}<extra></extra>",
    )
