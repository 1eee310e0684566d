"""The effect of separators: what is left of it with every ablation."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.results import chosen
from squashlens.errors import InputError
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.notes import distance_of
from squashlens.figures.drawing.shapes import MARKS, extremes, name_rows, spread
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.themes import COLOURS
from squashlens.records.sentences import plural

SHOWN = [-0.65, 1.65]  # of the effect that is retained
MIXED = 0.1  # share of lengths with the other sign up to which medians over lengths are named
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
ENDS = {
    "none",
    "separators",
    "delete",
}  # `retained` of these is 0, 1 and 0 by definition


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
    rows, notes = (
        {
            str(edit): here["retained"].sel(edit=edit)
            for edit in here["edit"].values
            if edit not in ENDS
        },
        [],
    )
    if "retained_from" in here:
        first = chosen(here, "from_block", from_block, last=False)
        hooks = here["retained_from"].sel(from_block=first)
        rows |= {str(hook): hooks.sel(hook=hook) for hook in here["hook"].values}
        notes = [f"ablations by hooks act from block {first} on"]
    if not rows:
        raise InputError(
            "There is no ablation to draw.",
            "Call separator_ablation with at least one kind in kinds=.",
        )
    figure, names = go.Figure(), [NAMES[kind] for kind in rows]
    for row, (kind, values) in enumerate(rows.items()):
        own = values.values[np.isfinite(values)]
        spread(figure, row, NAMES[kind], own, COLOURS["path_bound"])
    beyond = sum(
        int(((values < SHOWN[0]) | (values > SHOWN[1])).sum())
        for values in rows.values()
    )
    notes += [f"beyond the axis: {plural(beyond, 'dot')}"] * bool(beyond)
    for place in (0, 1):
        figure.add_vline(
            x=place, line={"color": COLOURS["null"], "dash": "dot", "width": 1}
        )
    figure.update_xaxes(
        title="retained effect (0: as if deleted; 1: nothing changed)", range=SHOWN
    )
    name_rows(figure, names)
    ends = here.reindex(edit=["none", "separators"])
    effect = ends["distance"].diff("edit").where(ends["retained"].notnull())[0]
    raised, lowered = int((effect > 0).sum()), int((effect < 0).sum())
    says = f"The separators raise D at {raised} of {plural(effect.size, 'length')} and lower it at {lowered}."
    middles = xr.DataArray(
        [float(values.median()) for values in rows.values()], {"ablation": names}
    )
    if (
        min(raised, lowered) <= MIXED * effect.size
    ):  # an effect of two signs has no part that remains
        says = (
            f"{says} {extremes(middles, 'median of the effect that remains')}".rstrip()
        )
    says = (
        says if ends["distance"].notnull().all() else ""
    )  # a selection may leave out one of the two
    title = f"How much of the separators' effect remains, layer {at}"
    return finish(
        figure,
        title,
        30 * (len(rows) + 1),
        ablation,
        *MARKS,
        distance_of(ablation),
        *notes,
        says=says,
    )
