"""Influence by distance and along paths, what heads attend to, and the sensitivity to one token of many prompts."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.results import chosen
from squashlens.errors import InputError
from squashlens.figures.drawing.axes import token_axis
from squashlens.figures.drawing.decorator import draws, of_one_prompt, tokens_of
from squashlens.figures.drawing.notes import norm_note, option_of
from squashlens.figures.drawing.page_blocks import traces_of
from squashlens.figures.drawing.shapes import (
    LAYERS,
    curve,
    extremes,
    grid,
    interval,
    layer_map,
    token_figure,
)
from squashlens.figures.drawing.style import finish
from squashlens.figures.drawing.text import escape, label, number_token
from squashlens.figures.drawing.themes import (
    BROWN,
    COLOURS,
    DRAWN,
    pale,
    series,
    shades_of,
)
from squashlens.records.sentences import (
    listed,
    number,
    open_order,
    percent,
    plural,
    with_interval,
)

# The quantities of each panel, with their names and colours. Only those of the model have points and the fitted law.
QUANTITIES = {
    "jacobian": ("Jacobian", "model", COLOURS["jacobian"]),
    "jacobian_random": ("Jacobian", "random weights", COLOURS["null"]),
    "path_bound": ("path bound", "model", COLOURS["path_bound"]),
    "path_bound_random": ("path bound", "random weights", COLOURS["null"]),
    "null": ("path bound", "uniform attention", BROWN),
}
PANELS = {
    "jacobian": ("Jacobian norm", COLOURS["jacobian"]),
    "path_bound": ("path bound", COLOURS["path_bound"]),
    "bound_over_null": (
        "path bound ÷ that of uniform attention",
        COLOURS["bound_over_null"],
    ),
    "effect": ("change of y when it is replaced, ‖Δy‖₂", BROWN),
}


@draws(
    "squashlens.influence_by_distance",
    "influence: quantity layer distance",
    "floor amplitude exponent exponent_low exponent_high exponent_at_end: quantity layer",
)
def influence_by_distance(found: xr.Dataset, *, layer: int | None = None) -> go.Figure:
    """Draw influence by distance with the fitted law, and its exponent by layer.

    Influence is divided by its mean, so that different quantities have one scale.

    Args:
        layer: the layer from which influence by distance is drawn; the lowest by default.

    Raises:
        InputError: if this layer was not measured.
    """
    at = chosen(
        found, "layer", int(found["layer"].values[0]) if layer is None else layer
    )
    there = {
        name: about
        for name, about in QUANTITIES.items()
        if name in found["quantity"].values
    }
    kinds = list(dict.fromkeys(kind for kind, *_ in there.values()))
    lawful = (
        found["exponent"].where(found["exponent_at_end"] == 0).notnull().any("layer")
    )
    laws = list(
        dict.fromkeys(
            kind for name, (kind, *_) in there.items() if lawful.sel(quantity=name)
        )
    )
    titles = [
        *(f"{kind} from layer {at}, ÷ its mean" for kind in kinds),
        *(f"{kind}: exponent p" for kind in laws),
    ]
    figure, places = grid(
        titles, len(kinds), shared_yaxes="rows" if len(kinds) > 1 else False
    )
    for name, (kind, text, colour) in there.items():
        one = found.sel(quantity=name)
        for trace in _influence(one.sel(layer=at), text, colour):
            figure.add_trace(trace, row=1, col=1 + kinds.index(kind))
        if kind in laws:
            figure.add_trace(
                _exponent(one, text, colour), row=2, col=1 + laws.index(kind)
            )
    figure.update_xaxes(
        title="distance r + 1 (tokens)", type="log", row=1
    ).update_yaxes(type="log", row=1)
    figure.update_xaxes(title="layer", dtick=1, row=2)
    marks = [
        "dots: measured",
        *["lines through them: fitted law"] * bool(found["exponent"].notnull().any()),
    ]
    if np.isfinite(found["exponent_low"].values).any():
        marks.append("bars: middle 95 % of resampled queries")
    without = int(found["exponent_at_end"].sum())
    if without:
        marks.append(
            f"left out as no power law: {plural(without, 'exponent')} at an end of those tried"
        )
    notes = [
        *(norm_note(found) if "jacobian" in found["quantity"].values else ()),
        *marks,
    ]
    asked = option_of(found, "queries")
    many = len(asked) if isinstance(asked, list) else 0
    said = (
        f"query {asked[0]}"
        if many == 1
        else f"{many} queries"
        if many
        else "all queries"
    )
    own = [
        (about[0], found.sel(quantity=name, layer=at))
        for name, about in there.items()
        if about[1] == "model"
    ]
    told = [_law(kind, one) for kind, one in own if np.isfinite(one["exponent"])]
    says = (
        f"From layer {at}, {listed(told or ['there are too few distances for a law'])}."
    )
    title = f"Influence on {said} of a prompt, by distance"
    return finish(figure, title, 200 * places[-1]["row"], found, *notes, says=says)


def _law(kind: str, one: xr.Dataset) -> str:
    """The power of distance that was fitted, with the ends of its interval if there are some."""
    if one["exponent_at_end"]:
        return f"the {kind} follows no power law"
    power, *ends = (
        number(-one[name]) for name in ("exponent", "exponent_high", "exponent_low")
    )
    interval_of_it = f" [{', '.join(ends)}]" if np.isfinite(one["exponent_low"]) else ""
    return f"the law fitted to the {kind} has distance to the power {power}{interval_of_it}"


def _influence(one: xr.Dataset, text: str, colour: str) -> list[go.Scatter]:
    """Influence by distance: of the model as points with the law as a line, otherwise as a line."""
    there = one["influence"].values > 0
    if not there.any():
        return []
    x, values = one["distance"].values[there] + 1.0, one["influence"].values[there]
    law = float(one["floor"]) + float(one["amplitude"]) * x ** -float(one["exponent"])
    hover, mean = f"{text}, r + 1 = %{{x}}<br>%{{y:.4g}} of its mean", values.mean()
    if text != "model":
        return [
            curve(
                x,
                values / mean,
                text,
                colour=colour,
                mode="lines",
                width=1.5,
                hover=hover,
            )
        ]
    points = curve(
        x, values / mean, text, colour=colour, mode="markers", size=4, hover=hover
    )
    return [points, curve(x, law / mean, text, colour=colour, mode="lines", log=True)]


def _exponent(one: xr.Dataset, text: str, colour: str) -> go.Scatter:
    """The exponent by layer, with its interval, where it is inside of the range that was tried."""
    inside = ~one["exponent_at_end"].values.astype(bool)
    middle, low, high = (
        np.where(inside, one[f"exponent{end}"].values, np.nan)
        for end in ("", "_low", "_high")
    )
    bars, hover = (
        interval(middle, low, high, colour),
        f"{text}, layer %{{x}}<br>p = %{{y:.3g}}",
    )
    return curve(
        one["layer"].values,
        middle,
        text,
        colour=colour,
        width=1.5,
        size=5,
        error_y=bars,
        hover=hover,
    )


@draws("squashlens.needle", "prompts: group at")
def needle(
    found: xr.Dataset,
    *,
    title: str = "Sensitivity to one token of each prompt",
    xlabel: str = "place",
) -> go.Figure:
    """Draw the sensitivity to the needle token: one panel for each measure, one line for each group of prompts.

    Lines are means over prompts, with intervals. Scales are logarithmic and span at least a factor of two, so that
    constant values look constant.

    Args:
        title: title of the figure.
        xlabel: title of the x axis, for the ``at`` coordinate of the result.
    """
    wanted = [name for name in PANELS if f"{name}_mean" in found]
    if not wanted:
        raise InputError(
            "found has no measure to draw.",
            "Give the unchanged result of squashlens.needle.",
        )
    groups = [escape(str(g)) for g in found["group"].values]
    figure, places = grid(
        [PANELS[name][0] for name in wanted],
        3 if len(wanted) == 3 else min(2, len(wanted)),
    )
    for name, here in zip(wanted, places, strict=True):
        cells = [found[f"{name}_{side}"].values for side in ("mean", "low", "high")]
        for i, (group, mean, low, high) in enumerate(zip(groups, *cells, strict=True)):
            style: Any = series(i) | (
                {"colour": PANELS[name][1]} if len(groups) == 1 else {}
            )
            line = curve(
                found["at"].values,
                mean,
                group,
                **style,
                size=7,
                error_y=interval(mean, low, high, style["colour"]),
                customdata=found["prompts"].values[i],
                hover=f"{group}, {xlabel} %{{x}}<br>%{{y:.4g}}, %{{customdata}} prompts",
            )
            figure.add_trace(line, **here)
        figure.update_yaxes(range=_log_range(np.stack(cells), 2.0), **here)
    figure.update_yaxes(type="log")
    figure.update_xaxes(title=escape(xlabel))
    ends = [
        f"the mean {PANELS[name][0].partition(',')[0]} {_ends(with_interval(found, f'{name}_mean'))}"
        for name in wanted
    ]
    notes = [
        *norm_note(found),
        *["bars: 95 % intervals"] * bool((found["prompts"] > 1).any()),
    ]
    first, last = found["at"].values[0], found["at"].values[-1]
    by = (
        f"By {xlabel}, from {first} to {last}, of {len(groups)} lines"
        if len(groups) > 1
        else f"By {xlabel}"
    )
    says = f"{escape(by)}, {listed(ends)}."
    return finish(
        figure, escape(title), 210 * places[-1]["row"], found, *notes, says=says
    )


def _log_range(values: np.ndarray, least: float) -> list[float] | None:
    """The range of a logarithmic axis for all positive values, of at least the factor `least`; `None` if none is."""
    logs = np.log10(values[np.isfinite(values) & (values > 0)])
    if not len(logs):
        return None
    middle = (logs.max() + logs.min()) / 2
    half = max(1.1 * (logs.max() - logs.min()), np.log10(least)) / 2
    return [middle - half, middle + half]


def _ends(means: xr.DataArray) -> str:
    """Where the means of one measure are largest and smallest, or that they hardly differ; of groups, both ends."""
    if means.sizes["group"] > 1:
        first, last = (_span(means.isel(at=end)) for end in (0, -1))
        return f"is {first} at the first and {last} at the last place"
    if not float(means.max()) > FLAT * float(means.min()):
        return f"is {_span(means)} everywhere"
    most, least = (means["at"].values[may[0]] for may, *_ in open_order(means))
    names = [
        escape(str(at[0]))
        if len(at) == 1
        else f"one of {len(at)} with overlapping bars"
        for at in (most, least)
    ]
    return f"is largest at {names[0]} and smallest at {names[1]}"


def _span(means: xr.DataArray) -> str:
    """The smallest and the largest of means, or the one that all have."""
    return " to ".join(dict.fromkeys((number(means.min()), number(means.max()))))


FLAT = 1.1  # factor between means of one measure that hardly differ
FLOOR = 1e-6  # all shares below this have the same colour


@draws("squashlens.paths.composition", "values: layer position", "token: position")
def composition(shares: xr.DataArray) -> go.Figure:
    """Draw the share of paths that start at each position and layer, as a map with a logarithmic colour scale."""
    return _starts(shares, row="layer {}", axis="layer ℓ", by="layer")


@draws("squashlens.paths.hops", "values: hop position", "token: position")
def hops(shares: xr.DataArray) -> go.Figure:
    """Draw the share of paths by number of hops and by start position, as a map with a logarithmic colour scale."""
    return _starts(
        shares, row="{} hops", axis="hops through attention", by="number of hops"
    )


def _starts(shares: xr.DataArray, *, row: str, axis: str, by: str) -> go.Figure:
    """A map of where the paths start; `row` labels a row in hovers, `axis` and `by` name what the rows are."""
    if "query" in shares.coords:  # values of a profile have the same dimensions
        raise InputError(
            "shares is the result of another measurement: it has values for queries.",
            "Give the unchanged result of squashlens.paths.composition, or draw it with squashlens.figures.of.",
        )
    shares = of_one_prompt(shares)
    tokens, starts = (
        tokens_of(shares),
        shares.isel(layer=0) if "layer" in shares.dims else shares.sum("hop"),
    )
    # The first token has nearly all paths of a deep model. The scale then ends at the power of ten above the others, if
    # this frees at least a third of its decades for them.
    others = shares.isel(position=slice(1, None)).values
    largest = (
        float(others[others < 1].max(initial=0.0)) or 1.0
    )  # the query has all paths at its own layer
    most = 10.0 ** np.ceil(np.log10(max(largest, 10 * FLOOR)))
    most = most if most <= FLOOR ** (1 / 3) else 1.0
    first = float(starts[0])
    figure = token_figure(
        shares, tokens, row, axis, "share of paths", ends=(FLOOR, most)
    )
    beyond = f"beyond the scale: {label(tokens[min(tokens)])}, with {percent(first)} of the paths"
    notes = [beyond] if most < first else []
    lowest = int(shares["layer"][0]) if "layer" in shares.dims else 0
    says = extremes(
        starts,
        f"share of paths from layer {lowest}" if lowest else "share of all paths",
    )
    title = f"Where the paths to the query start, by {by}"
    return finish(figure, title, 280, shares, *notes, says=says)


@draws(
    "squashlens.attention_sinks",
    "values: block position",
    "sink: position",
    "token: position",
)
def attention_sinks(sinks: xr.DataArray) -> go.Figure:
    """Draw the attention that each token gets from later tokens beyond uniform attention, by block."""
    tokens = tokens_of(sinks)
    figure = token_figure(
        sinks, tokens, "block {}", "block", "share", logarithmic=False
    )
    found = [
        f"“{label(tokens[place])}”"
        for place in sinks["position"].values[sinks["sink"].values]
    ]
    says = (
        f"Later tokens attend most to {listed(found)}."
        if found
        else "No token is a sink."
    )
    notes = ["blank: fewer than four later tokens"] * bool(sinks.isnull().any())
    return finish(
        figure,
        "Attention from later tokens, beyond uniform",
        280,
        sinks,
        *notes,
        says=says,
    )


@draws("squashlens.attention_heads", "sink_rate: block head")
def attention_heads(found: xr.Dataset) -> go.Figure:
    """Draw the attention of each head to the first token, as a map of block × head."""
    rates = found["sink_rate"]
    figure = go.Figure(layer_map(rates, "mean attention", zmin=0, zmax=1))
    figure.update_xaxes(title="head", dtick=1).update_yaxes(title="block", dtick=1)
    return finish(
        figure,
        "Attention of each head to the first token",
        260,
        found,
        says=extremes(rates, "share"),
    )


@draws(
    "squashlens.paths.strongest_paths",
    "token: position",
    "position_at: path layer",
    "share: path",
)
def strongest_paths(paths: xr.Dataset) -> go.Figure:
    """Draw the strongest paths on the grid of layers and tokens (figure 1b). Stronger paths have wider lines."""
    paths = of_one_prompt(paths)
    tokens, layers, shares = (
        tokens_of(paths),
        paths["layer"].values,
        paths["share"].values,
    )
    figure = go.Figure()
    for rank in reversed(range(len(shares))):
        walk = paths["position_at"].values[rank]
        places = [
            f"{layer}, {number_token(p, tokens.get(p, ''))}"
            for layer, p in zip(layers, walk, strict=True)
        ]
        hover = f"layer %{{customdata}}<br>path {rank + 1}: {shares[rank]:.4g} of all"
        width = 1.5 + 6 * float(shares[rank] / shares[0])
        line = curve(
            walk,
            layers,
            colour=pale(COLOURS["path_bound"]),
            width=width,
            hover=hover,
            customdata=places,
        )
        figure.add_trace(line.update(opacity=0.6))
    figure.update_xaxes(token_axis(tokens)).update_yaxes(LAYERS)
    avoided = ", ".join(
        label(tokens.get(int(p), ""))
        for p in np.atleast_1d(option_of(paths, "avoid") or [])
    )
    notes = [f"without paths through {avoided}"] * bool(avoided) + [
        "stronger paths have wider lines"
    ]
    carry = f"{len(shares)} paths carry" if len(shares) > 1 else "This path carries"
    says = f"{carry} {percent(float(shares.sum()))} of the weight of all paths."
    return finish(
        figure, "The strongest paths to the query", 320, paths, *notes, says=says
    )


@draws(
    "squashlens.paths.depth_limit",
    "rest: block depth",
    "predicted_rate observed_rate: block",
)
def depth_limit(limit: xr.Dataset) -> go.Figure:
    """Draw the path weight that is not at the first token, by depth, with a logarithmic scale.

    Depth is the number of times that a block's attention is applied. Of many blocks, four are drawn, with the slowest
    and the fastest. A dotted line shows the predicted rate, from the value at depth 1, or at the first that is drawn.
    """
    blocks, depth = limit["block"].values, limit["depth"].values
    figure = go.Figure()
    last = limit["rest"].isel(depth=-1).values
    for at, colour in shades_of(last).items():
        here, block = limit.isel(block=at), blocks[at]
        rest, rates = (
            here["rest"].values,
            [float(here[f"{name}_rate"]) for name in ("predicted", "observed")],
        )
        hover = f"block {block}, rate predicted {rates[0]:.3f}, observed {rates[1]:.3f}<br>depth %{{x}}: %{{y:.4g}}"
        figure.add_trace(
            curve(
                depth,
                rest,
                f"block {block}",
                colour=colour,
                mode="lines",
                hover=hover,
                log=True,
            )
        )
        from_one, first = depth[depth >= 1], rest[depth >= 1][:1]
        law = first * float(here["predicted_rate"]) ** (from_one - from_one[:1])
        figure.add_trace(
            curve(from_one, law, colour=colour, dash="dot", width=1, mode="lines")
        )
    figure.update_xaxes(title="number of times the block's attention is applied")
    drawn = np.concatenate([np.asarray(line.y, float) for line in traces_of(figure)])
    lowest = np.log10(np.nanmin(np.append(drawn[drawn > 0], 0.1)))
    figure.update_yaxes(
        title="path weight not at the first token",
        type="log",
        range=[max(lowest, -10) - 0.1, 0.1],
    )
    most = f"{number(last.max())} of the path weight (block {blocks[last.argmax()]})"
    says = f"After a block's attention is applied {depth[-1]} times, at most {most} is not at the first token."
    title = "Depth limit: repeated attention moves path weight to the first token"
    notes = [f"slowest, fastest and two other blocks of {len(blocks)}"] * (
        len(blocks) > DRAWN
    )
    return finish(
        figure, title, 320, limit, "dotted: the predicted rate", *notes, says=says
    )
