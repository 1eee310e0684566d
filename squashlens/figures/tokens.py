"""Values of the tokens of one prompt, by layer or query too, what heads attend to, and the likeliest next tokens."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.results import moved_probability
from squashlens.errors import InputError
from squashlens.figures.drawing.decorator import draws, tokens_of
from squashlens.figures.drawing.shapes import (
    add_lines,
    add_map,
    clipped,
    ends_of,
    guide,
    interval_note,
    is_wide,
    line,
    name_rows,
    steps,
    titles_of,
    token_axis,
    token_figure,
    with_interval,
    with_its_intervals,
)
from squashlens.figures.drawing.style import finish, grid
from squashlens.figures.drawing.text import escape, label, number_token
from squashlens.figures.drawing.themes import COLOURS, GUIDE
from squashlens.records.joining import without_padding
from squashlens.records.sentences import number

BLUE = COLOURS["path_bound"]
# For each panel of `attribution`, the variables that it shows and the names of their curves. Path bounds have other
# units than norms, and are larger by powers of ten in deep models.
PANELS = {
    "Path bound": {"path_bound": "path bound", "null": "under uniform attention"},
    "Jacobian norm": {"jacobian_frozen": "attention frozen", "jacobian": "Jacobian"},
    "Path bound ÷ that of uniform attention": {"bound_over_null": ""},
}
EFFECTS = ("output_change", "kl", "probability_l1", "target_score_change")
FEW = 6  # tokens whose singular values are drawn as curves


@draws(
    "squashlens.path_bound or squashlens.jacobian_norms",
    "values: position",
    "token: position",
)
def by_token(values: xr.DataArray) -> go.Figure:
    """Draw one value for each token of a prompt: a path bound, Jacobian norms, or one variable of a larger result.

    The scale is logarithmic if all values are positive and span more than a factor of 10.
    Sketched values have their intervals, from the coordinate `low` to `high`, as bars; certified upper bounds have bars
    down to `low`. Tokens after the query, if one was selected from a profile, are left out.

    Args:
        values: a DataArray over the tokens of one prompt, such as ``sl.path_bound(…)`` or
            ``sl.substitution_effect(…)["output_change"]``; or several of one kind by label. `of` draws a panel for each
            of several prompts.

    Returns:
        The figure.
    """
    values = without_padding(values)
    values = moved_probability(values)  # of the next token: from 0 to 1, not to 2
    values = with_its_intervals(values)
    if "query" in values.coords and values["query"].ndim == 0:
        query = int(values["query"])
        if query < 0:  # a study may count queries from the end
            query += values.sizes["position"]
        values = values.isel(position=values["position"].values <= query)
    title, axis = titles_of(values)
    figure = go.Figure(_token_curve(values, colour=BLUE))
    figure.update_yaxes(title=axis, rangemode="tozero")
    if (values > 0).all() and is_wide(values.values):
        figure.update_yaxes(type="log")
    figure.update_xaxes(token_axis(tokens_of(values)))
    return finish(figure, title, values, interval_note(values))


@draws(
    "squashlens.bound_vs_jacobian",
    "token path_bound null jacobian_frozen jacobian bound_over_null: position",
)
def attribution(sensitivity: xr.Dataset) -> go.Figure:
    """Draw path bound and null (upper panel), Jacobian norms (middle) and bound ÷ null (lower) of each token.

    All scales are logarithmic, so values of exactly zero are missing from the lines. Sketched norms have their
    intervals as bars.

    Args:
        sensitivity: a result of `squashlens.bound_vs_jacobian` for one prompt. `of` draws a panel for each of several
            prompts; ``result.isel(prompt=0)`` selects one.

    Returns:
        The figure.
    """
    sensitivity = without_padding(sensitivity)
    figure, places = grid(list(PANELS), heights=[150, 150, 110], shared_xaxes=True)
    for names, place in zip(PANELS.values(), places, strict=True):
        for name, text in names.items():
            values = with_interval(sensitivity, name)
            curve = _token_curve(values, text, colour=COLOURS[name], log=True)
            figure.add_trace(curve, **place)
    guide(figure, 1, **places[2])
    figure.update_yaxes(type="log").update_xaxes(token_axis(tokens_of(sensitivity)))
    bars = interval_note(with_interval(sensitivity, "jacobian"))
    title = "Influence of each token on the last representation"
    return finish(figure, title, sensitivity, bars)


@draws(
    "squashlens.bound_vs_jacobian",
    "token path_bound null jacobian: position",
    "rank_agreement: estimate",
    "compared_tokens:",
    usual=False,
)
def bound_against_jacobian(sensitivity: xr.Dataset) -> go.Figure:
    """Draw the path bound of each token against its Jacobian norm, and that of uniform attention beside it.

    Both scales are logarithmic, so tokens without any influence are missing. The line below the title has Spearman's ρ
    of both with its 95 % interval, and that of the null, which does not use this model's attention. BOS and the last
    token are left out, as in ρ.

    Args:
        sensitivity: a result of `squashlens.bound_vs_jacobian` for one prompt.

    Returns:
        The figure.
    """
    sensitivity = without_padding(sensitivity)
    # ρ compares all tokens after BOS and before the last one.
    last = sensitivity.sizes["position"] - 1
    first = last - int(sensitivity["compared_tokens"])
    compared = sensitivity.isel(position=slice(first, last))
    looks = {
        "path_bound": {"colour": BLUE},
        "null": {"colour": GUIDE, "symbol": "circle-open"},
    }
    figure = go.Figure()
    notes = ["without BOS and the last token"]
    for name, text in PANELS["Path bound"].items():
        are_positive = ((compared[name] > 0) & (compared["jacobian"] > 0)).values
        norms = compared["jacobian"][are_positive]
        dots = _token_curve(norms, text, mode="markers", size=8, **looks[name])
        # `_token_curve` draws over positions; here x is the bound in place of the position.
        dots.x = compared[name].values[are_positive]
        figure.add_trace(dots)
        notes.append(f"Spearman's ρ {_rank(compared, name)}")
    notes[-1] += " (null)"
    figure.update_xaxes(type="log", title="path bound", showgrid=True)
    figure.update_yaxes(type="log", title="Jacobian norm")
    title = "Path bound against Jacobian norm, by token"
    return finish(figure, title, sensitivity, *notes, height=330)


def _rank(found: xr.Dataset, estimate: str) -> str:
    """Spearman's ρ of an estimate with the Jacobian norms, with its interval if there is one, as "0.9 [0.8, 0.95]"."""
    rho = with_interval(found, "rank_agreement").sel(estimate=estimate)
    if "low" not in rho.coords:
        return number(rho)
    return f"{number(rho)} [{number(rho['low'])}, {number(rho['high'])}]"


@draws(
    "squashlens.substitution_effect or squashlens.knockout_effect",
    "output_change: position",
    "token: position",
)
def substitution(found: xr.Dataset) -> go.Figure:
    """Draw what replacing or knocking out each token of a prompt does: to the representation and, for y, to the next
    token; and, of a knockout, to the lead of one answer over another.

    Bars are the standard deviation over the replacements of a token. Tokens that were not changed have no mark.

    Args:
        found: a result of `squashlens.substitution_effect or squashlens.knockout_effect`, or several by label.

    Returns:
        The figure.
    """
    found = without_padding(found)
    shown: dict[str, xr.DataArray] = {}
    for name in EFFECTS:
        if name in found:
            shown[name] = moved_probability(found[name])
    notes = []
    verb = "knocking out"
    if "output_change_std" in found:
        verb = "replacing"
        change = found["output_change"]
        std = found["output_change_std"]
        around = change.assign_coords(low=change - std, high=change + std)
        shown["output_change"] = clipped(around, 0.0, np.inf)
        notes.append("bars: standard deviation over replacements, cut at 0")
    if "target_score_change" in shown:
        target = f"“{found['target'].item()}”"
        against = found["against"].item()
        of_target = f"of {target}"
        if against:
            of_target = f"lead: {target} over “{against}”"
        notes.append(of_target)
    titles = [titles_of(values)[0] or name for name, values in shown.items()]
    figure, places = grid(titles, heights=[130] * len(titles), shared_xaxes=True)
    for place, values in zip(places, shown.values(), strict=True):
        figure.add_trace(_token_curve(values, colour=BLUE), **place)
        unit = str(values.attrs.get("units", "1"))
        if unit != "1":  # 1: without a unit
            figure.update_yaxes(title=escape(unit), **place)
    figure.update_xaxes(token_axis(tokens_of(found))).update_yaxes(rangemode="tozero")
    return finish(figure, f"What {verb} each token changes", found, *notes)


@draws(
    "squashlens.jacobian", "singular_value share: position direction", "token: position"
)
def jacobian(found: xr.Dataset) -> go.Figure:
    """Draw the leading singular values of the block of each token: as curves of up to six tokens, or a map.

    Args:
        found: a result of `squashlens.jacobian`, or several by label.

    Returns:
        The figure.
    """
    values = found["singular_value"].transpose("direction", "position")
    tokens = tokens_of(found)
    title = "Leading singular values of the Jacobian's blocks"
    if len(tokens) > FEW:
        figure = token_figure(values, tokens, "direction", "singular value")
        return finish(figure, title, found)
    figure = go.Figure()
    names = [f"{place}: {token}" for place, token in tokens.items()]
    add_lines(figure, dict(zip(names, values.transpose(), strict=True)))
    figure.update_xaxes(steps(found["direction"], "direction, by size"))
    figure.update_yaxes(title="singular value", rangemode="tozero")
    return finish(figure, title, found)


@draws(
    "squashlens.token_influence",
    "values: ... position",
    "query: ...",
    "token: position",
)
def token_map(values: xr.DataArray) -> go.Figure:
    """Draw values by token and layer, or by token and query, as a map: one variable of a profile.

    The colour scale is logarithmic if the positive values span more than a factor of 10. Zeros, such as those of tokens
    after the query, are blank then. For one query and one layer, the values are drawn as by `by_token`.

    Args:
        values: one variable of `squashlens.token_influence` for one query or one layer, such as
            ``result["path_bound"].sel(query=12)``; or several by label.

    Returns:
        The figure.

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
    values = without_padding(values).transpose(*rows, "position")
    title, _ = titles_of(values)
    short = str(values.name or "value").replace("_", " ")
    if "norm" in title:
        short = "norm"
    log = is_wide(values.values)
    figure = token_figure(values, tokens_of(values), rows[0], short, log=log)
    blank = ""
    if log and (values.values == 0).any():
        blank = "blank: 0"
    return finish(figure, f"{title or 'Values'}, by {rows[0]}", values, blank)


@draws(
    "squashlens.token_influence",
    "query: query",
    "effective_rank: layer",
    "token: position",
    "jacobian path_bound: ? query layer position",
)
def token_influence(found: xr.Dataset) -> go.Figure:
    """Draw the influence of each token on the last query from each layer: Jacobian norms if there are any, or path
    bounds.

    Args:
        found: a result of `squashlens.token_influence`, or several by label.

    Returns:
        The figure.
    """
    one_query = found.isel(query=-1)
    if "jacobian" in one_query and one_query["jacobian"].notnull().any():
        return token_map(one_query["jacobian"])
    return token_map(one_query["path_bound"])


@draws(
    "squashlens.attention_sinks",
    "values: block position",
    "sink: position",
    "token: position",
)
def attention_sinks(sinks: xr.DataArray) -> go.Figure:
    """Draw the attention that each token gets from later tokens beyond uniform attention, by block.

    Args:
        sinks: a result of `squashlens.attention_sinks`, or several by label.

    Returns:
        The figure.
    """
    figure = token_figure(sinks, tokens_of(sinks), "block", "share")
    # In joined results truth values are floating-point numbers.
    is_sink = sinks["sink"].values == 1
    names = [f"“{token}”" for token in sinks["token"].values[is_sink]]
    notes = [f"sinks: {', '.join(names)}" if names else "no token is a sink"]
    if sinks.isnull().any():
        notes.append("blank: fewer than four later tokens")
    title = "Attention from later tokens, beyond uniform"
    return finish(figure, title, sinks, *notes)


@draws("squashlens.head_statistics", "sink_rate: block head")
def head_statistics(found: xr.Dataset) -> go.Figure:
    """Draw the attention of each head to the first token, as a map of block × head.

    Args:
        found: a result of `squashlens.head_statistics`, or several by label.

    Returns:
        The figure.
    """
    figure = go.Figure()
    add_map(figure, found["sink_rate"], "mean attention", cmin=0, cmax=1)
    figure.update_xaxes(steps(found["head"], "head"))
    figure.update_yaxes(steps(found["block"], "block"))
    return finish(figure, "Attention of each head to the first token", found)


@draws("squashlens.top_tokens", "values: rank", "token: rank")
def top_tokens(probabilities: xr.DataArray) -> go.Figure:
    """Draw the probabilities of the most likely next tokens as bars.

    Args:
        probabilities: a result of `squashlens.top_tokens`, or several by label.

    Returns:
        The figure.
    """
    tokens = [label(str(token)) for token in probabilities["token"].values]
    figure = go.Figure().add_bar(
        x=probabilities.values,
        y=list(range(len(tokens))),
        orientation="h",
        marker={"color": BLUE},
        hovertext=tokens,
        hovertemplate="%{hovertext}: %{x:.4g}<extra></extra>",
    )
    figure.update_xaxes(title="probability", rangemode="tozero", showgrid=True)
    name_rows(figure, tokens)
    title = "Most likely next tokens"
    return finish(figure, title, probabilities, height=28 * (len(tokens) + 1))


def _token_curve(values: xr.DataArray, name: str = "", **style: Any) -> go.Scatter:
    """A curve of values over (position), whose hover text has each token and, if there are any, its interval.

    `style` are further arguments of `line`.
    """
    texts = [number_token(place, token) for place, token in tokens_of(values).items()]
    if interval_note(values):
        intervals = zip(*ends_of(values), strict=True)
        for place, (low, high) in enumerate(intervals):
            texts[place] += f"<br>{low:.6g} to {high:.6g}"
    style |= {"customdata": np.array(texts, dtype=object)}
    return line(values, name, hover="%{customdata}<br>%{y:.6g}", **style)
