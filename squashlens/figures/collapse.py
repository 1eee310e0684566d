"""The distance D of v and v*: by length and layer, its mechanism, and what remains of it without separators."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.results import relative_distance
from squashlens.errors import InputError
from squashlens.figures.answers import cannot_be_judged
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.notes import distance_of
from squashlens.figures.drawing.shapes import (
    MARKS,
    add_lines,
    add_map,
    banded,
    line,
    log_axis,
    name_rows,
    over_seeds,
    shade_range,
    spread,
    steps,
)
from squashlens.figures.drawing.style import finish, grid
from squashlens.figures.drawing.text import escape
from squashlens.figures.drawing.themes import COLOURS, GUIDE, series
from squashlens.figures.paths import DRAWN, spaced
from squashlens.records.labels import AS_IT_IS
from squashlens.records.sentences import number, plural

LENGTH = "length (content tokens)"
# The curves of D, in the order in which they are drawn.
NAMES = {
    "unrelated": "unrelated: other content",
    "contrast": "contrast: another last token",
    "noise_floor": "noise floor",
    "distance": "v and v*",
}
HEADS = "attention heads: mean, smallest to largest"
EDGE = "a token leaves a window for v* alone"
MANY = 64  # lengths of which neighbours are drawn together
BINS = 60  # groups of neighbours
ANSWERED = "share answered correctly"  # the title of a panel
PARTS = {
    "residual": "from residual stream before it",
    "attention": "from attention",
    "mlp": "from MLP",
}
STEPS = {
    "attention_tv_mean": "δ: total variation of the last token's attention",
    "self_weight_mean": "α*: attention of the new token to itself",
}
SHOWN = (-0.65, 1.65)  # range of the axis of the retained effect
# The name of each ablation. What is retained of none, separators and delete is 0, 1 and 0 by definition.
ABLATIONS = {
    "delete_keep_positions": "deleted, positions kept",
    "substitute": "replaced by another token",
    "extra_digits": "replaced by a digit",
    "random_places": "at random places",
    "mask": "masked",
    "zero_attention": "attention weights to them zeroed",
    "zero_values": "values zeroed",
    "zero_residual": "residual streams zeroed",
    "mean_residual": "mean residual streams",
    "resample_residual": "residual streams of another prompt",
}
TRUE_PAIR: dict[str, Any] = {"colour": COLOURS["distance"], "width": 4.0}
TWO_TEXTS: dict[str, Any] = {"colour": COLOURS["contrast"], "width": 1.6, "dash": "dot"}


@draws("squashlens.collapse", "distance: layer length", "noise_floor unrelated: ? ...")
def collapse_curve(collapse: xr.Dataset, *, trained: int | None = None) -> go.Figure:
    """Draw the distance D of v and v* by length at the last layer, with logarithmic scales (figure 5).

    The figure includes what the result contains of: the contrast pair, unrelated sequences, the noise floor, and the
    attention heads. A noise floor below all distances is named under the title. An unrelated
    sequence is left out at lengths where its distance is within the noise floor at all layers: a short one may happen
    to have the same content. Crosses: a token has left the sliding window of a block for v* and not for v, so that D
    may jump. Of more than 64 lengths, curves are medians of neighbours, with a band from the smallest to the largest D.

    Args:
        collapse: a result of `squashlens.collapse`, or several by label.
        trained: the longest length of the training data, in content tokens; lengths up to it are shaded.

    Returns:
        The figure.
    """
    layer = int(collapse["layer"][-1])
    at_last = _with_other_content(collapse).sel(layer=layer)
    lengths = at_last["length"].values
    drawn = [name for name in NAMES if name in at_last]
    notes = []
    if "noise_floor" in at_last:
        distances = at_last[drawn].drop_vars("noise_floor")
        # The axis, which has no zeros, begins at the smallest distance.
        least = distances.where(distances > 0).min().to_array().min()
        highest = at_last["noise_floor"].max()
        if highest < least:
            drawn.remove("noise_floor")
            notes.append(f"noise floor, at most {number(highest)}, below the axis")
    figure = go.Figure(_heads(collapse, layer))
    for name in drawn:
        rows = at_last[name]
        if "draw" not in rows.dims:  # only unrelated sequences have several
            rows = rows.expand_dims("draw")
        for row in rows.transpose("draw", ...):
            figure.add_traces(_by_length(row, name))
    if "window_edge" in at_last.coords and (at_last["window_edge"] >= 0).any():
        edges = at_last["distance"][at_last["window_edge"].values >= 0]
        marks = {"mode": "markers", "symbol": "x-thin-open", "size": 9}
        figure.add_trace(line(edges, EDGE, colour=COLOURS["distance"], **marks))
    if trained is not None:
        shade_range(figure, max(1, lengths[0]), trained, "trained lengths")
    figure.update_xaxes(log_axis(lengths, room=0), title=LENGTH)
    figure.update_yaxes(type="log", title=distance_of(collapse))
    if len(lengths) > MANY:
        notes.append(
            "lines: medians of neighbouring lengths, band: smallest to largest D"
        )
    title = f"Representational collapse, layer {layer}"
    return finish(figure, title, collapse, *notes)


def _heads(collapse: xr.Dataset, layer: int) -> list[go.Scatter]:
    """The mean distance over attention heads by length, with its band; nothing if it was not measured or selected.

    A result has it by block, for outputs of heads, or by layer, for slices of the residual stream.
    """
    if "head_mean" not in collapse:
        return []
    heads = collapse[["head_mean", "head_min", "head_max"]]
    labels = {"block": max(layer - 1, 0), "layer": layer}  # block ℓ − 1 writes layer ℓ
    for dim in ("block", "layer"):
        if dim in heads.dims:
            heads = heads.sel({dim: heads[dim] == labels[dim]})
            if not heads.sizes[dim]:
                return []
            heads = heads.isel({dim: 0})
    if heads["head_mean"].ndim != 1:  # anything but a curve over lengths
        return []
    return _by_length(heads["head_mean"], "heads", heads["head_min"], heads["head_max"])


def _with_other_content(collapse: xr.Dataset) -> xr.Dataset:
    """The result without the distances of unrelated sequences that have the same content: NaN in their place.

    The content is the same if the distance is within the noise floor at every layer.
    """
    if "unrelated" not in collapse or "noise_floor" not in collapse:
        return collapse
    floor = collapse["noise_floor"]
    highest = floor.max([dim for dim in floor.dims if dim != "layer"])
    is_same = (collapse["unrelated"] <= highest).all("layer")
    return collapse.assign(unrelated=collapse["unrelated"].where(~is_same))


def _by_length(
    middle: xr.DataArray,
    kind: str,
    low: xr.DataArray | None = None,
    high: xr.DataArray | None = None,
) -> list[go.Scatter]:
    """The traces of a curve over (length), in a band from `low` to `high` if they are given.

    `kind` is a key of `NAMES`, or "heads". Of many lengths, medians of neighbours are drawn, with a band for D. The
    noise floor, which is measured at some lengths only, has marks.
    """
    if middle.size > MANY:
        # Neighbours may alternate, as with separators after every third token: all of them would be one filled block.
        if kind == "distance":  # its band is that of the neighbours
            low = middle
            high = middle
        if low is not None and high is not None:
            low = _neighbours(low).min()
            high = _neighbours(high).max()
        middle = _neighbours(middle).median()
    name = NAMES.get(kind, HEADS)
    style: Any = {"colour": COLOURS[kind], "width": 2.5 if kind == "distance" else 1.5}
    if kind == "noise_floor":
        return [line(middle, name, log=True, connectgaps=True, **style)]
    if middle.size > 1:
        style["mode"] = "lines"
    if low is None or high is None:
        return [line(middle, name, log=True, **style)]
    return banded(middle, low, high, name, **style)


def _neighbours(values: xr.DataArray) -> Any:
    """Groups of values over (length), an xarray GroupBy: those whose lengths are neighbours on a logarithmic scale.

    There are at most 61 groups, each labelled by the median of its lengths.
    """
    (dim,) = values.dims
    lengths = values[dim].astype(float)
    log = np.log(lengths / lengths[0])
    group = (log / log[-1] * BINS).round()  # number of the group of each length
    median = lengths.groupby(group.rename("group")).median()
    median_of_length = median.sel(group=group).drop_vars("group")
    return values.groupby(median_of_length.rename("place"))


@draws("squashlens.collapse", "distance rms: layer length", usual=False)
def collapse_heatmap(collapse: xr.Dataset) -> go.Figure:
    """Draw the relative distance of v and v* as a map of layer × length, with a logarithmic scale of colours.

    Cells where v and v* are identical (as at layer 0 without position embeddings) remain white.

    Args:
        collapse: a result of `squashlens.collapse`, or several by label.

    Returns:
        The figure.
    """
    values = relative_distance(collapse)
    figure = go.Figure()
    add_map(figure, values, "D ÷ rms(v)", log=True)
    figure.update_xaxes(title=LENGTH).update_yaxes(steps(values["layer"], "layer ℓ"))
    blank = "blank: identical" if (values == 0).any() else ""
    return finish(figure, "Distance of v and v* by layer and length", collapse, blank)


@draws(
    "squashlens.collapse_mechanism",
    "attention_tv_mean self_weight_mean: block length",
    "observed bound: length",
    "share: part block length",
)
def collapse_mechanism(mechanism: xr.Dataset) -> go.Figure:
    """Draw the quantities in the proof of Theorem B.3: δ and α*, for four blocks; the bound of block 0; shares of D at
    the longest length.

    Args:
        mechanism: a result of `squashlens.collapse_mechanism`, or several by label.

    Returns:
        The figure.
    """
    length = int(mechanism["length"][-1])
    titles = [
        *STEPS.values(),
        "block 0: ‖o − o*‖₁",
        f"share of D after each block, length {length}",
    ]
    figure, places = grid(titles, 2)
    blocks = spaced(mechanism["self_weight_mean"].isel(length=-1).values)
    names = [f"block {block}" for block in mechanism["block"].values[blocks]]
    for name, place in zip(STEPS, places, strict=False):
        drawn = mechanism[name].transpose("block", "length")[blocks]
        by_block = dict(zip(names, drawn, strict=True))
        add_lines(figure, by_block, place, size=5, width=2.0, log=True)
    # Other looks than those of the blocks, with which they share the legend.
    for order, name in enumerate(("observed", "bound"), start=DRAWN):
        curve = line(mechanism[name], name, log=True, **series(order))
        figure.add_trace(curve, **places[2])
    for part in mechanism["part"].values.astype(str):
        share = mechanism["share"].sel(part=part, length=length)
        look = {"colour": COLOURS[part], "dash": "dash", "size": 5}
        figure.add_trace(line(share, PARTS[part], **look), **places[3])
    for place in places[:3]:
        figure.update_xaxes(log_axis(mechanism["length"], room=0), **place)
        figure.update_xaxes(title=LENGTH, **place)
        figure.update_yaxes(type="log", **place)
    figure.update_xaxes(steps(mechanism["block"], "block"), **places[3])
    title = "The quantities in the proof of Theorem B.3"
    which_blocks = ""
    if mechanism.sizes["block"] > DRAWN:
        which_blocks = "blocks: largest, smallest and two other α*"
    return finish(figure, title, mechanism, which_blocks)


@draws(
    "squashlens.separator_ablation",
    "distance retained: edit layer length",
    "retained_from: ? hook from_block layer length",
)
def retained_by_kind(ablation: xr.Dataset) -> go.Figure:
    """Draw the retained effect of the separators for every kind of ablation, at the last layer.

    Faint dots are single lengths, rings are medians, and bars span the middle half of the lengths. Lengths where the
    effect of the separators is too small to divide by are left out. Ablations by hooks are drawn as they act from the
    first measured block on.

    Args:
        ablation: a result of `squashlens.separator_ablation`, or several by label.

    Returns:
        The figure.

    Raises:
        InputError: if no ablation was measured.
    """
    layer = int(ablation["layer"][-1])
    # Edits of the prompt, then hooks, along one dimension; their other coordinates differ, and are dropped.
    edits = ablation["retained"].isel(layer=-1).reset_coords(drop=True)
    kinds = [edits.rename(edit="kind")]
    notes = [distance_of(ablation), MARKS]
    if "retained_from" in ablation:
        hooks = ablation["retained_from"].isel(layer=-1, from_block=0)
        kinds.append(hooks.reset_coords(drop=True).rename(hook="kind"))
        notes.append(f"hooks act from block {int(hooks['from_block'])} on")
    retained = xr.concat(kinds, "kind")
    retained = retained.sel(kind=retained["kind"].isin(list(ABLATIONS)))
    if not retained.sizes["kind"]:
        raise InputError(
            "There is no ablation to draw.",
            "Call separator_ablation with at least one kind in kinds=.",
        )
    figure = go.Figure()
    names = [ABLATIONS[kind] for kind in retained["kind"].values.tolist()]
    for row, name in enumerate(names):
        spread(figure, row, name, retained[row].values, COLOURS["path_bound"])
    beyond = int(((retained < SHOWN[0]) | (retained > SHOWN[1])).sum())
    if beyond:
        notes.append(f"beyond the axis: {plural(beyond, 'dot')}")
    for effect in (0, 1):
        figure.add_vline(x=effect, line={"color": GUIDE, "dash": "dot", "width": 1.5})
    axis = "retained effect (0: as if deleted; 1: nothing changed)"
    figure.update_xaxes(title=axis, range=SHOWN)
    name_rows(figure, names)
    title = f"How much of the separators' effect remains, layer {layer}"
    return finish(figure, title, ablation, *notes, height=30 * (len(names) + 1))


@draws(
    "squashlens.repeat_tokenization",
    "naive distance: form layer repeats",
    "token_id piece: form repeats place",
    "pair grows text: form repeats",
)
def repeat_tokenization(measured: xr.Dataset) -> go.Figure:
    """Draw the distance of two texts and of the true pair by number of repeats, one panel for each way of joining.

    The layer is the last one, and the scale logarithmic. Where the two texts are the pair of the theorem, the lines
    coincide; the title of a panel says at how many numbers of repeats.

    Args:
        measured: a result of `squashlens.repeat_tokenization`, or several by label.

    Returns:
        The figure.
    """
    layer = int(measured["layer"][-1])
    # The text of the third number of repeats, or of the last, is the example in the title of a panel.
    example = min(2, measured.sizes["repeats"] - 1)
    titles = []
    for form in measured["form"].values:
        joined = measured.sel(form=form)
        text = joined["text"].values[example]
        pairs = f"{int(joined['pair'].sum())} of {joined.sizes['repeats']}"
        titles.append(f"{form}: “{text} …”, {pairs} are the pair")
    heights = [170.0] * len(titles)
    figure, places = grid(titles, min(2, len(titles)), heights, shared_yaxes="all")
    for form, place in zip(measured["form"].values, places, strict=True):
        joined = measured.sel(form=form).isel(layer=-1)
        true = line(joined["distance"], "true pair", log=True, **TRUE_PAIR)
        texts = line(joined["naive"], "two texts", log=True, **TWO_TEXTS)
        figure.add_trace(true, **place).add_trace(texts, **place)
    figure.update_yaxes(type="log", title=distance_of(measured))
    figure.update_xaxes(steps(measured["repeats"], "repeats"))
    title = (
        f"Distance of two texts, one repeat apart, and of the true pair: layer {layer}"
    )
    return finish(figure, title, measured)


@draws(
    "squashlens.compare_interventions",
    "change: change",
    "distance: change layer ...",
    "bound: change content",
)
def changes(compared: xr.Dataset) -> go.Figure:
    """Draw the effect of several interventions, one row for each: D, the answers, and the path bound.

    Faint dots are single lengths, rings are medians over lengths, and bars span their middle half. The ring of
    answers is the share that is right over all lengths. The panel of the path bound shows the share of the first
    token. The row "as it is" is the model without a change.

    Args:
        compared: a result of `squashlens.compare_interventions`, or several by label.

    Returns:
        The figure.
    """
    names = compared["change"].values.astype(str).tolist()
    distance = compared["distance"].isel(layer=-1)
    share = compared["bound"].isel(content=0) / compared["bound"].sum("content")
    panels = {f"{distance_of(compared)}, layer {distance['layer'].item()}": distance}
    if "accuracy" in compared:
        panels[ANSWERED] = compared["accuracy"]
    panels["path bound: share of the first content token"] = share
    heights = [34.0 * len(names) + 20] * len(panels)
    figure, places = grid(list(panels), len(panels), heights, shared_yaxes=True)
    for place, (title, values) in zip(places, panels.items(), strict=True):
        are_shares = title == ANSWERED
        for row, name in enumerate(names):
            colour = COLOURS["null" if name == AS_IT_IS else "path_bound"]
            by_length = np.atleast_1d(values.isel(change=row).astype(float))
            if values is distance:  # its axis is logarithmic
                by_length = by_length[by_length > 0]
            spread(figure, row, name, by_length, colour, are_shares=are_shares, **place)
    figure.update_xaxes(rangemode="tozero")
    figure.update_xaxes(type="log", **places[0])
    if "accuracy" in compared:
        figure.update_xaxes(range=[-0.05, 1.05], **places[1])
    name_rows(figure, map(escape, names))
    unchanged = compared.sel(change=compared["change"] == AS_IT_IS)
    notes = [MARKS, cannot_be_judged({"": unchanged})]
    if "accuracy" in compared:
        notes.insert(1, "ring of answers: mean")
    title = "Effect of each change on collapse and on the answers"
    return finish(figure, title, compared, *notes)


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

    Args:
        found: a result of `squashlens.synthetic.convergence`, or several by label.

    Returns:
        The figure.
    """
    several: Any = found  # by label
    first_layers = [str(stack["layer"].values[0]) for stack in several.values()]
    last_layers = [str(stack["layer"].values[-1]) for stack in several.values()]
    titles = [
        f"D after layer {', '.join(np.unique(last_layers))}",
        f"δ of the attention rows of layer {', '.join(np.unique(first_layers))}",
    ]
    figure, places = grid(titles, 2, [280.0, 280.0], shared_yaxes=True)
    notes = ["95 % intervals of exponents", "dashed: derived exponent"]
    for order, (label, stack) in enumerate(several.items()):
        top = stack.isel(layer=-1)
        bottom = stack.isel(layer=0)
        of_distance = fitted_exponent(top, "exponent")
        of_variation = fitted_exponent(bottom, "variation_exponent")
        powers = f"D ∝ n^{of_distance}, δ ∝ n^{of_variation}"
        name = f"{label or 'mean'}: {powers}"
        look = series(order)
        for trace in over_seeds(top["distance"], "mean", name, **look):
            figure.add_trace(trace, **places[0])
        for trace in over_seeds(bottom["total_variation"], "mean", name, **look):
            figure.add_trace(trace, **places[1])
        if np.isfinite(top["rate"]):  # through the middle of the curve
            mean = top["distance"].mean("seed")
            middle = mean[len(mean) // 2]
            law = middle * (mean["length"] / middle["length"]) ** top["rate"].item()
            dashed = {"colour": GUIDE, "dash": "dash", "width": 1.5, "mode": "lines"}
            figure.add_trace(line(law, **dashed), **places[0])
        if len(several) == 1:  # a single name is not listed
            notes.insert(0, powers)
    figure.update_xaxes(type="log", title="length n (tokens)").update_yaxes(type="log")
    norm = next(iter(several.values()))["distance"].attrs["long_name"].split()[0]
    title = f"Distance of v and v* in random attention stacks ({norm})"
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

    Args:
        found: a result of `squashlens.synthetic.softmax_total_variation`, or several by label.

    Returns:
        The figure.
    """
    values = found["total_variation"]
    ends = {"low": values.min("seed"), "high": values.max("seed")}
    means = values.mean("seed").assign_coords(ends)
    derived = {"colour": COLOURS["path_bound"], "mode": "lines"}
    dots = {"colour": COLOURS["distance"], "mode": "markers"}
    figure = go.Figure(line(found["expected"], "derived mean", **derived))
    figure.add_trace(line(means, "mean over seeds, smallest to largest", **dots))
    perturbed = int(found["perturbed"])
    first = float(values["length"][0])
    if first < perturbed:
        shade_range(figure, first, perturbed, f"n ≤ {perturbed}: all entries perturbed")
    figure.update_xaxes(type="log", title="length n (tokens)")
    figure.update_yaxes(type="log", title="δ")
    rate = f"{float(found['rate']):.0f}".replace("-", "−")
    notes = [
        f"δ ∝ n^{fitted_exponent(found, 'exponent')}, derived n^{rate}",
        f"δ ÷ (1 − k/n) ∝ n^{fitted_exponent(found, 'leading')}",
    ]
    title = "Total variation of the softmax of two growing sequences"
    return finish(figure, title, (), *notes, height=280)


def fitted_exponent(
    found: xr.Dataset, name: str, interval: str = "[{low}, {high}]"
) -> str:
    """The exponent of n that was fitted, with its interval if there is one, such as "−0.998 [−1.003, −0.993]".

    `found` has it as `{name}_mean`, `{name}_low` and `{name}_high`. `interval` is the form of the interval.
    """
    ends = {}
    for end in ("mean", "low", "high"):
        # z: a rounded 0 has no minus sign.
        ends[end] = f"{found[f'{name}_{end}'].item():z.3f}".replace("-", "−")
    if ends["mean"] == "nan":
        return "(none fitted)"
    if ends["low"] == "nan":
        return ends["mean"]
    return f"{ends['mean']} {interval.format(**ends)}"
