"""The effect of separators: what is left of it with every ablation."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.results import chosen
from squashlens.errors import InputError
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.notes import distance_of
from squashlens.figures.drawing.shapes import MARKS, name_rows, spread
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.themes import COLOURS, GUIDE
from squashlens.records.sentences import plural

SHOWN = (-0.65, 1.65)  # of the effect that is retained
# The name of each ablation. What is retained of none, separators and delete is 0, 1 and 0 by definition.
NAMES = {
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


@draws(
    "squashlens.separator_ablation",
    "distance retained: edit layer length",
    "retained_from: ? hook from_block layer length",
)
def retained_by_kind(
    ablation: xr.Dataset, *, layer: int | None = None, from_block: int | None = None
) -> go.Figure:
    """Draw the retained effect of the separators for every kind of ablation, at one layer.

    Faint dots are single lengths, rings are medians, and bars span the middle half of the lengths. Lengths where the
    effect of the separators is too small to divide by are left out.

    Args:
        layer: the layer to draw; the last one by default.
        from_block: ablations by hooks are drawn as they act from this block on; the first measured by default.

    Raises:
        InputError: if no ablation was measured.
    """
    at = chosen(ablation, "layer", layer)
    here = ablation.sel(layer=at)
    rows = {str(edit): here["retained"].sel(edit=edit) for edit in here["edit"].values}
    notes = [distance_of(ablation), MARKS]
    if "retained_from" in here:
        first = chosen(here, "from_block", from_block, last=False)
        hooks = here["retained_from"].sel(from_block=first)
        rows |= {str(hook): hooks.sel(hook=hook) for hook in here["hook"].values}
        notes.append(f"hooks act from block {first} on")
    rows = {NAMES[kind]: values for kind, values in rows.items() if kind in NAMES}
    if not rows:
        raise InputError(
            "There is no ablation to draw.",
            "Call separator_ablation with at least one kind in kinds=.",
        )
    figure = go.Figure()
    for row, (name, values) in enumerate(rows.items()):
        spread(figure, row, name, values.values, COLOURS["path_bound"])
    everything = np.concatenate([values.values for values in rows.values()])
    beyond = int(((everything < SHOWN[0]) | (everything > SHOWN[1])).sum())
    notes += [f"beyond the axis: {plural(beyond, 'dot')}"] if beyond else []
    for place in (0, 1):
        figure.add_vline(x=place, line={"color": GUIDE, "dash": "dot", "width": 1.5})
    axis = "retained effect (0: as if deleted; 1: nothing changed)"
    figure.update_xaxes(title=axis, range=SHOWN)
    name_rows(figure, rows)
    title = f"How much of the separators' effect remains, layer {at}"
    return finish(figure, title, ablation, *notes, height=30 * (len(rows) + 1))
