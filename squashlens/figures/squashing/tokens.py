"""Values of the tokens of one prompt, also by layer or query, and the most likely next tokens."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from squashlens.errors import InputError
from squashlens.figures.drawing.inputs.facts import notes_of
from squashlens.figures.drawing.inputs.given import draws
from squashlens.figures.drawing.inputs.selection import TOKENS, of_one_prompt, tokens_of
from squashlens.figures.drawing.layouts.ticks import token_axis
from squashlens.figures.drawing.maps import interval, token_heatmap
from squashlens.figures.drawing.sinks import is_sink, leave_sink_out, sink_note
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escaped, label, numbered
from squashlens.figures.drawing.themes import COLOURS

WIDE = 10.0  # values that span more than this factor have a logarithmic scale


@draws("squashlens.path_bound or squashlens.jacobian_norms", "values: position", "token: position")
def by_token(values: xr.DataArray) -> go.Figure:
    """Draw one value for each token of a prompt: a path bound, Jacobian norms, or one variable of a larger result.

    The scale is logarithmic if all values are positive and span more than a factor of 10. A first token with more than
    90 % of the sum, an attention sink, is beyond the scale, which fits the other tokens and leaves out zeros. A note
    has its share.
    Certified upper bounds that have lower bounds too, the coordinate `low` of a sketch, have bars down to these. Tokens
    after the query, if one was selected from a profile, are left out.

    Args:
        values: a DataArray over the tokens of one prompt, such as ``sl.path_bound(…)`` or
            ``sl.substitution_effect(…)["effect"]``; or several of one kind by label. `of` draws a panel for each of
            several prompts.

    Returns:
        The figure.
    """
    values = of_one_prompt(values)
    if "query" in values.coords and not values["query"].ndim:
        values = values.isel(position=values["position"].values <= values["query"].item())
    tokens, positions = tokens_of(values), values["position"].values
    name, unit = (str(values.attrs.get(key, "")) for key in ("long_name", "units"))
    data = values.values.astype(np.float64)
    apart = is_sink(values)
    low = values["low"].values.astype(np.float64) if "low" in values.coords else None
    texts = [numbered(place, tokens[place]) for place in map(int, positions)]
    if low is not None:
        texts = [f"{text}<br>at least {least:.6g}, at most" for text, least in zip(texts, low, strict=True)]
    figure = go.Figure(
        go.Scatter(
            x=positions.astype(np.float64),
            y=np.where(apart & (positions == 0), np.nan, data),
            mode="lines+markers",
            line={"color": COLOURS["path_bound"], "width": 2},
            marker={"size": 6},
            showlegend=False,
            customdata=np.array(texts, dtype=object),
            hovertemplate="%{customdata}<br>%{y:.6g}<extra></extra>",
            error_y=None if low is None else interval(data, low, data, COLOURS["path_bound"], 3),
        )
    )
    there = data[np.isfinite(data)]
    notes = ["bars: from a certified lower bound"] if low is not None else []
    if apart:
        leave_sink_out(figure, [data[1:]] if low is None else [data[1:], low[1:]], data[0], {})
        notes.append(sink_note(values))
    elif len(there) and there.min() > 0 and _is_wide(data if low is None else np.concatenate([data, low])):
        figure.update_yaxes(type="log")
    figure.update_xaxes(**token_axis(tokens), title=TOKENS)
    figure.update_yaxes(title=_axis_title(name, unit))
    return finish(figure, title=_title(name), height=260, notes=notes_of(values, *notes))


@draws("squashlens.substitution_effect", "effect effect_std: position", "token: position")
def substitution(found: xr.Dataset) -> go.Figure:
    """Draw what replacing each token of a prompt does: to the representation and, for y, to the next token.

    Bars are the standard deviation over the replacements of a token. Tokens that were not replaced have no mark.

    Args:
        found: a result of `squashlens.substitution_effect`, or several by label.

    Returns:
        The figure.
    """
    found = of_one_prompt(found)
    tokens, places = tokens_of(found), found["position"].values
    names = [name for name in ("effect", "kl") if name in found]
    figure = make_subplots(rows=len(names), cols=1, shared_xaxes=True)
    texts = [numbered(place, tokens[place]) for place in map(int, places)]
    for row, name in enumerate(names, 1):
        values, spread = found[name].values.astype(np.float64), found["effect_std"].values.astype(np.float64)
        bars = (
            interval(values, np.maximum(values - spread, 0.0), values + spread, COLOURS["path_bound"], 3)
            if name == "effect"
            else None
        )
        figure.add_scatter(
            x=places.astype(np.float64), y=values, mode="lines+markers", showlegend=False, marker={"size": 6},
            line={"color": COLOURS["path_bound"], "width": 2}, error_y=bars, customdata=np.array(texts, dtype=object),
            hovertemplate="%{customdata}<br>%{y:.6g}<extra></extra>", row=row, col=1,
        )  # fmt: skip
        title = {"effect": "‖Δ‖₂", "kl": "KL"}[name]
        figure.update_yaxes(title=_axis_title(title, found[name].attrs["units"]), rangemode="tozero", row=row, col=1)
    figure.update_xaxes(**token_axis(tokens))
    figure.update_xaxes(title=TOKENS, row=len(names), col=1)
    cut = bool((found["effect_std"] > found["effect"]).any())
    notes = notes_of(found, f"bars: standard deviation over replacements{', cut at 0' if cut else ''}")
    title = "What replacing each token changes"
    return finish(figure, title=title, height=160 * len(names) + 60, notes=notes)


@draws("squashlens.profile", "values: ... position", "query: ...", "token: position")
def token_map(values: xr.DataArray) -> go.Figure:
    """Draw values by token and layer, or by token and query, as a map: one variable of a profile.

    The colour scale is logarithmic if the positive values span more than a factor of 10. Zeros, such as those of tokens
    after the query, are white then. For one query and one layer, the values are drawn as by `by_token`.

    Args:
        values: one variable of `squashlens.profile` for one query or one layer, such as
            ``result["path_bound"].sel(query=12)``; or several by label.

    Returns:
        The figure.

    Raises:
        InputError: if the values have several queries and several layers.
    """
    rows = [str(dim) for dim in values.dims if dim != "position"]
    if not rows:
        return by_token(values)
    if len(rows) > 1:
        raise InputError(
            f"values has the dimensions ({', '.join(map(str, values.dims))}), and a map has rows of one of them.",
            f"Select one label, as in `values.isel({rows[-1]}=0)` or `values.isel({rows[0]}=0)`.",
        )
    values = of_one_prompt(values).transpose(*rows, "position")
    tokens = tokens_of(values)
    name, unit = (str(values.attrs.get(key, "")) for key in ("long_name", "units"))
    labels = [int(each) for each in values[rows[0]].values]
    logarithmic = _is_wide(values.values)
    figure = go.Figure(token_heatmap(values, tokens, rows[0], _axis_title(name, unit), logarithmic=logarithmic))
    figure.update_xaxes(**token_axis(tokens), title=TOKENS)
    figure.update_yaxes(title="layer ℓ" if rows[0] == "layer" else f"{rows[0]} (position)")
    if np.ptp(labels) == len(labels) - 1:
        figure.update_yaxes(dtick=1)
    else:  # rows with gaps between their numbers
        figure.update_yaxes(tickvals=list(range(len(labels))), ticktext=list(map(str, labels)))
    notes = ["white: 0"] if logarithmic and (values.values == 0).any() else []
    return finish(figure, title=f"{_title(name)}, by {rows[0]}", height=280, notes=notes_of(values, *notes))


def _is_wide(values: np.ndarray) -> bool:
    """Whether positive values span so much that a linear scale would not show the small ones."""
    there = values[np.isfinite(values) & (values > 0)]
    return bool(len(there) and not (values < 0).any() and there.max() > WIDE * there.min())


def _axis_title(name: str, unit: str) -> str:
    return escaped(f"{name or 'value'} ({unit})" if unit not in ("", "1") else name or "value")


def _title(name: str) -> str:
    return escaped(f"{name[:1].upper()}{name[1:]}")


@draws("squashlens.top_tokens", "values: rank", "token: rank")
def top_tokens(probabilities: xr.DataArray) -> go.Figure:
    """Draw the probabilities of the most likely next tokens as bars.

    Args:
        probabilities: a result of `squashlens.top_tokens`, or several by label.

    Returns:
        The figure.
    """
    tokens = [label(str(token)) for token in probabilities["token"].values]
    places = list(range(len(tokens)))
    figure = go.Figure(
        go.Bar(
            x=probabilities.values, y=places, orientation="h", marker={"color": COLOURS["path_bound"]},
            showlegend=False, hovertext=tokens, hovertemplate="%{hovertext}: %{x:.4g}<extra></extra>",
        )
    )  # fmt: skip
    figure.update_xaxes(title="probability", range=[0, 1.02])
    figure.update_yaxes(tickvals=places, ticktext=tokens, range=[len(tokens) - 0.4, -0.6])
    return finish(figure, title="Most likely next tokens", height=28 * (len(tokens) + 1), notes=notes_of(probabilities))
