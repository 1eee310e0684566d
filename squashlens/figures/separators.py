"""What separators do, layer by layer: a trace for every ablation, and from which block it still matters."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens._typing import Ablation
from squashlens.errors import InputError
from squashlens.figures.theme import COLOURS, dress, label, layer_map
from squashlens.given import chosen, is_relative, takes

NAMES = {
    "none": "no separators",
    "separators": "separators",
    "delete_keep_positions": "deleted, positions kept",
    "substitute": "another token in their place",
    "extra_digits": "a digit in their place",
    "random_places": "at random places",
    "mask": "masked from block {k} on",
    "zero_pattern": "weights to them zeroed from block {k} on",
    "zero_value": "values zeroed from block {k} on",
    "zero_resid": "streams wiped from block {k} on",
    "mean_resid": "mean streams of other prompts from block {k} on",
    "resample_resid": "another prompt's streams from block {k} on",
}
DOING = {
    "mask": "masking separators",
    "zero_pattern": "zeroing weights to separators",
    "zero_value": "zeroing separators' values",
    "zero_resid": "wiping separators' streams",
    "mean_resid": "putting mean streams in separators' place",
    "resample_resid": "putting another prompt's streams in separators' place",
}
DASHES = {"mask": "dash", "zero_pattern": "dash", "zero_value": "dot"}
WIDE = ("none", "separators")
ENDS = {"none", "separators", "delete"}  # whose `retained` is 0, 1 and 0 by definition


@takes("squashlens.separator_ablation", "distance: edit layer length")
def layer_trace(ablation: xr.Dataset, *, length: int | None = None, from_block: int | None = None) -> go.Figure:
    """Draw a `separator_ablation` Dataset by layer at one length (the longest if not given), log scale.

    Hooks are drawn as they act from `from_block` on, the first measured if not given.
    """
    at = chosen(ablation, "length", length)
    here = ablation.sel(length=at)
    shown = [str(name) for name in here["edit"].values if name != "delete"]  # which is `none` by another road
    figure = go.Figure([_trace(here["distance"].sel(edit=name), name, NAMES[name]) for name in shown])
    if "distance_from" in here:
        first = chosen(here, "from_block", from_block, last=False)
        for hook in here["hook"].values:
            values = here["distance_from"].sel(hook=hook, from_block=first)
            figure.add_trace(_trace(values, str(hook), NAMES[str(hook)].format(k=first)))
    figure.update_xaxes(title="layer ℓ", dtick=1)
    relative = is_relative(ablation["distance"])
    figure.update_yaxes(title="D ÷ rms(v)" if relative else "D", type="log", exponentformat="power")
    title = f"How far v and v* stay apart at {at} content tokens, by layer"
    return dress(figure, title=title, height=500, top=150)


@takes("squashlens.separator_ablation", "distance: edit layer length")
def from_block_map(ablation: xr.Dataset, *, hook: Ablation = "mask", length: int | None = None) -> go.Figure:
    """From-block × layer: what is left of the separators' effect when a hook acts from that block on.

    1 (orange): the ablation did nothing; 0 (grey): it did what deleting the separators does. The scale stops at −1
    and 2, the hover does not; white: the effect is too small to be divided by.
    """
    if "retained_from" not in ablation or hook not in ablation["hook"].values:
        raise InputError(f"{hook!r} was not measured.", f"Call separator_ablation(…, kinds=[{hook!r}]).")
    at = chosen(ablation, "length", length)
    values = ablation["retained_from"].sel(hook=hook, length=at)
    scale = [[0, "#0072B2"], [1 / 3, "#d9dce1"], [2 / 3, COLOURS["separators"]], [1, "#5c2600"]]
    figure = go.Figure(layer_map(values, "retained", colorscale=scale, zmin=-1, zmax=2, hoverongaps=False))
    figure.update_xaxes(title="layer ℓ", dtick=1)
    figure.update_yaxes(title="hook acts from block", dtick=1)
    return dress(figure, title=f"Effect left after {DOING[hook]}, at {at} content tokens", height=380)


@takes("squashlens.separator_ablation", "distance retained: edit layer length")
def retained_by_kind(ablation: xr.Dataset, *, layer: int | None = None, from_block: int | None = None) -> go.Figure:
    """What is left of the separators' effect by kind of ablation: every length a dot, the median and the middle half.

    At one layer, the last if not given; hooks as they act from `from_block` on, the first measured if not given. Dots
    beyond −0.6 and 1.6 are drawn at the edge; lengths at which the effect is too small to be divided by are left out.
    """
    at = chosen(ablation, "layer", layer)
    here = ablation.sel(layer=at)
    rows = {
        NAMES[str(edit)]: (str(edit), here["retained"].sel(edit=edit).values)
        for edit in here["edit"].values
        if edit not in ENDS
    }
    if "retained_from" in here:
        first = chosen(here, "from_block", from_block, last=False)
        for hook in here["hook"].values:
            values = here["retained_from"].sel(hook=hook, from_block=first).values
            rows[NAMES[str(hook)].format(k=first)] = (str(hook), values)
    if not rows:
        raise InputError("There is no ablation to draw.", "Call separator_ablation with kinds= that name some.")
    figure = go.Figure()
    for height, (name, (kind, values)) in enumerate(rows.items()):
        _spread(figure, height, name, values[np.isfinite(values)], COLOURS[kind])
    for place, dash in ((0, "dot"), (1, "dot")):
        figure.add_vline(x=place, line={"color": COLOURS["null"], "dash": dash, "width": 1})
    figure.update_xaxes(title="retained: 0 as if deleted, 1 as if nothing were done", range=[-0.65, 1.65])
    figure.update_yaxes(
        tickvals=list(range(len(rows))), ticktext=list(rows), range=[len(rows) - 0.4, -0.6], showgrid=False
    )
    title = f"What is left of the separators' effect at layer {at}"
    return dress(figure, title=title, height=BASE + ROW * len(rows)).update_layout(showlegend=False)


BASE, ROW = 140, 34  # pixels


def _spread(figure: go.Figure, height: int, name: str, values: np.ndarray, colour: str) -> None:
    """One row: dots for all values, a bar over their middle half, a mark at the median."""
    if not len(values):
        return
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    shown = np.clip(values, -0.6, 1.6)
    dots = {"color": colour, "size": 5, "opacity": 0.25}
    figure.add_scatter(x=shown, y=np.full(len(shown), height), mode="markers", marker=dots, hoverinfo="skip")
    figure.add_scatter(
        x=[low, high], y=[height] * 2, mode="lines", line={"color": colour, "width": 4}, hoverinfo="skip"
    )
    figure.add_scatter(
        x=[middle], y=[height], mode="markers",
        marker={"color": "white", "size": 11, "line": {"color": colour, "width": 3}},
        hovertemplate=f"{name}<br>median {middle:.3f}, middle half {low:.3f} to {high:.3f}<extra></extra>",
    )  # fmt: skip


@takes(
    "squashlens.prescribe",
    "gain separation: separator every",
    "separation_none best_separator best_every:",
    "random: placement",
)
def prescription(prescribed: xr.Dataset) -> go.Figure:
    """Draw what `prescribe` found: the gain of each separator and period, and the best beside random placement."""
    gain = prescribed["gain"]
    asked = "accuracy" in prescribed
    first, second = str(prescribed["best_separator"].item()), int(prescribed["best_every"])
    figure = make_subplots(
        cols=2,
        column_widths=[0.6, 0.4],
        horizontal_spacing=0.2,
        subplot_titles=[
            "separation ÷ without separators" + (", and accuracy" if asked else ""),
            "the best, and chance",
        ],
    )
    shown = gain.values.astype(np.float64)
    text = [[f"{value:.2f}" for value in row] for row in shown]
    if asked:
        right = prescribed["accuracy"].values
        text = [
            [f"{cell}<br>{100 * r:.0f} %" for cell, r in zip(*rows, strict=True)]
            for rows in zip(text, right, strict=True)
        ]
    rows = [f"“{label(str(name))}”" for name in gain["separator"].values]
    figure.add_heatmap(
        z=np.log(shown), x=[f"every {k}" for k in gain["every"].values], y=rows, text=text, texttemplate="%{text}",
        zmid=0, colorscale=DIVERGING, showscale=False, hoverinfo="text", row=1, col=1,
    )  # fmt: skip
    random = prescribed["random"].values
    figure.add_scatter(
        x=np.zeros(len(random)), y=random, mode="markers", name="at random places", row=1, col=2,
        marker={"color": COLOURS["random_places"], "size": 7, "opacity": 0.5},
    )  # fmt: skip
    marks = {
        f"“{label(first)}” after every {second}": (float(prescribed["separation"].max()), COLOURS["separators"]),
        "no separators": (float(prescribed["separation_none"]), COLOURS["none"]),
    }
    for name, (height, colour) in marks.items():
        line = {"color": colour, "width": 3}
        figure.add_scatter(x=[-0.5, 0.5], y=[height] * 2, mode="lines", name=name, line=line, row=1, col=2)
    relative = is_relative(prescribed["separation"])
    figure.update_yaxes(autorange="reversed", showgrid=False, row=1, col=1)
    figure.update_yaxes(title="median D ÷ rms(v)" if relative else "median D", rangemode="tozero", row=1, col=2)
    figure.update_xaxes(showticklabels=False, range=[-1, 1], row=1, col=2)
    height = 190 + 46 * max(4, len(rows))
    figure = dress(figure, title="Which separator, and how often", height=height, top=118)
    return figure.update_layout(legend={"y": 1 + 26 / (height - 190), "x": 1, "xanchor": "right"})


DIVERGING = [[0, "#0072B2"], [0.5, "#f4f5f7"], [1, "#D55E00"]]


def _trace(values: xr.DataArray, name: str, shown: str) -> go.Scatter:
    data = values.values.astype(np.float64)
    dash = DASHES.get(name, "dashdot" if name in DOING else "solid")
    return go.Scatter(
        x=values["layer"].values,
        y=np.where(data > 0, data, np.nan),
        name=shown,
        mode="lines+markers",
        line={"color": COLOURS[name], "width": 3 if name in WIDE else 1.8, "dash": dash},
        hovertemplate=f"layer %{{x}}<br>{shown}: %{{y:.4g}}<extra></extra>",
    )
