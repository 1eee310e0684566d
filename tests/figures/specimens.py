"""Figures to look at: one of each measurement, as small as it can be, and some with long prompts and many names."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

import squashlens as sl
from squashlens.checks.results import dims_by_name
from squashlens.figures.readouts import VERDICTS
from squashlens.records.provenance import with_provenance
from tests import measurements

WORDS = (
    "The",
    " quick",
    " brown",
    "<b>fox</b>",
    "\n",
    " incomprehensibilities",
    "110",
    "漢字",
    "$5 to $9",
    "<bos>",
)
LONG = "meta-llama/Llama-3.1-70B-Instruct, 4-bit"
FACTS = {
    "model": LONG,
    "dtype": "bfloat16",
    "call": {"function": "made", "norm": "linf", "prompt": "$5 to <b>$9"},
}
NO_FIGURE = ("shares_and_counts", "splits")
NAMES_OF_SHARES = {"layer": "composition", "hop": "hops", "block": "attention_sinks"}
LENGTHS = (1, 2, 3, 5, 8, 16, 32, 64, 100, 150, 200, 250)


@cache
def drawn() -> dict[str, go.Figure]:
    """Figures with as much in them as a study of a large model gives."""
    results: dict[str, Any] = {
        **{name: make() for name, make in MEASUREMENTS.items()},
        "attribution 250": bound_vs_jacobian(250),
        "by_token 250": bound(250),
        "profile map": map_of(20),
        "profile map 250": map_of(250),
        "with low": with_low(20),
        "composition 250": composition(250),
        "jacobian 250": jacobian(250),
        "accuracy": {name: evaluate_task(at) for at, name in enumerate(labels(6))},
        "answer_frequencies": {
            name: frequencies(at) for at, name in enumerate(labels(2))
        },
        "convergence": {
            f"depth {d}, MLP": measurements.result("convergence")
            for d in (1, 2, 4, 8, 16)
        },
        "two prompts": {"first": bound_vs_jacobian(20), LONG: bound_vs_jacobian(60)},
        "four maps": {name: composition(12) for name in labels(4)},
    }
    found = {name: sl.figures.of(one) for name, one in results.items()}
    several = {name: evaluate_task(at) for at, name in enumerate(labels(3))}
    found["task_error"] = sl.figures.task_error(several)
    found["collapse_heatmap"] = sl.figures.collapse_heatmap(relative(collapse()))
    found["bound_against_jacobian"] = sl.figures.bound_against_jacobian(
        bound_vs_jacobian(20)
    )
    found["collapse_panels"] = sl.figures.collapse_curve(
        {name: collapse() for name in labels(4)}, trained=16
    )
    found["retained_by_kind"] = sl.figures.retained_by_kind(ablation())
    found["answer_way"] = sl.figures.answer_way(answer_way())
    found["plain map"] = sl.figures.of(
        ablation()["retained_from"].isel(hook=0, length=-1)
    )
    found["lost_shares"] = sl.figures.lost_shares(two_models())
    found["verdict_margins"] = sl.figures.verdict_margins(judged())
    found["by_group"] = sl.figures.of(made_up(sl.figures.answers_by_group))
    found["substitution"] = sl.figures.of(made_up(sl.figures.substitution))
    found["mixture"] = sl.figures.panels(
        {"map": composition(20), "bars": top_tokens(), "curves": bound_vs_jacobian(20)}
    )
    return found


def labels(count: int) -> list[str]:
    return [f"{LONG} {at}" if at % 2 else f"gemma {at}" for at in range(count)]


def tokens(count: int) -> list[str]:
    return [WORDS[at % len(WORDS)] for at in range(count)]


def answer_way() -> xr.Dataset:
    """The way of an answer with long names."""
    found = made(
        {
            "scored": ["right answer", "other prompts' answers", "random weights 0"],
            "prompt": [0],
            "layer": range(27),
            "block": range(26),
            "sublayer": ["attention", "mlp"],
        },
        "probability: scored prompt layer",
        "rival_probability: prompt layer",
        "answered: prompt",
        "written written_by_chance: prompt block sublayer",
        share="probability rival answered",
    )
    return found.assign_coords(
        answer=("prompt", ["$5 to $9 incomprehensibilities"]),
        rival=("prompt", ["<b>fox</b>"]),
    )


def made(
    coords: Mapping[str, Sequence[Any]], *variables: str, share: str = ""
) -> xr.Dataset:
    """A Dataset with positive numbers of many sizes in each variable, named with its dimensions as for `draws`.

    Variables of which `share` has the start of the name are between 0 and 1.
    """
    dims_of = dims_by_name(variables)
    draw = np.random.default_rng(len(dims_of) + sum(map(len, coords.values())))
    found = xr.Dataset(
        coords={name: (name, np.asarray(values)) for name, values in coords.items()}
    )
    for name, text in dims_of.items():
        dims = [dim for dim in text.split() if dim != "?"]
        values = 10.0 ** draw.uniform(-4, 1, [found.sizes[dim] for dim in dims])
        found[name] = (
            dims,
            1 / (1 + values) if name.startswith(tuple(share.split())) else values,
        )
    return with_provenance(found, FACTS)


def ends(name: str) -> str:
    """A variable and the ends of its interval."""
    return f"{name} {name}_low {name}_high"


def two_models() -> xr.Dataset:
    outcomes = ["kept", "lost", "gained", "wrong in both", "within noise"] * 12
    found = made(
        {"model": ["reference", "other"], "prompt": range(60), "group": labels(5)},
        "lead: model prompt",
        f"{ends('right')}: model group",
        share="right",
    )
    answers = ("prompt", tokens(60))
    return found.assign_coords(outcome=("prompt", outcomes), answer=answers)


def with_tokens(found: Any, dim: str = "position") -> Any:
    return found.assign_coords(
        token=(dim, np.array(tokens(found.sizes[dim]), dtype=object))
    )


def bound_vs_jacobian(count: int) -> xr.Dataset:
    names = "path_bound null jacobian_frozen jacobian bound_over_null"
    found = with_tokens(made({"position": range(count)}, f"{names}: position"))
    ranks = {
        "rank_agreement": 0.8,
        "rank_agreement_low": 0.45,
        "rank_agreement_high": 0.9,
    }
    agreement = {
        name: ("estimate", [value, value - 0.6]) for name, value in ranks.items()
    }
    estimates = {"estimate": ["path_bound", "null"]}
    return (
        found.assign(agreement)
        .assign(compared_tokens=count - 2)
        .assign_coords(estimates)
    )


def bound(count: int) -> xr.DataArray:
    found = with_tokens(made({"position": range(count)}, "value: position"))["value"]
    found.attrs |= {
        "long_name": "upper bound on the influence of each token on the query",
        "units": "‖∂y‖/‖∂v‖",
    }
    return found


def map_of(count: int) -> xr.DataArray:
    """One query of a profile, with nothing after it."""
    found = with_tokens(
        made({"layer": range(27), "position": range(count)}, "value: layer position")
    )["value"]
    found = found.assign_coords(query=count - 3).where(
        found["position"] < count - 2, 0.0
    )
    found.attrs |= {"long_name": "Jacobian norm", "units": "1"}
    return found


def with_low(count: int) -> xr.DataArray:
    """Upper bounds with lower bounds, of which one is 0."""
    found = bound(count)
    low = found.values / 30
    low[3] = 0
    return found.assign_coords(low=("position", low))


def shares(count: int, **rows: range) -> xr.DataArray:
    """A share of each token in each row of one dimension."""
    (dim,) = rows
    name = NAMES_OF_SHARES[dim]
    return with_tokens(
        made(rows | {"position": range(count)}, f"{name}: {dim} position", share=name)
    )[name]


def composition(count: int) -> xr.DataArray:
    return shares(count, layer=range(27))


def paths(count: int) -> xr.Dataset:
    found = made(
        {"path": range(8), "layer": range(27), "position": range(count)},
        "share: path",
        share="share",
    )
    walks = np.sort(np.random.default_rng(0).integers(0, count, (8, 27)), axis=1)
    return with_tokens(found.assign(position_at=(("path", "layer"), walks)))


def depth_limit() -> xr.Dataset:
    found = made(
        {"block": range(12), "depth": range(33)},
        "predicted_rate observed_rate: block",
        share="p o",
    )
    rest = (1 + found["block"]) / 13 * 0.9 ** found["depth"]
    return found.assign(rest=rest)


def needle_sensitivity() -> xr.Dataset:
    names = ("jacobian", "path_bound", "bound_over_null", "output_change", "kl")
    variables = " ".join(
        f"{name}_{side}" for name in names for side in ("mean", "low", "high")
    )
    coords = {
        "group": [f"{text} {at}" for at, text in enumerate(("short", LONG) * 4)],
        "number": LENGTHS,
    }
    return made(coords, f"{variables} prompts: group number")


def collapse() -> xr.Dataset:
    coords = {
        "layer": range(27),
        "length": LENGTHS,
        "draw": range(3),
        "replayed": LENGTHS[::4],
    }
    return made(
        coords | {"block": range(26), "head": range(16)},
        "distance contrast rms: layer length",
        "noise_floor: layer replayed",
        "head_min head_mean head_max: block length",
        "head_distance: block head length",
        "unrelated: draw layer length",
    )


def relative(found: xr.Dataset) -> xr.Dataset:
    found["distance"].attrs["units"] = measurements.result("collapse relative")[
        "distance"
    ].attrs["units"]
    return found


def ablation() -> xr.Dataset:
    edits = [
        "none",
        "separators",
        "delete",
        "delete_keep_positions",
        "substitute",
        "extra_digits",
        "random_places",
    ]
    hooks = [
        "mask",
        "zero_attention",
        "zero_values",
        "zero_residual",
        "mean_residual",
        "resample_residual",
    ]
    coords = {
        "edit": edits,
        "layer": range(27),
        "length": LENGTHS,
        "hook": hooks,
        "from_block": range(26),
    }
    more = "distance_from retained_from: hook from_block layer length"
    return made(coords, "distance retained: edit layer length", more, share="retained")


def repeat_tokenization() -> xr.Dataset:
    joined = {
        name: measurements.result("repeat_tokenization").isel(form=0)
        for name in "abcdef"
    }
    found = xr.concat(
        list(joined.values()), dim="form", combine_attrs="drop"
    ).drop_vars("between")
    return found.assign_coords(form=labels(6))


def hops() -> xr.DataArray:
    return shares(60, hop=range(27))


def sinks() -> xr.DataArray:
    return shares(60, block=range(26)).assign_coords(
        sink=("position", np.arange(60) == 0)
    )


def influence_by_distance() -> xr.Dataset:
    """All four quantities, in a model of many layers."""
    quantities = ["path_bound", "jacobian", "path_bound_random", "jacobian_random"]
    found = made(
        {"quantity": quantities, "layer": range(27), "distance": range(250)},
        f"{ends('exponent')} floor amplitude exponent_at_end: quantity layer",
        "influence: quantity layer distance",
    )
    return found.assign(exponent_at_end=found["exponent_at_end"] > 1)


def jacobian(count: int) -> xr.Dataset:
    coords = {"position": range(count), "direction": range(8)}
    return with_tokens(
        made(coords, "singular_value share: position direction", share="share")
    )


def total_variation() -> xr.Dataset:
    numbers = {
        "exponent_mean": -1.0,
        "leading_mean": -1.0,
        "rate": -1.0,
        "perturbed": 30,
    }
    numbers |= {
        f"{name}_{end}": -1.1
        for name in ("exponent", "leading")
        for end in ("low", "high")
    }
    found = made(
        {"seed": range(5), "length": LENGTHS},
        "total_variation: seed length",
        "expected: length",
    )
    return found.assign(numbers)


def compare_interventions() -> xr.Dataset:
    changes = [
        "as it is",
        *(
            f"{name} of block {at}"
            for at, name in enumerate(["mean ablation", LONG] * 6)
        ),
    ]
    coords = {
        "change": changes,
        "layer": range(4),
        "length": LENGTHS,
        "content": range(20),
    }
    names = (
        "distance: change layer length",
        "bound: change content",
        "accuracy: change length",
    )
    return made(coords, *names, share="accuracy")


def evaluate_task(seed: int) -> xr.Dataset:
    """Answers with errors of both directions, some of them not read, in three modes."""
    rng = np.random.default_rng(seed)
    modes, lengths = ["answer_only", "cot", "cot_few_shot"], LENGTHS[:8]
    shape = (len(modes), len(lengths), 8)
    right = np.sort(rng.uniform(0, 1, shape[:2]))[:, ::-1]
    error = rng.integers(0, 9, shape).astype(float)
    low, middle, high = np.quantile(error, [0.25, 0.5, 0.75], axis=2)
    cell, over = ("mode", "length"), ("mode", "length", "seed")
    return xr.Dataset(
        {
            "accuracy": (cell, right),
            "accuracy_strict": (cell, 0.9 * right),
            **{
                f"accuracy{way}_{end}": (cell, np.clip(right + sign, 0, 1))
                for way in ("", "_strict")
                for end, sign in (("low", -0.1), ("high", 0.1))
            },
            "median_error": (cell, middle),
            "error_q1": (cell, low),
            "error_q3": (cell, high),
            "mean_error": (cell, error.mean(2)),
            "error": (over, error),
            "value": (over, error.astype(str)),
            "truth": (over, error.astype(str)),
            "reading": (over, np.full(shape, "read")),
            "unread": ((*cell, "why"), rng.uniform(0, 1, (*shape[:2], 1))),
        },
        coords={
            "mode": modes,
            "length": list(lengths),
            "seed": range(8),
            "why": ["none"],
        },
    )


def frequencies(seed: int) -> xr.Dataset:
    values = (
        [str(at) for at in range(30)]
        if seed % 2
        else ["yes", "no", "a rather long answer", *map(str, range(20))]
    )
    coords = {"mode": ["answer_only", "cot"], "value": values}
    return made(
        coords, "said truth: mode value", "unread: mode", share="said truth unread"
    )


def readout() -> xr.Dataset:
    found = (
        measurements.result("collapse_vs_readout")
        .isel(length=[0] * 8)
        .assign_coords(length=list(LENGTHS[:8]))
    )
    said = [
        "read out",
        "represented, not read out",
        "partly represented, not read out",
        "collapsed",
    ]
    probes = dict.fromkeys(
        ("r2_y", "r2_control_y", "r2_random_model_y", "probe_right_y"),
        np.linspace(1, 0, 8),
    )
    found = found.assign(
        verdict=("length", said * 2),
        **{name: ("length", values) for name, values in probes.items()},
    )
    return found


def judged() -> xr.Dataset:
    axes = {"pair": range(12), "layer": range(27)}
    found = made(
        axes,
        "log_odds log_odds_after log_odds_noise margin_y: pair",
        "margin: pair layer",
    )
    said = [*VERDICTS, "answered"] * 2
    labels = {
        "verdict": said,
        "answer": [str(n) for n in range(12)],
        "answer_after": [str(n) for n in range(1, 13)],
    }
    return found.assign_coords(
        {name: ("pair", values) for name, values in labels.items()}
    )


def top_tokens() -> xr.DataArray:
    return with_tokens(
        made({"rank": range(10)}, "probability: rank", share="probability")[
            "probability"
        ],
        "rank",
    )


LAYERS = {"layer": range(27), "length": LENGTHS}
PARTS = {
    "block": range(26),
    "length": LENGTHS,
    "part": ["residual", "attention", "mlp"],
}
# One made-up result of each measurement, by the name of the real one in `tests.odd`.
MEASUREMENTS: dict[str, Callable[[], Any]] = {
    "bound_vs_jacobian": lambda: bound_vs_jacobian(20),
    "path_bound": lambda: bound(20),
    "certified_bound": lambda: bound(20),
    "composition": lambda: composition(20),
    "hops": hops,
    "strongest_paths": lambda: paths(120),
    "depth_limit": depth_limit,
    "jacobian": lambda: jacobian(20),
    "attention_sinks": sinks,
    "influence_by_distance": influence_by_distance,
    "token_influence": lambda: with_tokens(
        made(
            {"query": [5, 19], "layer": range(27), "position": range(20)},
            "path_bound: query layer position",
            "effective_rank: layer",
        )
    ),
    "head_statistics": lambda: made(
        {"block": range(26), "head": range(16)},
        "sink_rate: block head",
        share="sink_rate",
    ),
    "needle_sensitivity": needle_sensitivity,
    "collapse": collapse,
    "collapse_mechanism": lambda: made(
        PARTS,
        "attention_tv_mean self_weight_mean: block length",
        "share: part block length",
        "observed bound: length",
    ),
    "distinguishable_lengths": lambda: made(
        {"layer": range(27), "random_model": [0, 1], "length": range(1, 9)},
        "recovery: layer",
        "recovery_y chance:",
        "recovery_random: random_model layer",
        "recovery_random_y: random_model",
    ),
    "diagnose": judged,
    "answer_by_layer": lambda: made(
        {
            "scored": ["right answer", "other prompts' answers", "random weights 0"],
            "layer": range(27),
        },
        f"{ends('mean_likeliest')}: scored layer",
        "chance:",
        share="mean",
    ),
    "sublayer_effects": lambda: made(
        {
            "half": ["select", "confirm"],
            "block": range(26),
            "sublayer": ["attention", "mlp"],
        },
        f"{ends('net')} net_random repaired broken: half block sublayer",
        "wrong right: half",
        f"{ends('selected_net')} selected_net_random_limit selected_net_shuffled_limit:",
        share="repaired broken net selected",
    ).assign_coords(selected_block=7, selected_sublayer="mlp", above_null="yes"),
    "compare_models": two_models,
    "damage_by_block": lambda: made(
        {
            "streams": ["reference", "other"],
            "part": labels(28),
            "block": range(26),
        },
        f"{ends('mean_damage')}: streams part",
        f"{ends('mean_gain')}: block",
    ),
    "blocks_to_keep": lambda: made(
        {"kept": ["none", "selected", "selected by KL", "random 0", "all blocks"]},
        f"{ends('right')}: kept",
        "random_limit shuffled_limit:",
        share="right",
    ).assign_coords(units_kept=("kept", labels(5)), above_null="yes"),
    "separator_ablation": ablation,
    "repeat_tokenization": repeat_tokenization,
    "compare_interventions": compare_interventions,
    "evaluate_task": lambda: evaluate_task(0),
    "answer_frequencies": lambda: frequencies(0),
    "collapse_vs_readout": readout,
    "probe": lambda: made(
        LAYERS,
        "r2 r2_random_model: layer length",
        "r2_y r2_random_model_y: length",
        share="r2",
    ),
    "top_tokens": top_tokens,
    "softmax_total_variation": total_variation,
}


def made_up(figure: Any) -> Any:
    """A result with what a figure asks for, where no set has one."""
    _, dims_of, _ = figure.__draws__
    dims = {dim for each in dims_of.values() for dim in each.split()} - {"...", "?"}
    sizes = {
        "length": LENGTHS,
        "layer": range(27),
        "block": range(26),
        "head": range(16),
        "position": range(60),
    }
    found = made(
        {dim: sizes.get(dim, range(12)) for dim in dims},
        *(f"{name}: {of}" for name, of in dims_of.items()),
        share="mean_answered mean_probability",
    )
    found = with_tokens(found) if "position" in dims else found
    array = "DataArray" in str(
        next(iter(inspect.signature(figure).parameters.values())).annotation
    )
    return next(iter(found.data_vars.values())) if array else found
