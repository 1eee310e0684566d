"""Values of the tokens of one prompt, by layer or query too, and the most likely next tokens."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.results import chosen, moved_probability
from squashlens.errors import InputError
from squashlens.figures.drawing.axes import token_axis
from squashlens.figures.drawing.decorator import draws, of_one_prompt, tokens_of
from squashlens.figures.drawing.notes import norm_note
from squashlens.figures.drawing.shapes import (
    bars_of,
    curve,
    extremes,
    grid,
    guide,
    interval_note,
    is_wide,
    name_rows,
    titles_of,
    token_figure,
)
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escape, label, number_token
from squashlens.figures.drawing.themes import COLOURS
from squashlens.records.sentences import ends_of, percent, plural, with_interval

EDGE = 0.08  # how far a scale goes beyond the tokens other than sinks, as a share of their range
# Of each curve of `attribution`: its name.
NAMES = {
    "path_bound": "this model",
    "null": "uniform attention",
    "jacobian": "whole model",
    "jacobian_frozen": "attention frozen",
    "bound_over_null": "",  # alone in its panel
}
# Path bounds have other units than norms, and are larger by powers of ten in deep models.
PANELS = {
    "Path bound": ("path_bound", "null"),
    "Jacobian norm": ("jacobian_frozen", "jacobian"),
    "Path bound ÷ that of uniform attention": ("bound_over_null",),
}


@draws(
    "squashlens.path_bound or squashlens.jacobian_norms",
    "values: position",
    "token: position",
)
def by_token(values: xr.DataArray) -> go.Figure:
    """Draw one value for each token of a prompt: a path bound, Jacobian norms, or one variable of a larger result.

    The scale is logarithmic if all values are positive.
    Sketched values have their intervals, from the coordinate `low` to `high`, as bars; certified upper bounds have bars
    down to `low`. Tokens after the query, if one was selected from a profile, are left out.

    Args:
        values: a DataArray over the tokens of one prompt, such as ``sl.path_bound(…)`` or
            ``sl.substitution_effect(…)["effect"]``; or several of one kind by label. `of` draws a panel for each of
            several prompts.
    """
    values = of_one_prompt(moved_probability(values))
    if "query" in values.coords and not values["query"].ndim:
        last, places = values["query"].item(), values["position"].values
        whole = values.sizes.get("position", len(places))
        values = values.isel(
            position=places <= last + (last < 0) * whole
        )  # a study may count from the end
    (title, axis), data, notes = titles_of(values), values.values, interval_note(values)
    figure = go.Figure(_line(values, colour=COLOURS["path_bound"]))
    if (data[np.isfinite(data)] > 0).all():
        figure.update_yaxes(type="log")
    figure.update_xaxes(token_axis(tokens_of(values))).update_yaxes(title=axis)
    return finish(
        figure,
        title,
        260,
        values,
        *notes,
        says=extremes(values, "norm" if notes else "value"),
    )


@draws(
    "squashlens.sensitivity",
    "token path_bound null jacobian_frozen jacobian bound_over_null: position",
)
def attribution(sensitivity: xr.Dataset) -> go.Figure:
    """Draw path bound and null (upper panel), Jacobian norms (middle) and bound ÷ null (lower) of each token.

    All scales are logarithmic, so values of exactly zero are missing from the lines. The upper scale ends at the tokens
    that are no attention sinks; a note has the sinks with their share. Sketched norms have their intervals as bars.

    Args:
        sensitivity: a result of `squashlens.sensitivity` for one prompt. `of` draws a panel for each of several
            prompts; ``result.isel(prompt=0)`` selects one.
    """
    sensitivity = of_one_prompt(sensitivity)
    figure, _ = grid([*PANELS], heights=[0.36, 0.36, 0.28], shared_xaxes=True)
    for row, (title, names) in enumerate(PANELS.items(), 1):
        for name in names:
            style: Any = {"name": NAMES[name], "colour": COLOURS[name], "log": True}
            line = _line(
                with_interval(sensitivity, name), f"{NAMES[name] or title}: ", **style
            )
            figure.add_trace(line, row=row, col=1)
    guide(figure, 1, row=3, col=1)
    figure.update_yaxes(type="log")
    norms = with_interval(sensitivity, "jacobian")
    notes = [
        *norm_note(sensitivity),
        *interval_note(norms),
        *_set_sinks_apart(figure, sensitivity),
    ]
    figure.update_xaxes(token_axis(tokens_of(sensitivity)))
    more = int((sensitivity["bound_over_null"] > 1).sum())
    says = f"The path bound is above uniform attention's at {more} of {plural(len(norms), 'token')}. "
    title = "Influence of each token on the last representation"
    return finish(
        figure,
        title,
        480,
        sensitivity,
        *notes,
        says=says + extremes(norms, "norm of the whole model"),
    )


@draws(
    "squashlens.substitution_effect or squashlens.knockout_effect",
    "effect: position",
    "token: position",
)
def substitution(found: xr.Dataset) -> go.Figure:
    """Draw what replacing or knocking out each token of a prompt does: to the representation and, for y, to the next
    token; and, of a knockout, to the lead of one answer over another.

    Bars are the standard deviation over the replacements of a token. Tokens that were not changed have no mark.
    """
    found = of_one_prompt(found)
    names = [
        name
        for name in ("effect", "kl", "total_variation", "log_odds_change")
        if name in found
    ]
    figure, _ = grid(
        [titles_of(moved_probability(found[name]))[0] for name in names],
        shared_xaxes=True,
    )
    notes = list[str]()
    for row, name in enumerate(names, 1):
        shown = moved_probability(found[name])
        if name == "effect" and "effect_std" in found:
            spread = found["effect_std"]
            shown = shown.assign_coords(
                low=np.maximum(shown - spread, 0.0), high=shown + spread
            )
            notes = [
                f"bars: standard deviation over replacements{', cut at 0' if (spread > shown).any() else ''}"
            ]
        figure.add_trace(_line(shown, colour=COLOURS["path_bound"]), row=row, col=1)
        unit = str(shown.attrs.get("units", "1"))
        figure.update_yaxes(
            title=escape(unit if unit != "1" else ""),
            rangemode="tozero",
            row=row,
            col=1,
        )
    figure.update_xaxes(token_axis(tokens_of(found)))
    if "log_odds_change" in names:
        first, other = (label(found[name].item()) for name in ("target", "against"))
        notes.append(
            f"lead: of “{first}” over “{other}”"
            if other
            else f"lead: log-probability of “{first}”"
        )
    how = "replacing" if "effect_std" in found else "knocking out"
    says = extremes(found["effect"], "change of the representation")
    return finish(
        figure,
        f"What {how} each token changes",
        120 * len(names) + 100,
        found,
        *notes,
        says=says,
    )


@draws(
    "squashlens.jacobian", "singular_value share: position direction", "token: position"
)
def jacobian(found: xr.Dataset) -> go.Figure:
    """Draw the leading singular values of the block of each token, as a map of direction × token."""
    values, tokens = (
        found["singular_value"].transpose("direction", "position"),
        tokens_of(found),
    )
    figure = token_figure(
        values, tokens, "direction {}", "direction", "singular value", logarithmic=False
    )
    return finish(
        figure,
        "Leading singular values of the Jacobian's blocks",
        260,
        found,
        says=extremes(values),
    )


@draws("squashlens.influence", "values: ... position", "query: ...", "token: position")
def token_map(values: xr.DataArray) -> go.Figure:
    """Draw values by token and layer, or by token and query, as a map: one variable of a profile.

    The colour scale is logarithmic if the positive values span more than a factor of 10. Zeros, such as those of tokens
    after the query, are blank then. For one query and one layer, the values are drawn as by `by_token`.

    Args:
        values: one variable of `squashlens.influence` for one query or one layer, such as
            ``result["path_bound"].sel(query=12)``; or several by label.

    Raises:
        InputError: if the values have several queries and several layers.
    """
    rows = [str(dim) for dim in values.dims if dim != "position"]
    if not rows:
        return by_token(values)
    if rows not in (["layer"], ["query"]):
        raise InputError(
            f"values has the dimensions ({', '.join(map(str, values.dims))}), and a map has rows of layers or queries.",
            f"Select one label, as in `values.isel({rows[-1]}=0)` or `values.isel({rows[0]}=0)`.",
        )
    values = of_one_prompt(values).transpose(*rows, "position")
    tokens, (title, axis) = tokens_of(values), titles_of(values)
    logarithmic, over = (
        is_wide(values.values),
        "layer ℓ" if rows == ["layer"] else "query (position)",
    )
    figure = token_figure(
        values, tokens, f"{rows[0]} {{}}", over, axis, logarithmic=logarithmic
    )
    notes = ["blank: 0"] if logarithmic and (values.values == 0).any() else []
    return finish(
        figure,
        f"{title or 'Values'}, by {rows[0]}",
        280,
        values,
        *notes,
        says=extremes(values),
    )


@draws(
    "squashlens.influence",
    "query: query",
    "effective_rank: layer",
    "token: position",
    "jacobian path_bound: ? query layer position",
)
def influence(found: xr.Dataset, *, query: int | None = None) -> go.Figure:
    """Draw the influence of each token on one query from each layer: Jacobian norms if there are any, or path bounds.

    Args:
        query: the query; the last one by default.

    Raises:
        InputError: if this query was not measured.
    """
    one = found.sel(
        query=chosen(
            found, "query", int(found["query"].values[-1]) if query is None else query
        )
    )
    names = [
        name
        for name in ("jacobian", "path_bound")
        if name in one and one[name].notnull().any()
    ]
    return token_map(with_interval(one, names[0]))


@draws("squashlens.top_tokens", "values: rank", "token: rank")
def top_tokens(probabilities: xr.DataArray) -> go.Figure:
    """Draw the probabilities of the most likely next tokens as bars."""
    tokens = [label(str(token)) for token in probabilities["token"].values]
    figure = go.Figure().add_bar(
        x=probabilities.values,
        y=list(range(len(tokens))),
        orientation="h",
        marker={"color": COLOURS["path_bound"]},
        hovertext=tokens,
        hovertemplate="%{hovertext}: %{x:.4g}<extra></extra>",
    )
    figure.update_xaxes(title="probability", range=[0, 1.02])
    name_rows(figure, tokens, showgrid=True)
    says = f"The most likely of them is “{tokens[0]}”, with probability {percent(float(probabilities[0]))}."
    return finish(
        figure,
        "Most likely next tokens",
        28 * (len(tokens) + 1),
        probabilities,
        says=says,
    )


def _line(values: xr.DataArray, told: str = "", **style: Any) -> go.Scatter:
    """A curve over positions, with bars over intervals; its hover text has each token, and `told` before the value."""
    bars, places = (
        bars_of(values, style["colour"]),
        zip(tokens_of(values).items(), *ends_of(values), strict=True),
    )
    texts = [
        number_token(*place) + f"<br>{low:.6g} to {high:.6g}" * len(bars)
        for place, low, high in places
    ]
    hover, each = f"%{{customdata}}<br>{told}%{{y:.6g}}", np.array(texts, dtype=object)
    return curve(
        values["position"].values.astype(float),
        values.values,
        customdata=each,
        hover=hover,
        **bars,
        **style,
    )


def _set_sinks_apart(figure: go.Figure, found: xr.Dataset) -> list[str]:
    """End the scale of path bounds at the tokens that are no sinks; a note about the sinks."""
    bound, sinks = (
        found["path_bound"].values,
        found["sink"].values == 1 if "sink" in found else np.zeros(0, bool),
    )
    others = (
        np.concatenate([found[name].values[~sinks] for name in PANELS["Path bound"]])
        if sinks.any()
        else bound[:0]
    )
    others = others[others > 0]
    if not len(others):
        return []
    low, high = np.log10(others.min()), np.log10(others.max())
    room = max(EDGE * (high - low), 0.05)
    figure.update_yaxes(range=[low - room, high + room], row=1, col=1)
    names = ", ".join(label(str(token)) for token in found["token"].values[sinks])
    return [
        f"sinks: {names}, with {percent(bound[sinks].sum() / bound.sum())} of the path bound"
    ]
