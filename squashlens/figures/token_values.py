"""Values of the tokens of one prompt, by layer or query too, and the most likely next tokens."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens.checks.results import chosen, moved_probability
from squashlens.errors import InputError
from squashlens.figures.drawing.axes import token_axis
from squashlens.figures.drawing.decorator import draws, of_one_prompt, tokens_of
from squashlens.figures.drawing.notes import norm_note
from squashlens.figures.drawing.shapes import (
    curve,
    interval,
    name_rows,
    titles_of,
    token_figure,
)
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import label, number_token
from squashlens.figures.drawing.themes import COLOURS, INK, series

EDGE = 0.08  # how far a scale goes beyond the tokens other than sinks, as a share of their range
WIDE = 10.0  # values that span more than this factor have a logarithmic scale
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
    "path bound": ("path_bound", "null"),
    "norm": ("jacobian_frozen", "jacobian"),
    "bound ÷ null": ("bound_over_null",),
}


@draws("squashlens.path_bound or squashlens.jacobian_norms", "values: position", "token: position")
def by_token(values: xr.DataArray) -> go.Figure:
    """Draw one value for each token of a prompt: a path bound, Jacobian norms, or one variable of a larger result.

    The scale is logarithmic if all values are positive and span more than a factor of 10.
    Certified upper bounds that have lower bounds too, the coordinate `low` of a sketch, have bars down to these. Tokens
    after the query, if one was selected from a profile, are left out.

    Args:
        values: a DataArray over the tokens of one prompt, such as ``sl.path_bound(…)`` or
            ``sl.substitution_effect(…)["effect"]``; or several of one kind by label. `of` draws a panel for each of
            several prompts.
    """
    values = of_one_prompt(moved_probability(values))
    if "query" in values.coords and not values["query"].ndim:
        values = values.isel(position=values["position"].values <= values["query"].item())
    tokens, (title, axis) = tokens_of(values), titles_of(values)
    data, positions = values.values.astype(np.float64), values["position"].values
    low = values["low"].values.astype(np.float64) if "low" in values.coords else None
    texts = [number_token(place, tokens[place]) for place in map(int, positions)]
    bars = None
    if low is not None:
        texts = [f"{text}<br>at least {least:.6g}, at most" for text, least in zip(texts, low, strict=True)]
        bars = interval(data, low, data, COLOURS["path_bound"], 3)
    figure = go.Figure(_line(positions, data, texts, colour=COLOURS["path_bound"], error_y=bars))
    notes = ["bars: from a certified lower bound"] if low is not None else []
    if _is_wide(data if low is None else np.concatenate([data, low])) and np.nanmin(data) > 0:
        figure.update_yaxes(type="log")
    figure.update_xaxes(token_axis(tokens)).update_yaxes(title=axis)
    return finish(figure, title, 260, values, *notes)


@draws("squashlens.sensitivity", "token path_bound null jacobian_frozen jacobian bound_over_null: position")
def attribution(sensitivity: xr.Dataset) -> go.Figure:
    """Draw path bound and null (upper panel), Jacobian norms (middle) and bound ÷ null (lower) of each token.

    All scales are logarithmic, so values of exactly zero are missing from the lines. The upper scale ends at the tokens
    that are no attention sinks; a note has the sinks with their share. Repeated tokens have separate places on the
    axis. The hover text has position, token and value.

    Args:
        sensitivity: a result of `squashlens.sensitivity` for one prompt. `of` draws a panel for each of several
            prompts; ``result.isel(prompt=0)`` selects one.
    """
    sensitivity = of_one_prompt(sensitivity)
    tokens, places = tokens_of(sensitivity), sensitivity["position"].values
    texts = [number_token(place, tokens[place]) for place in map(int, places)]
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, row_heights=[0.36, 0.36, 0.28])
    for row, (title, names) in enumerate(PANELS.items(), 1):
        for name in names:
            data, text = sensitivity[name].values, NAMES[name]
            line = _line(places, data, texts, f"{text or title}: ", name=text, colour=COLOURS[name], log=True)
            figure.add_trace(line, row=row, col=1)
        figure.update_yaxes(title=title, row=row, col=1)
    figure.add_hline(y=1, line={"color": INK, "width": 1, "dash": "dot"}, row=3, col=1)  # pyright: ignore
    figure.update_yaxes(type="log")
    notes = [*norm_note(sensitivity), *_set_sinks_apart(figure, sensitivity)]
    figure.update_xaxes(token_axis(tokens))
    return finish(figure, "Influence of each token on the last representation", 480, sensitivity, *notes)


@draws("squashlens.substitution_effect or squashlens.knockout_effect", "effect: position", "token: position")
def substitution(found: xr.Dataset) -> go.Figure:
    """Draw what replacing or knocking out each token of a prompt does: to the representation and, for y, to the next
    token.

    Bars are the standard deviation over the replacements of a token. Tokens that were not changed have no mark.
    """
    found = of_one_prompt(found)
    tokens, places = tokens_of(found), found["position"].values
    names = [name for name in ("effect", "kl", "total_variation") if name in found]
    figure = make_subplots(rows=len(names), cols=1, shared_xaxes=True)
    texts = [number_token(place, tokens[place]) for place in map(int, places)]
    colour, notes = COLOURS["path_bound"], list[str]()
    for row, name in enumerate(names, 1):
        shown, bars = moved_probability(found[name]), None
        values = shown.values.astype(np.float64)
        if name == "effect" and "effect_std" in found:
            spread = found["effect_std"].values.astype(np.float64)
            bars = interval(values, np.maximum(values - spread, 0.0), values + spread, colour, 3)
            notes = [f"bars: standard deviation over replacements{', cut at 0' if (spread > values).any() else ''}"]
        figure.add_trace(_line(places, values, texts, colour=colour, error_y=bars), row=row, col=1)
        short = {"effect": "‖Δ‖₂", "kl": "KL", "total_variation": "moved probability"}[name]
        _, axis = titles_of(shown.assign_attrs(long_name=short))
        figure.update_yaxes(title=axis, rangemode="tozero", row=row, col=1)
    figure.update_xaxes(token_axis(tokens))
    how = "replacing" if "effect_std" in found else "knocking out"
    return finish(figure, f"What {how} each token changes", 160 * len(names) + 60, found, *notes)


@draws(
    "squashlens.jacobian",
    "singular_value share: position direction",
    "raised_token lowered_token: ? position direction rank",
    "token: position",
)
def jacobian(found: xr.Dataset) -> go.Figure:
    """Draw the leading singular values of the block of each token, as one line for each direction.

    The hover text has the share of the squared Frobenius norm, and the tokens whose logits the direction raises and
    lowers most, if there are any in the result.
    """
    tokens, places = tokens_of(found), found["position"].values
    figure = go.Figure()
    for number, direction in enumerate(found["direction"].values):
        one = found.sel(direction=direction)
        texts = [_hover(one.isel(position=at), number_token(int(p), tokens[int(p)])) for at, p in enumerate(places)]
        name, values = f"direction {direction}", one["singular_value"].values
        figure.add_trace(_line(places, values, texts, "σ = ", name=name, **series(number)))
    figure.update_xaxes(token_axis(tokens)).update_yaxes(title="singular value", rangemode="tozero")
    return finish(figure, "Leading singular values of the Jacobian's blocks", 300, found)


@draws("squashlens.influence", "values: ... position", "query: ...", "token: position")
def token_map(values: xr.DataArray) -> go.Figure:
    """Draw values by token and layer, or by token and query, as a map: one variable of a profile.

    The colour scale is logarithmic if the positive values span more than a factor of 10. Zeros, such as those of tokens
    after the query, are white then. For one query and one layer, the values are drawn as by `by_token`.

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
    logarithmic, over = _is_wide(values.values), "layer ℓ" if rows == ["layer"] else "query (position)"
    figure = token_figure(values, tokens, f"{rows[0]} {{}}", over, axis, logarithmic=logarithmic)
    notes = ["white: 0"] if logarithmic and (values.values == 0).any() else []
    return finish(figure, f"{title}, by {rows[0]}", 280, values, *notes)


@draws("squashlens.influence", "query: query", "effective_rank: layer", "token: position")
def influence(found: xr.Dataset, *, query: int | None = None) -> go.Figure:
    """Draw the influence of each token on one query from each layer: Jacobian norms if there are any, or path bounds.

    Args:
        query: the query; the last one by default.

    Raises:
        InputError: if this query was not measured.
    """
    one = found.sel(query=chosen(found, "query", int(found["query"].values[-1]) if query is None else query))
    names = [name for name in ("jacobian", "path_bound") if name in one and one[name].notnull().any()]
    return token_map(one[names[0]])


@draws("squashlens.top_tokens", "values: rank", "token: rank")
def top_tokens(probabilities: xr.DataArray) -> go.Figure:
    """Draw the probabilities of the most likely next tokens as bars."""
    tokens = [label(str(token)) for token in probabilities["token"].values]
    figure = go.Figure()
    figure.add_bar(
        x=probabilities.values, y=list(range(len(tokens))), orientation="h", marker={"color": COLOURS["path_bound"]},
        hovertext=tokens, hovertemplate="%{hovertext}: %{x:.4g}<extra></extra>",
    )  # fmt: skip
    figure.update_xaxes(title="probability", range=[0, 1.02])
    name_rows(figure, tokens, showgrid=True)
    return finish(figure, "Most likely next tokens", 28 * (len(tokens) + 1), probabilities)


def _line(places: np.ndarray, values: np.ndarray, texts: list[str], told: str = "", **style: Any) -> go.Scatter:
    """A curve over positions; its hover text has a text for each of them, and `told` before the value."""
    hover, each = f"%{{customdata}}<br>{told}%{{y:.6g}}", np.array(texts, dtype=object)
    return curve(places.astype(float), values, customdata=each, hover=hover, **style)


def _set_sinks_apart(figure: go.Figure, found: xr.Dataset) -> list[str]:
    """End the scale of path bounds at the tokens that are no sinks, with an arrow at each sink; a note about these."""
    bound, sinks = found["path_bound"].values, found["sink"].values == 1 if "sink" in found else np.zeros(0, bool)
    others = np.concatenate([found[name].values[~sinks] for name in PANELS["path bound"]]) if sinks.any() else bound[:0]
    others = others[others > 0]
    if not len(others):
        return []
    low, high = np.log10(others.min()), np.log10(others.max())
    room = max(EDGE * (high - low), 0.05)
    top = high + 2 * room
    figure.update_yaxes(range=[low - room, top], row=1, col=1)
    lines: Any = figure.select_traces(row=1, col=1)
    for line in lines:
        line.y = np.where(line.y > 10**top, np.nan, line.y)
    for place in np.flatnonzero(sinks & (bound > 10**top)):
        figure.add_annotation(
            x=found["position"].values[place], y=top, text=f"↑ {bound[place]:.3g}", showarrow=False, xanchor="left",
            yanchor="top", xshift=-8, row=1, col=1,
        )  # fmt: skip
    names = ", ".join(label(str(token)) for token in found["token"].values[sinks])
    share = 100 * bound[sinks].sum() / bound.sum()
    return [f"sinks: {names}, with {share:.4g} % of the path bound"]


def _hover(one: xr.Dataset, token: str) -> str:
    lines = [token, f"{float(one['share']):.1%} of the squared Frobenius norm"]
    for name in ("raised", "lowered"):
        if f"{name}_token" in one:
            lines.append(f"{name}: {', '.join(label(str(text)) for text in one[f'{name}_token'].values)}")
    return "<br>".join(lines)


def _is_wide(values: np.ndarray) -> bool:
    """Whether positive values span so much that a linear scale would not show the small ones."""
    there = values[np.isfinite(values) & (values > 0)]
    return bool(len(there) and not (values < 0).any() and there.max() > WIDE * there.min())
