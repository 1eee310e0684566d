"""Every figure draws the values of its result: each generator below yields what is drawn, and what it must be."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import squashlens as sl
from squashlens.figures.drawing.page import Page
from squashlens.figures.drawing.text import escape
from squashlens.figures.readouts import PANELS
from tests.figures import specimens
from tests.figures.specimens import MEASUREMENTS

Pairs = Iterator[tuple[Any, Any]]
LAST = 26  # layer of the specimens


def named(figure: Any, *axes: str, mode: str = "lines") -> dict[str, Any]:
    """The first trace of each name that is drawn in one of these panels with this mode; all panels without one."""
    found = [t for t in figure.data if t.type != "scatter" or mode in t.mode]
    return {t.name: t for t in reversed(found) if not axes or t.yaxis in axes}


def ends(bars: Any, at: Any) -> tuple[np.ndarray, np.ndarray]:
    """The upper and lower ends of error bars around some values."""
    middle = np.asarray(at, float)
    return middle + np.asarray(bars.array, float), middle - np.asarray(
        bars.arrayminus, float
    )


def attribution() -> Pairs:
    found = specimens.bound_vs_jacobian(20)
    lines = named(sl.figures.attribution(found))
    for name, variable in (
        ("path bound", "path_bound"),
        ("under uniform attention", "null"),
        ("Jacobian", "jacobian"),
        ("attention frozen", "jacobian_frozen"),
        (None, "bound_over_null"),
    ):
        yield lines[name].y, found[variable]
    around = {
        f"jacobian_{end}": found["jacobian"] * factor
        for end, factor in (("low", 0.5), ("high", 3))
    }
    whole = named(sl.figures.attribution(found.assign(around)))["Jacobian"]
    yield (
        ends(whole.error_y, whole.y),
        (around["jacobian_high"], around["jacobian_low"]),
    )


def by_token() -> Pairs:
    found = specimens.with_low(20)
    (line,) = sl.figures.by_token(found).data
    yield line.y, found
    yield ends(line.error_y, line.y), (found, found["low"])


def bound_against_jacobian() -> Pairs:
    """Without BOS and the last token, and without tokens that a logarithm cannot show."""
    found = specimens.bound_vs_jacobian(20)
    found["path_bound"][4] = 0
    figure = sl.figures.bound_against_jacobian(found)
    lines = named(figure, mode="markers")
    kept = [place for place in range(1, 19) if place != 4]
    yield lines["path bound"].x, found["path_bound"][kept]
    yield lines["path bound"].y, found["jacobian"][kept]
    yield lines["under uniform attention"].x, found["null"][1:19]
    yield lines["under uniform attention"].y, found["jacobian"][1:19]
    notes = Page.of(figure).notes
    assert "Spearman's ρ 0.8 [0.45, 0.9]" in notes
    assert "Spearman's ρ 0.2 [−0.15, 0.3] (null)" in notes


def jacobian() -> Pairs:
    found = specimens.jacobian(20)
    (cells,) = sl.figures.jacobian(found).data
    yield cells.z, found["singular_value"].transpose("direction", "position")
    few = found.isel(position=[2, 5])
    yield [t.y for t in sl.figures.jacobian(few).data], few["singular_value"]


def token_map() -> Pairs:
    found = specimens.map_of(20)
    (cells,) = sl.figures.token_map(found).data
    yield cells.customdata, found
    yield cells.z, np.log10(found.where(found > 0))


def composition() -> Pairs:
    found = specimens.composition(20)
    for shares, figure in (
        (found, sl.figures.composition(found)),
        (specimens.hops(), sl.figures.hops(specimens.hops())),
    ):
        (cells,) = figure.data
        yield cells.customdata, shares
        yield cells.z, np.log10(np.maximum(shares, 1e-6))
    (cells,) = sl.figures.composition(found.isel(position=[4, 2])).data
    yield cells.x, [2, 3, 4]
    yield np.asarray(cells.customdata, float)[:, [0, 2]], found[:, [2, 4]]
    yield (
        np.asarray(cells.z, float)[:, 1],
        np.full(27, np.nan),
    )  # between two selected tokens


def strongest_paths() -> Pairs:
    """Paths that start at the first token are left out, if there are others."""
    found = MEASUREMENTS["strongest_paths"]()
    walks = found["position_at"].isel(layer=0)
    assert 0 < (walks == 0).sum() < walks.size
    others = found.isel(path=(walks != 0).values)
    lines = sl.figures.strongest_paths(found).data[::-1]
    strongest = others["share"].max()
    for rank, line in enumerate(lines):
        yield line.x, others["position_at"][rank]
        yield line.y, found["layer"]
        yield line.line.width, 1.5 + 6 * others["share"][rank] / strongest
    sunk = found.isel(path=(walks == 0).values)
    yield len(sl.figures.strongest_paths(sunk).data), sunk.sizes["path"]


def depth_limit() -> Pairs:
    found = specimens.depth_limit()
    lines = [t for t in sl.figures.depth_limit(found).data]
    for at, block in enumerate(
        (11, 7, 4, 0)
    ):  # of twelve: the slowest, the fastest and two between them
        yield lines[2 * at].y, found["rest"].sel(block=block)
        law = np.asarray(lines[2 * at + 1].y)
        yield law[0], found["rest"].sel(block=block)[1]  # at depth 1
        yield (
            law[1:] / law[:-1],
            np.full(len(law) - 1, found["predicted_rate"].sel(block=block)),
        )


def influence_by_distance() -> Pairs:
    found = specimens.influence_by_distance()
    fits = found["exponent_at_end"] == 0
    layer = int(fits.sel(quantity="path_bound").argmax())
    figure = sl.figures.influence_by_distance(found.isel(layer=slice(layer, None)))
    one = found.sel(quantity="path_bound", layer=layer)
    dots, law = (
        named(figure, "y2", mode="markers")["model"],
        named(figure, "y2")["fitted law"],
    )
    size = one["influence"].mean()
    yield dots.x, one["distance"] + 1
    yield dots.y, one["influence"] / size
    fitted = one["amplitude"] * (one["distance"] + 1.0) ** -one["exponent"]
    yield law.y, (one["floor"] + fitted) / size
    powers = found["exponent"].sel(quantity="path_bound")
    yield (
        named(figure, "y4")["model"].y,
        powers.where(fits.sel(quantity="path_bound"))[layer:],
    )
    random = found["influence"].sel(quantity="jacobian_random", layer=layer)
    yield named(figure, "y")["random weights"].y, random / random.mean()
    none = found.assign(exponent_at_end=found["exponent_at_end"] > -1)
    names = {trace.name for trace in sl.figures.influence_by_distance(none).data}
    assert "fitted law" not in names


def head_statistics() -> Pairs:
    found = specimens.MEASUREMENTS["head_statistics"]()
    yield sl.figures.head_statistics(found).data[0].z, found["sink_rate"]


def token_influence() -> Pairs:
    found = specimens.MEASUREMENTS["token_influence"]()
    yield (
        sl.figures.token_influence(found.sel(query=[5])).data[0].z,
        np.log10(found["path_bound"].sel(query=5)),
    )


def needle_sensitivity() -> Pairs:
    found = specimens.needle_sensitivity()
    lines = [t for t in sl.figures.needle_sensitivity(found).data]
    for line, group in zip(lines, found["group"].values, strict=False):
        here = found.sel(group=group)
        yield line.y, here["jacobian_mean"]
        yield ends(line.error_y, line.y), (here["jacobian_high"], here["jacobian_low"])
    assert len(lines) == 4 * found.sizes["group"]


def collapse_curve() -> Pairs:
    found = specimens.collapse()
    last, heads = found.sel(layer=LAST), found.sel(block=LAST - 1)
    figure = sl.figures.collapse_curve(found, trained=16)
    lines = named(figure)
    yield lines["v and v*"].y, last["distance"]
    yield lines["contrast: another last token"].y, last["contrast"]
    yield lines["noise floor"].y, last["noise_floor"]
    yield (
        [t.y for t in figure.data if t.name.startswith("attention heads")],
        (heads["head_max"], heads["head_min"], heads["head_mean"]),
    )
    yield (
        [t.y for t in figure.data if t.name == "unrelated: other content"],
        last["unrelated"],
    )
    yield (figure.layout.shapes[0].x0, figure.layout.shapes[0].x1), (1, 16)
    yield (
        named(sl.figures.collapse_curve(found.sel(layer=[3])))["v and v*"].y,
        found["distance"][3],
    )
    many = found.isel(length=[0] * 200, replayed=[0]).assign_coords(
        length=np.arange(1, 201)
    )
    many["distance"][:] = 10.0 ** (
        np.arange(200) % 3
    )  # periods of three are one band, and a median
    low, high, middle = [
        t.y for t in sl.figures.collapse_curve(many).data if t.legendgroup == "v and v*"
    ]
    yield (low[-1], high[-1], middle[-1]), (100, 1, 10)
    assert "band: smallest" in str(Page.of(sl.figures.collapse_curve(many)).notes)


def collapse_heatmap() -> Pairs:
    found = specimens.relative(specimens.collapse())
    yield sl.figures.collapse_heatmap(found).data[0].z, np.log10(found["distance"])
    absolute = specimens.collapse()
    yield (
        sl.figures.collapse_heatmap(absolute).data[0].z,
        np.log10(absolute["distance"] / absolute["rms"]),
    )


def collapse_mechanism() -> Pairs:
    found = MEASUREMENTS["collapse_mechanism"]()
    figure = sl.figures.collapse_mechanism(found.sel(length=slice(16)))
    for axis, variable in (("y", "attention_tv_mean"), ("y2", "self_weight_mean")):
        block = int(found["self_weight_mean"].sel(length=16).argmin("block"))
        values = found[variable].sel(block=block, length=slice(16))
        yield named(figure, axis)[f"block {block}"].y, values
    for name in ("observed", "bound"):
        yield named(figure, "y3")[name].y, found[name].sel(length=slice(16))
    for name, part in (
        ("from residual stream before it", "residual"),
        ("from attention", "attention"),
        ("from MLP", "mlp"),
    ):
        yield named(figure, "y4")[name].y, found["share"].sel(part=part, length=16)


def separation() -> Pairs:
    found = MEASUREMENTS["distinguishable_lengths"]()
    *random, own = sl.figures.separation_curve({"ones": found}).data
    yield (
        [line.y for line in random],
        np.c_[found["recovery_random"], found["recovery_random_y"]],
    )
    yield own.y, np.append(found["recovery"], found["recovery_y"])


def answers() -> Pairs:
    deep = MEASUREMENTS["answer_by_layer"]()
    flat = deep.isel(layer=slice(3))
    figure = sl.figures.answer_curve({"deep": deep, "flat": flat})
    yield figure.data[1].x, flat["layer"]
    yield figure.data[1].y, flat["mean_likeliest"].sel(scored="right answer")


def way() -> Pairs:
    found = specimens.answer_way()
    figure = sl.figures.answer_way(found)
    right, rival, *controls, attention, mlp = figure.data
    probability = found["probability"].isel(prompt=0)
    yield right.y, probability.sel(scored="right answer")
    yield rival.y, found["rival_probability"][0]
    yield [control.y for control in controls], probability[1:]
    for bars, sublayer in ((attention, "attention"), (mlp, "mlp")):
        part = found.isel(prompt=0).sel(sublayer=sublayer)
        yield bars.y, part["written"]
        beyond = part["written"] > part["written_by_chance"]
        yield np.array(bars.marker.opacity) == 1, beyond


def groups() -> Pairs:
    found = specimens.made_up(sl.figures.answers_by_group)
    figure = sl.figures.answers_by_group(found)
    yield figure.data[0].y, found["mean_answered"]
    last = found["mean_probability"].isel(layer=-1)
    yield figure.data[1].y, last[0]
    ways = figure.data[-found.sizes["group"] :]
    yield [way.y for way in ways], found["mean_probability"][0]


def verdict() -> Pairs:
    found = MEASUREMENTS["diagnose"]()
    lines = named(sl.figures.verdict_odds(found))
    yield lines["after the first prompt"].y, found["log_odds"]
    yield lines["after the second"].y, found["log_odds_after"]
    yield (
        named(sl.figures.verdict_odds(found), mode="markers")["lost"].x,
        np.flatnonzero(found["verdict"] == "lost"),
    )
    yield sl.figures.verdict_margins(found).data[3].y[:-1], found["margin"].sel(pair=3)


def models() -> Pairs:
    """A row for each group or set of blocks, with its interval along x."""
    found = specimens.two_models()
    for row, model in zip(
        sl.figures.lost_shares(found).data, found["model"], strict=True
    ):
        shares = found.sel(model=model)
        yield row.x, shares["right"]
        yield row.y, range(5)
        yield ends(row.error_x, row.x), (shares["right_high"], shares["right_low"])
    lost = np.flatnonzero(found["outcome"] == "lost")
    marks = named(sl.figures.lost_answers(found), mode="markers")["lost"]
    yield marks.x, found["lead"].sel(model="reference")[lost]
    yield marks.y, found["lead"].sel(model="other")[lost]
    kept = MEASUREMENTS["blocks_to_keep"]()
    (row,) = sl.figures.kept_blocks(kept).data
    yield row.x, kept["right"]


def retained_by_kind() -> Pairs:
    found = specimens.ablation()
    for layer, block in ((LAST, 0), (3, 4)):
        part = found.sel(layer=[layer], from_block=[block])
        dots, bar, mark, *rest = sl.figures.retained_by_kind(part).data
        kept = found["retained"].sel(edit="delete_keep_positions", layer=layer)
        yield dots.x, kept
        yield (bar.x[0], mark.x[0], bar.x[1]), np.quantile(kept, [0.25, 0.5, 0.75])
        yield (
            rest[-3].x,
            found["retained_from"].isel(hook=-1).sel(layer=layer, from_block=block),
        )


def changes() -> Pairs:
    found = specimens.compare_interventions()
    columns = (
        found["distance"].isel(layer=-1),
        found["accuracy"],
        found["bound"][:, :1] / found["bound"].sum("content"),
    )
    traces = iter(sl.figures.changes(found).data)
    for values in columns:
        for row, own in enumerate(values.values):
            dots = next(traces)
            yield dots.x, own
            yield dots.y, np.full(len(own), row)
            middle = np.mean(own)  # of right answers, the share of all
            if values is not columns[1]:
                next(traces)  # the bar over the middle half
                middle = np.median(own)
            mark = next(traces)
            yield (mark.x[0], mark.y[0]), (middle, row)


def accuracy() -> Pairs:
    found = specimens.evaluate_task(0)
    lines = named(sl.figures.task_accuracy(found))
    for name, mode in (
        ("answer only", "answer_only"),
        ("chain of thought, examples", "cot_few_shot"),
    ):
        here = found.sel(mode=mode)
        yield lines[name].y, here["accuracy"]
        yield (
            ends(lines[name].error_y, lines[name].y),
            (here["accuracy_high"], here["accuracy_low"]),
        )


def errors() -> Pairs:
    found = specimens.evaluate_task(0)
    figure = sl.figures.task_error(found)
    dots, line = figure.data[:2]
    here = found.sel(mode="answer_only")
    yield dots.y, here["error"].values.ravel()
    yield line.y, here["median_error"]
    yield ends(line.error_y, line.y), (here["error_q3"], here["error_q1"])


def frequencies() -> Pairs:
    found = specimens.frequencies(1)
    traces = iter(sl.figures.answer_frequencies(found).data)
    for mode in found["mode"].values:
        for name in ("said", "truth"):
            bar = next(traces)
            yield bar.x, found["value"].astype(int)
            yield bar.y, found[name].sel(mode=mode)


def readout() -> Pairs:
    found = specimens.readout()
    figure = sl.figures.collapse_vs_readout(found)
    for axis, curves in zip(("y", "y2", "y3"), PANELS.values(), strict=True):
        for name, (text, _) in curves.items():
            yield named(figure, axis)[text].y, found[name]
    (line,) = [t for t in figure.data if t.yaxis == "y4" and t.mode == "lines+markers"]
    yield line.y, found["distance"].median("seed")


def probe() -> Pairs:
    found = MEASUREMENTS["probe"]()
    own, other = sl.figures.probe(found).data
    yield own.customdata, np.vstack([found["r2"], found["r2_y"]])
    yield (
        other.customdata,
        np.vstack([found["r2_random_model"], found["r2_random_model_y"]]),
    )
    all_lengths = found.assign(
        r2_overall=("layer", np.linspace(0, 1, 27)), r2_overall_y=((), 0.7)
    )
    cells = sl.figures.probe(all_lengths.drop_vars("r2_random_model")).data[0]
    yield np.asarray(cells.customdata)[:, -1], [*np.linspace(0, 1, 27), 0.7]


def top_tokens() -> Pairs:
    found = specimens.top_tokens()
    yield sl.figures.top_tokens(found).data[0].x, found


def total_variation() -> Pairs:
    found = specimens.total_variation()
    derived, line = sl.figures.synthetic_total_variation(found).data
    values = found["total_variation"]
    yield line.y, values.mean("seed")
    yield ends(line.error_y, line.y), (values.max("seed"), values.min("seed"))
    yield derived.y, found["expected"]
    beyond = [
        sl.synthetic.softmax_total_variation([first, 200, 400, 800], k=20)
        for first in (20, 30)
    ]
    assert not any(
        sl.figures.synthetic_total_variation(one).layout.shapes for one in beyond
    )


def repeat_tokenization() -> Pairs:
    found = specimens.repeat_tokenization()
    figure = sl.figures.repeat_tokenization(found.sel(layer=[3]))
    for axis, form in (("y", 0), ("y2", 1)):
        here = found.sel(layer=3).isel(form=form)
        yield named(figure, axis)["true pair"].y, here["distance"]
        yield named(figure, axis)["two texts"].y, here["naive"]


def lines() -> Pairs:
    distance = specimens.collapse()["distance"]
    mean: Any = sl.figures.of(distance.mean("length"))
    yield mean.data[0].y, distance.mean("length")
    yield mean.data[0].x, distance["layer"]
    few = distance.isel(length=slice(3))
    for several in (few, few.transpose("length", "layer")):
        for line, length in zip(
            sl.figures.of(several).data, few["length"].values, strict=True
        ):
            yield line.y, distance.sel(length=length)
    (cells,) = sl.figures.of(distance).data
    yield cells.z, np.log10(distance)
    assert sl.figures.of(few.rename(length="from_block")).data[0].name == "from block 1"


CASES: list[Callable[[], Pairs]] = [
    case for case in [*globals().values()] if inspect.isgeneratorfunction(case)
]


@pytest.mark.parametrize("case", CASES, ids=[case.__name__ for case in CASES])
def test_a_figure_draws_its_values(case: Callable[[], Pairs]) -> None:
    compared = 0
    for drawn, expected in case():
        np.testing.assert_allclose(
            np.asarray(drawn, float), np.asarray(expected, float), rtol=1e-5
        )
        compared += 1
    assert compared


def test_convergence_draws_d_and_delta_with_their_bands() -> None:
    """The sentence has the exponent and no verb, also of ALiBi, which has floors."""
    stacks = {
        "plain": sl.synthetic.Stack(projections="direct"),
        "<b>deep</b>": sl.synthetic.Stack(depth=2),
    }
    stacks |= {"alibi": sl.synthetic.Stack(encoding="alibi")}
    lengths = [10, 50, 200, 400, 800]
    several = {
        name: sl.synthetic.convergence(stack, lengths) for name, stack in stacks.items()
    }
    figure = sl.figures.synthetic_convergence(several)
    traces = iter(figure.data)
    for name, found in several.items():
        for axis, data in (
            ("y", found["distance"][:, -1]),
            ("y2", found["total_variation"][:, 0]),
        ):
            for trace, edge in zip(
                (next(traces), next(traces), next(traces)),
                ("max", "min", "mean"),
                strict=True,
            ):
                np.testing.assert_allclose(
                    np.asarray(trace.y, float), getattr(data, edge)("seed"), rtol=1e-12
                )
                assert trace.yaxis == axis
        shown = escape(name)
        exponent = f"{found['exponent_mean'].values[-1]:.3f}".replace("-", "−")
        assert trace.name.startswith(f"{shown}: D ∝ n^{exponent}")
        if name == "plain":
            guide = next(
                traces
            )  # the derived exponent, through the middle of the curve
            np.testing.assert_allclose(
                np.asarray(guide.y) * lengths, guide.y[0] * lengths[0]
            )
    assert next(traces, None) is None
