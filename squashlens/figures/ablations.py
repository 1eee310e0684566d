"""The effect of separators: a trace for every ablation, the blocks where ablation matters, and the search for one."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens._typing import Ablation
from squashlens.checks.results import chosen
from squashlens.errors import InputError
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.notes import distance_of
from squashlens.figures.drawing.shapes import LAYERS, layer_map, name_rows, spread
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.themes import COLOURS

# The name of each ablation.
NAMES = {
    "none": "no separators",
    "separators": "separators",
    "delete_keep_positions": "deleted, positions kept",
    "substitute": "replaced by another token",
    "extra_digits": "replaced by a digit",
    "random_places": "at random places",
    "mask": "masked",
    "zero_pattern": "attention weights to them zeroed",
    "zero_values": "values zeroed",
    "zero_residual": "residual streams zeroed",
    "mean_residual": "mean residual streams",
    "resample_residual": "residual streams of another prompt",
}
RETAINED = [[0, "#0072B2"], [1 / 3, "#d9dce1"], [2 / 3, COLOURS["separators"]], [1, "#5c2600"]]
ENDS = {"none", "separators", "delete"}  # `retained` of these is 0, 1 and 0 by definition


@draws("squashlens.separator_ablation", "distance: edit layer length", "distance_from: ? hook from_block layer length")
def layer_trace(ablation: xr.Dataset, *, length: int | None = None, from_block: int | None = None) -> go.Figure:
    """Draw the distance D by layer for every ablation of the separators, as a map with a row for each.

    The prompts without and with separators are on top, then ablations that change the prompt, and those by hooks. White
    cells are zeros.

    Args:
        length: the length to draw, in content tokens; by default the median over lengths.
        from_block: ablations by hooks are drawn as they act from this block on; the first measured by default.
    """
    rows = {str(edit): ablation["distance"].sel(edit=edit) for edit in ablation["edit"].values}
    rows.pop("delete", None)  # the same prompts as "none"
    notes = []
    if "distance_from" in ablation:
        first = chosen(ablation, "from_block", from_block, last=False)
        values = ablation["distance_from"].sel(from_block=first)
        rows |= {str(hook): values.sel(hook=hook) for hook in ablation["hook"].values}
        notes = [f"ablations by hooks act from block {first} on"]
    here = xr.concat([values.drop_vars(values.coords.keys() - {"layer", "length"}) for values in rows.values()], "kind")
    if length is None:
        cells, where = here.median("length"), "median over lengths"
    else:
        cells, where = here.sel(length=chosen(ablation, "length", length)), f"at {length} content tokens"
    cells = cells.where(cells > 0).assign_coords(kind=np.arange(len(rows)))
    figure = go.Figure(layer_map(cells.copy(data=np.log10(cells.values)), f"log₁₀ {distance_of(ablation)}"))
    figure.update_xaxes(LAYERS)
    name_rows(figure, [NAMES[kind] for kind in rows])
    return finish(figure, f"Distance of v and v* by layer, {where}", 24 * (len(rows) + 1), ablation, *notes)


@draws(
    "squashlens.separator_ablation",
    "distance: edit layer length",
    "retained_from: ? hook from_block layer length",
    usual=False,
)
def from_block_map(ablation: xr.Dataset, *, hook: Ablation = "mask", length: int | None = None) -> go.Figure:
    """Draw the retained effect of the separators when a hook acts from a given block on, as a map of block × layer.

    1 (orange) means that the ablation changed nothing; 0 (grey) means that it had the effect of deleting the
    separators. Colours are limited to the range from −1 to 2; the hover text has the value. White means that the effect
    of the separators is too small to divide by.

    Args:
        hook: the ablation to draw.
        length: the length to draw, in content tokens; the longest by default.

    Raises:
        InputError: if this ablation was not measured.
    """
    if "retained_from" not in ablation or hook not in ablation["hook"].values:
        raise InputError(f"hook={hook!r} was not measured.", f"Call separator_ablation(…, kinds=[{hook!r}]).")
    at = chosen(ablation, "length", length)
    values = ablation["retained_from"].sel(hook=hook, length=at)
    figure = go.Figure(layer_map(values, "retained", colorscale=RETAINED, zmin=-1, zmax=2))
    figure.update_xaxes(LAYERS).update_yaxes(title="hook acts from block", dtick=1)
    notes = ("1: nothing changed", "0: as if deleted", "white: too small an effect to divide by")
    title = f"Retained effect of separators, {NAMES[hook]}, at {at} content tokens"
    return finish(figure, title, 240, ablation, *notes)


@draws(
    "squashlens.separator_ablation",
    "distance retained: edit layer length",
    "retained_from: ? hook from_block layer length",
    usual=False,
)
def retained_by_kind(ablation: xr.Dataset, *, layer: int | None = None, from_block: int | None = None) -> go.Figure:
    """Draw the retained effect of the separators for every kind of ablation, at one layer.

    Faint dots are single lengths, rings are medians, and bars span the middle half of the lengths. Dots beyond −0.6 and
    1.6 are drawn at the edge. Lengths where the effect of the separators is too small to divide by are left out.

    Args:
        layer: the layer to draw; the last one by default.
        from_block: ablations by hooks are drawn as they act from this block on; the first measured by default.

    Raises:
        InputError: if no ablation was measured.
    """
    at = chosen(ablation, "layer", layer)
    here = ablation.sel(layer=at)
    rows = {str(edit): here["retained"].sel(edit=edit).values for edit in here["edit"].values if edit not in ENDS}
    notes = ["dots: lengths", "rings: medians", "bars: middle half"]
    if "retained_from" in here:
        first = chosen(here, "from_block", from_block, last=False)
        values = here["retained_from"].sel(from_block=first)
        rows |= {str(hook): values.sel(hook=hook).values for hook in here["hook"].values}
        notes.append(f"ablations by hooks act from block {first} on")
    if not rows:
        raise InputError("There is no ablation to draw.", "Call separator_ablation with at least one kind in kinds=.")
    figure, names = go.Figure(), [NAMES[kind] for kind in rows]
    for row, (kind, values) in enumerate(rows.items()):
        own = values[np.isfinite(values)]
        spread(figure, row, NAMES[kind], own, COLOURS[kind], middle_half=True, ends=(-0.6, 1.6))
    for place in (0, 1):
        figure.add_vline(x=place, line={"color": COLOURS["null"], "dash": "dot", "width": 1})
    figure.update_xaxes(title="retained effect (0: as if deleted; 1: nothing changed)", range=[-0.65, 1.65])
    name_rows(figure, names)
    return finish(figure, f"Retained effect of separators at layer {at}", 30 * (len(rows) + 1), ablation, *notes)
