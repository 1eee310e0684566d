"""Where an answer is represented and read out: probes, verdicts, separation and answers by layer."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.checks.results import labelled
from squashlens.figures.answers import LENGTH, cannot_be_judged
from squashlens.figures.drawing.decorator import draws
from squashlens.figures.drawing.notes import distance_of
from squashlens.figures.drawing.shapes import (
    SHARES,
    add_lines,
    add_map,
    add_marks,
    clipped,
    curve,
    guide,
    line,
    log_axis,
    name_rows,
    over_seeds,
    steps,
    text_axis,
    with_interval,
)
from squashlens.figures.drawing.style import finish, grid
from squashlens.figures.drawing.text import escape, shortened
from squashlens.figures.drawing.themes import BROWN, COLOURS, series
from squashlens.records.sentences import bare, plural

# For each panel, the name and colour of its curves from 0 to 1 over length. Earlier ones are wider, since shares are
# often equal.
PANELS = {
    "Prompts: is the answer right, and can a probe read it?": {
        "accuracy": ("answered", "#009E73"),
        "probe_right_y": ("read by the probe", "#0072B2"),
    },
    "R² of the probe of y, beside baselines": {
        "r2_y": ("this model", "#CC79A7"),
        "r2_random_model_y": ("random weights", BROWN),
        "r2_control_y": ("control task", "#7F7F7F"),
    },
    "Pairs, the last item repeated in one: what is the same?": {
        "same_argmax": ("same next token", "#E69F00"),
        "same_answer": ("same answer", "#D55E00"),
        "same_truth": ("same right answer", "#56B4E9"),
        "bit_identical": ("all bits", "#8a92a0"),
    },
}
HEIGHT, ROW = 110.0, 32.0  # pixels of a panel, and of a row of verdicts
VERDICTS = {  # symbol and colour of each verdict
    "answered": ("circle", "#009E73"),
    "preferred, not answered": ("square", "#56B4E9"),
    "reaches the last token, not used": ("diamond", "#D55E00"),
    "lost": ("x", "#CC79A7"),
    "undecided": ("triangle-up", "#7F7F7F"),
}
# Random weights may recover the same lengths as the model: they are wider.
RANDOM = {"colour": COLOURS["null"], "width": 5.0, "size": 4}
# The looks of the right answer, of its rival (the answer that wins or comes second), and of controls.
RIGHT = {"colour": "#009E73", "width": 3.5, "size": 8}
RIVAL = {"colour": "#D55E00", "width": 2.5, "size": 7, "symbol": "square"}
CONTROLS = (
    {"colour": "#7F7F7F", "width": 1.5, "size": 4, "dash": "dash"},
    {"colour": "#CC79A7", "width": 1.5, "size": 4, "dash": "dot"},
)
SUBLAYERS = {"attention": "attention", "mlp": "MLP"}
ABOVE = 1.25  # times the largest log-odds, where verdicts are marked
ANSWER = 12  # characters of an answer on an axis
ASIDE = 0.15  # between the marks of one group, at most
NET = "net net_low net_high net_random repaired broken: half block sublayer"
CHANCE = "selected_net selected_net_low selected_net_high selected_net_random_limit selected_net_shuffled_limit: ..."


@draws(
    "squashlens.collapse_vs_readout",
    "distance: length seed",
    "accuracy accuracy_low accuracy_high same_argmax verdict: length",
)
def collapse_vs_readout(found: xr.Dataset) -> go.Figure:
    """Draw answers, probe, pairs, distance D, and verdicts, each by length.

    D is the distance at the last layer between a prompt and the same prompt with its last item repeated: the median
    over seeds, with a band from minimum to maximum; zeros are missing. Error bars are Wilson's 95 % interval for
    accuracy, and the middle 95 % over splits for R². R² below 0 is drawn at 0. Without a probe, its panel is missing.

    Args:
        found: a result of `squashlens.collapse_vs_readout`, or several by label.

    Returns:
        The figure.
    """
    shares = []
    for title, curves in PANELS.items():
        if not found.keys().isdisjoint(curves):
            shares.append(title)
    verdicts = found["verdict"].values.astype(str).tolist()
    rows = list(dict.fromkeys(verdicts))
    titles = [*shares, "Distance of pairs: median, smallest to largest", "Verdict"]
    heights = [HEIGHT] * (len(shares) + 1) + [ROW * (len(rows) + 1)]
    figure, places = grid(titles, heights=heights, shared_xaxes=True)
    # Panels of shares, as many as were measured; then that of D; then that of verdicts.
    for place, title in zip(places, shares, strict=False):
        for order, (name, (text, colour)) in enumerate(PANELS[title].items()):
            if name in found:
                look = {"colour": colour, "width": 4.8 - 1.2 * order}
                share = line(_share(found, name), text, size=10 - 2 * order, **look)
                figure.add_trace(share, **place)
        figure.update_yaxes(range=[-0.07, 1.07], **place)
    orange = COLOURS["distance"]
    for trace in over_seeds(found["distance"], "median", "", colour=orange):
        figure.add_trace(trace, **places[-2])
    figure.update_yaxes(type="log", title=distance_of(found), **places[-2])
    row_of_length = [rows.index(verdict) for verdict in verdicts]
    marks = {"mode": "markers", "symbol": "square", "size": 9, "hover": "%{x} items"}
    squares = curve(found["length"].values, row_of_length, colour=BROWN, **marks)
    figure.add_trace(squares, **places[-1])
    name_rows(figure, [escape(verdict) for verdict in rows], row=len(titles))
    figure.update_xaxes(title=LENGTH)
    notes = [cannot_be_judged({"": found})]
    if "r2_y" not in found:
        notes.append("no probe at these lengths")
    n_zero = int((found["distance"].median("seed") == 0).sum())
    if n_zero:
        notes.append(f"median D is 0, and not drawn, at {plural(n_zero, 'length')}")
    return finish(figure, "Collapsed, or not read out?", found, *notes)


def _share(found: xr.Dataset, name: str) -> xr.DataArray:
    """A variable over (length) from 0 to 1, with its intervals if there are several seeds; what is below 0 is 0."""
    values = with_interval(found, name).astype(float)
    if found.sizes["seed"] == 1:
        values = values.drop_vars(["low", "high"], errors="ignore")
    return clipped(values, 0.0, np.inf)


@draws("squashlens.probe", "r2: layer length", "r2_y: length")
def probe(found: xr.Dataset) -> go.Figure:
    """Draw R² of a linear probe for the right answer, as a map of layer × length with y on top.

    R² below 0 has the colour of 0. A panel on the right shows the same probe on models with random weights, if
    measured. Blank cells have no R², because the right answer does not vary or there are too few different prompts. The
    column "all" uses all lengths together, if measured.

    Args:
        found: a result of `squashlens.probe`, or several by label.

    Returns:
        The figure.
    """
    trained = _with_y_as_layer(found, "r2")
    if "r2_overall" in found and "r2_overall_y" in found:
        overall = _with_y_as_layer(found, "r2_overall")
        overall = overall.expand_dims(length=["all"], axis=1)
        trained = xr.concat([trained, overall], dim="length")
    panels = {"": trained}
    random_y = found.get("r2_random_model_y")  # NaN if it was not measured
    if "r2_random_model" in found and random_y is not None and random_y.notnull().any():
        random_weights = _with_y_as_layer(found, "r2_random_model")
        panels = {"this model": trained, "random weights": random_weights}
    heights = [260.0] * len(panels)
    figure, places = grid(list(panels), len(panels), heights, shared_yaxes=True)
    for place, values in zip(places, panels.values(), strict=True):
        add_map(figure, values, "R²", place=place, cmin=0, cmax=1)
    figure.update_layout(coloraxis_colorbar_labelalias={"0": "≤ 0"})
    figure.update_xaxes(type="category", title=LENGTH)
    rows = steps(range(trained.sizes["layer"]), "layer ℓ")
    # Ticks are counted from the last row, y, so that it has a label.
    from_top = {"tick0": trained.sizes["layer"] - 1, "showgrid": False}
    figure.update_yaxes(rows | from_top, type="category")
    notes = ["y: the last layer's output after the final norm"]
    if trained.isnull().any():
        notes.append("blank: no R²")
    title = "How well a linear probe predicts the right answer"
    return finish(figure, title, found, *notes)


def _with_y_as_layer(found: xr.Dataset, name: str) -> xr.DataArray:
    """A variable over (layer, length) with that of y, `{name}_y`, as the last layer, labelled "y".

    So labels of layers are text; those of lengths too, since the figure of a probe adds "all".
    """
    texts = {dim: found[dim].values.astype(str) for dim in found[name].dims}
    found = found.assign_coords(texts)
    y = found[f"{name}_y"].expand_dims(layer=["y"])
    return xr.concat([found[name], y], dim="layer")


@draws(
    "squashlens.answer_by_layer",
    "mean_likeliest mean_likeliest_low mean_likeliest_high: scored layer",
    "chance: ...",
)
def answer_curve(answers: xr.Dataset | Mapping[str, xr.Dataset]) -> go.Figure:
    """Draw the share of prompts whose right answer leads in the readout of each layer, with its controls.

    Of several results by label, it draws the right answers only.

    Args:
        answers: a result of `squashlens.answer_by_layer`, or several by label.

    Returns:
        The figure.
    """
    several: Any = answers  # by label; "" is that of a single result
    lines = {}
    for label, found in several.items():
        shares = with_interval(found, "mean_likeliest")
        if label:
            lines[label] = shares.isel(scored=0)  # the right answer
            continue
        for scored in found["scored"].values:
            lines[str(scored)] = shares.sel(scored=scored)
    figure = go.Figure()
    add_lines(figure, lines)
    guide(figure, *_chances(several))
    layers = np.concatenate([shares["layer"] for shares in lines.values()])
    figure.update_xaxes(steps(layers, "layer ℓ"))
    figure.update_yaxes(title="share of prompts", range=SHARES)
    title = "From which layer on does the right answer lead?"
    notes = ["dotted line: chance", "bars: 95 % intervals"]
    return finish(figure, title, several.values(), *notes)


def _chances(several: Mapping[str, xr.Dataset]) -> set[float]:
    """The levels of chance of results, each once."""
    return {found["chance"].item() for found in several.values()}


@draws(
    "squashlens.answer_by_layer",
    "probability: scored prompt layer",
    "rival_probability: prompt layer",
    "answered answer rival: prompt",
    "written written_by_chance: prompt block sublayer",
    usual=False,
)
def answer_way(found: xr.Dataset) -> go.Figure:
    """Draw the way of one prompt's answer: its probability in the readout of each layer, beside that of its rival.

    Below it is what each attention and MLP writes for the right answer (above 0) or for its rival (below 0). Bars are
    pale where an output with random signs would write as much.

    Args:
        found: a result of `squashlens.answer_by_layer`. Of several prompts, the first is drawn;
            ``found.isel(prompt=[3])`` selects another.

    Returns:
        The figure.
    """
    way = found.isel(prompt=0)
    titles = [
        "probability in the readout of each layer (logit lens)",
        "written for it (up) or against it (down), logits; pale: as much by chance",
    ]
    figure, (above, below) = grid(titles, heights=[190.0, 90.0], shared_xaxes=True)
    answer = shortened(bare(way["answer"].item()), ANSWER)
    rival = shortened(bare(way["rival"].item()), ANSWER)
    outcome = "next" if way["answered"].item() else "which wins"
    of_rival = line(way["rival_probability"], f"“{rival}”, {outcome}", **RIVAL)
    # The answer, its rival, and then the controls.
    for order, scored in enumerate(found["scored"].values.astype(str).tolist()):
        name = f"“{answer}”, the answer"
        if order:
            name = scored.removesuffix(" 0")  # the number of the first random model
        values = way["probability"].isel(scored=order)
        if values.notnull().any():
            figure.add_trace(line(values, name, **_scored(order)), **above)
        if order == 0:
            figure.add_trace(of_rival, **above)
    figure.update_yaxes(range=SHARES, **above)
    for side, (sublayer, name) in enumerate(SUBLAYERS.items()):
        part = way.sel(sublayer=sublayer)
        is_beyond = np.abs(part["written"]) > part["written_by_chance"]
        opacity = np.where(is_beyond, 1.0, 0.45)  # seen on a dark ground too
        figure.add_bar(
            # Between the layers that a block reads and writes, side by side.
            x=part["block"].values + 0.3 + 0.4 * side,
            y=part["written"].values,
            width=0.36,
            name=name,
            marker={"color": COLOURS[sublayer], "opacity": opacity},
            customdata=part["block"].values,
            hovertemplate=f"{name} of block %{{customdata}}: %{{y:.3g}}<extra></extra>",
            **below,
        )
    guide(figure, 0.0, **below)
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(steps(found["layer"], "layer ℓ, then block ℓ"))
    return finish(figure, "The way of the answer", found)


def _scored(order: int) -> dict[str, Any]:
    """The look of the right answer, which is the first along `scored`, or of one of its controls."""
    return RIGHT if order == 0 else CONTROLS[min(order, len(CONTROLS)) - 1]


@draws(
    "squashlens.answer_by_layer",
    "mean_answered mean_answered_low mean_answered_high: group",
    "mean_probability mean_lead: scored group layer",
)
def answers_by_group(found: xr.Dataset) -> go.Figure:
    """Draw the share of prompts that are answered in each group, and the right answer's probability and log-odds.

    The controls are the right answers of other prompts, and random weights. The last panel has the way of the answer:
    its mean probability by layer, a line for each group.

    Args:
        found: a result of `squashlens.answer_by_layer`, or several by label.

    Returns:
        The figure.
    """
    titles = ["share answered", "probability", "log-odds, nats", "probability by layer"]
    figure, places = grid(titles, 2, [170.0] * 4)
    names = found["group"].values.astype(str).tolist()
    # Three panels have groups by number along the x axis, in the order of the prompts; marks of one are side by side.
    numbers = np.arange(len(names))
    answered = with_interval(found, "mean_answered").assign_coords(group=numbers)
    marks: dict[str, Any] = RIGHT | {"mode": "markers"}
    figure.add_trace(line(answered, "right answer", **marks), **places[0])
    at_last = found.isel(layer=-1)
    # The interval of a mean does not know that probabilities end at 0 and 1.
    probability = clipped(with_interval(at_last, "mean_probability"), 0.0, 1.0)
    lead = with_interval(at_last, "mean_lead")
    aside = min(ASIDE, 0.6 / found.sizes["scored"])  # before the next group
    for order, scored in enumerate(found["scored"].values.astype(str).tolist()):
        marks = _scored(order) | {"mode": "markers"}
        beside = {"group": numbers + aside * order}
        for place, values in zip(places[1:3], (probability, lead), strict=True):
            drawn = values.isel(scored=order).assign_coords(beside)
            figure.add_trace(line(drawn, scored, **marks), **place)
    for order, name in enumerate(names):
        way = found["mean_probability"].isel(scored=0, group=order)
        figure.add_trace(line(way, name, **series(order)), **places[3])
    texts = [escape(shortened(name, ANSWER)) for name in names]
    for place in places[:3]:
        figure.update_xaxes(text_axis(dict(enumerate(texts)), "group"), **place)
    figure.update_yaxes(range=SHARES, **places[0])
    figure.update_xaxes(steps(found["layer"], "layer ℓ"), **places[3])
    title = "Which prompts are answered, by group"
    return finish(figure, title, found, "bars: 95 % intervals")


@draws("squashlens.sublayer_effects", NET, "wrong right: half", CHANCE)
def sublayer_repairs(found: xr.Dataset) -> go.Figure:
    """Draw the share of prompts that is repaired, less what is broken, without a sublayer, beside random vectors.

    Only prompts of the half that did not select, and no single heads. The dotted line is what the same selection
    reaches by chance.

    Args:
        found: a result of `squashlens.sublayer_effects`, or several by label.

    Returns:
        The figure.
    """
    figure = go.Figure()
    confirming = labelled(found, half="confirm")
    for order, (sublayer, name) in enumerate(SUBLAYERS.items()):
        if sublayer not in confirming["sublayer"]:
            continue
        without = confirming.sel(sublayer=sublayer)
        look = series(order)
        net = line(with_interval(without, "net"), f"without {name}", **look)
        figure.add_trace(net)
        if without["net_random"].notnull().any():
            look = look | {"dash": "dot", "size": 4}
            random = line(without["net_random"], f"random vector in {name}", **look)
            figure.add_trace(random)
    # What the same selection reaches by chance: with random changes or, if there are none, with shuffled answers.
    limit = found["selected_net_random_limit"]
    limit = limit.fillna(found["selected_net_shuffled_limit"])
    guide(figure, 0.0, float(limit))
    figure.update_xaxes(steps(found["block"], "block"))
    # Few prompts have intervals beyond all of them.
    ends = {"minallowed": -1.04, "maxallowed": 1.04}
    figure.update_yaxes(ends, title="net share of prompts")
    block = found["selected_block"].item()
    notes = [
        f"selected: {found['selected_sublayer'].item()} of block {block}",
        "bars: 95 % intervals",
        "dotted lines: 0, and what selected random vectors reach",
    ]
    title = "What is repaired, less what is broken, without a sublayer?"
    return finish(figure, title, found, *notes)


@draws(
    "squashlens.distinguishable_lengths",
    "recovery: ... layer",
    "recovery_y chance: ...",
)
def separation_curve(
    separation: xr.Dataset | Mapping[str, xr.Dataset],
) -> go.Figure:
    """Draw the share of lengths that another run recovers, by layer, with random weights and chance beside it.

    Several results by label, or several runs of one, are lines of one panel.

    Args:
        separation: a result of `squashlens.distinguishable_lengths`, or several by label.

    Returns:
        The figure.
    """
    several: Any = separation  # by label
    lines: dict[str, xr.Dataset] = {}
    for label, found in several.items():
        if "run" not in found.dims:
            lines[label] = found
            continue
        for run in found["run"].values:
            lines[f"{label} {run}".strip()] = found.sel(run=run)
    figure = go.Figure()
    for found in lines.values():
        if "recovery_random" in found:
            random = _by_layer(found, "recovery_random", "random weights", **RANDOM)
            figure.add_traces(random)
    for order, (label, found) in enumerate(lines.items()):
        look = series(order) | {"width": 2.0}
        figure.add_traces(_by_layer(found, "recovery", label or "model", **look))
    guide(figure, *_chances(lines))
    figure.update_xaxes(_layers_and_y(*lines.values()))
    figure.update_yaxes(title="lengths recovered", range=SHARES)
    title = "Lengths that can be told apart"
    return finish(figure, title, lines.values(), "dotted line: chance")


def _layers_and_y(*several: xr.Dataset) -> dict[str, Any]:
    """An axis of layers, and of y as the layer after the last; its title says where y is, perhaps at several places."""
    tops = np.unique([found["layer"][-1] + 1 for found in several])
    numbers = ", ".join(tops.astype(str))
    return steps(np.append(tops, 0), f"layer ℓ ({numbers}: y, after the final norm)")


def _by_layer(
    found: xr.Dataset, name: str, text: str, **style: Any
) -> list[go.Scatter]:
    """A variable by layer, with that of y, `{name}_y`, as the layer after the last; with models of random weights as a
    further dimension, a curve for each.

    `text` is the name of the curves, and `style` are arguments of `line`.
    """
    y = found[f"{name}_y"].expand_dims(layer=[int(found["layer"][-1]) + 1])
    values = xr.concat([found[name], y], dim="layer").transpose(..., "layer")
    if values.ndim == 1:
        values = values.expand_dims("model")
    return [line(row, text, **style) for row in values]


@draws("squashlens.diagnose", "log_odds log_odds_after log_odds_noise: pair")
def verdict_odds(found: xr.Dataset) -> go.Figure:
    """Draw the log-odds of each two answers after both prompts, and the verdict on each pair.

    A model that prefers each prompt's own answer has the first above 0 and the second below. The symbol says what
    became of the change.

    Args:
        found: a result of `squashlens.diagnose`, or several by label.

    Returns:
        The figure.
    """
    kind = "length" if "length" in found.coords else "answer"
    texts = []
    for pair in range(found.sizes["pair"]):
        first = str(found[kind].values[pair])
        second = str(found[f"{kind}_after"].values[pair])
        texts.append(
            escape(f"{shortened(first, ANSWER)} | {shortened(second, ANSWER)}")
        )
    x = np.arange(len(texts))
    figure = go.Figure()
    guide(figure, 0)
    blue = COLOURS["path_bound"]
    first = found["log_odds"].values
    second = found["log_odds_after"].values
    figure.add_trace(curve(x, first, "after the first prompt", colour=blue, size=5))
    figure.add_trace(curve(x, second, "after the second", colour=BROWN, size=5))
    verdicts = found["verdict"].values.astype(str)
    height = ABOVE * np.abs([first, second]).max()
    above = np.full(len(x), height if height > 0 else 1.0)
    hovers = np.array(texts)
    add_marks(figure, x, above, kinds=verdicts, looks=VERDICTS, texts=hovers, size=10)
    axes = {"length": "lengths of the two prompts", "answer": "right answers"}
    figure.update_xaxes(tickvals=x, ticktext=texts, title=axes[kind])
    figure.update_yaxes(title="log-odds of first and second answer (nats)")
    note = "symbols: the verdict on each pair"
    title = "Which of the two answers is preferred"
    return finish(figure, title, found, note, height=300)


@draws(
    "squashlens.diagnose", "margin: pair layer", "margin_y verdict: pair", usual=False
)
def verdict_margins(found: xr.Dataset) -> go.Figure:
    """Draw how far the two prompts of each pair are apart at the last token, in units of their rounding, by layer.

    Args:
        found: a result of `squashlens.diagnose`, or several by label.

    Returns:
        The figure.
    """
    figure = go.Figure()
    for pair, verdict in enumerate(found["verdict"].values.astype(str)):
        symbol, colour = VERDICTS.get(verdict, VERDICTS["undecided"])
        look = {"symbol": symbol, "colour": colour, "width": 1.2, "size": 5}
        margin = _by_layer(found.isel(pair=pair), "margin", verdict, log=True, **look)
        figure.add_traces(margin)
    guide(figure, 1)
    figure.update_xaxes(_layers_and_y(found))
    heights = log_axis(found["margin"], found["margin_y"], [1])
    figure.update_yaxes(heights, title="distance ÷ rounding")
    notes = ["lines: pairs, by verdict", "dotted line: as far as rounding"]
    return finish(figure, "Can the two prompts be told apart?", found, *notes)
