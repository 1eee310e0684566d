"""Every option that changes what is measured is part of what a result says: in its long names, or in its figure.

Two results that differ in such an option are either refused by `results.concat`, as two quantities, or, for what only
says where a quantity is measured, joined with the option in the provenance and under the title of the figure.
"""

import inspect
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import torch
import xarray as xr

import squashlens as sl
from squashlens.checks.arguments import options_of
from squashlens.errors import InputError
from tests.grouped import in_groups

PROMPT = "110 ="
# What is measured, and labels of the result: their values are coordinates or in the provenance.
SUBJECT = {
    "model", "prompt", "sequence", "task", "lengths", "positions", "groups", "spans", "interventions", "separator",
    "every", "n", "content", "layers", "queries", "answer", "kinds", "from_blocks", "blocks", "estimates", "runs",
}  # fmt: skip
# How numbers are estimated or computed: another value gives another estimate of the same quantity.
ESTIMATE = {
    "seed", "seeds", "n_probes", "n_replacements", "n_samples", "n_placements", "n_train", "n_random_models", "rtol",
    "tightness", "n_composed", "method", "noise_lengths", "vjp_batch_size", "batch_size", "resume", "device", "source",
    "max_new_tokens",
}  # fmt: skip
# How much of a result is kept: its labels say it, and the formats of `precision` are labels.
EXTENT = {"k", "keep", "certified"}
LABELS = {("precision", "round_to")}
# Where and on what a quantity is measured: results are joined, and figures tell it.
PLACE = {"query", "from_layer", "to_layer", "substitute", "repeat", "prefix", "candidates", "mode", "template",
         "prefill", "temperature", "direction"}  # fmt: skip


@cache
def model() -> Any:
    return sl.load("tiny-gemma")


@cache
def pairs() -> Any:
    return sl.capture(model(), sl.prompts.repeated(model(), "1", 5), baselines=["contrast", "unrelated"])


@cache
def digits() -> Any:
    return sl.prompts.bernoulli(model(), 6, seed=1)


def task(name: str = "count_bernoulli") -> Any:
    return sl.tasks.find(f"taught_{name}")


SHORT: dict[str, Any] = {"lengths": [4, 6], "seeds": 2}
PLACES: tuple[dict[str, Any], ...] = ({"query": 2}, {"from_layer": 2}, {"to_layer": 3})
NORM_SCALE: tuple[dict[str, Any], ...] = ({"norm": "l2"}, {"scale": "absolute"})
UNIFORM: dict[str, Any] = {"attention": "uniform"}
# A measurement, with options that it has here, and each other value of an option.
CASES: dict[str, tuple[Callable[..., Any], tuple[dict[str, Any], ...]]] = {
    "path_bound": (
        lambda **more: sl.path_bound(model(), PROMPT, **more),
        (
            {"constants": {"beta1": 2.0}},
            {"constants": {"beta2": 2.0, "beta3": 0.5}},
            {"constants": {"sigma_psi": 0.0}},
            UNIFORM,
            {"attention": "topological"},
            *PLACES,
        ),
    ),
    "certified_bound": (
        lambda **more: sl.certified_bound(model(), PROMPT, **more),
        ({"freeze": ["attention"]}, {"edges": "exact"}, *PLACES),
    ),
    "certified_bound, exact": (
        lambda **more: sl.certified_bound(model(), PROMPT, **{"edges": "exact"} | more),
        ({"edges": {"edges": "exact", "n_composed": 2}},),
    ),
    "jacobian_norms": (
        lambda **more: sl.jacobian_norms(model(), PROMPT, **more),
        ({"norm": "frobenius"}, {"freeze": ["attention"]}, {"method": "sketch"}, {"method": "sketch_upper"}, *PLACES),
    ),
    "jacobian": (
        lambda **more: sl.jacobian(model(), PROMPT, **more),
        ({"freeze": ["attention"]}, {"freeze": ["norms", "gates"]}, *PLACES[:2]),
    ),
    "sensitivity": (
        lambda **more: sl.sensitivity(model(), PROMPT, **more),
        ({"norm": "frobenius"}, {"query": 2}, {"method": "sketch"}),
    ),
    "substitution_effect": (
        lambda **more: sl.substitution_effect(model(), PROMPT, **more),
        ({"candidates": [5, 6, 7]}, *PLACES[::2]),
    ),
    "knockout_effect": (
        lambda **more: sl.knockout_effect(model(), PROMPT, **more),
        ({"kind": "embedding"}, {"query": 2}),
    ),
    "composition": (lambda **more: sl.paths.composition(model(), PROMPT, **more), (UNIFORM, {"query": 2})),
    "hops": (
        lambda **more: sl.paths.hops(model(), PROMPT, **more),
        (UNIFORM, {"attention": "topological"}, *PLACES),
    ),
    "strongest_paths": (
        lambda **more: sl.paths.strongest_paths(model(), PROMPT, **more),
        (UNIFORM, {"avoid": [0]}, *PLACES),
    ),
    "depth_limit": (lambda **more: sl.paths.depth_limit(model(), PROMPT, **more), ({"depth": 8}, {"query": 2})),
    "profile": (
        lambda **more: sl.profile(model(), "1 =", extras={"n_random_models": 0}, **more),
        ({"norm": "frobenius"}, {"method": "sketch_upper"}),
    ),
    "needle": (
        lambda **more: sl.needle(model(), [[2, 5, 6, 7, 8]], [2], [("a", 1)], **more),
        ({"norm": "spectral"}, {"candidates": [9, 10, 11]}),
    ),
    "collapse": (
        lambda **more: sl.collapse(model(), pairs(), **more),
        ({"norm": "l2"}, {"scale": "relative"}, {"round_to": torch.bfloat16}),
    ),
    "collapse, heads": (
        lambda **more: sl.collapse(model(), pairs(), **{"by_head": "slice"} | more),
        ({"by_head": "value"},),
    ),
    "mechanism": (lambda **more: sl.mechanism(model(), pairs(), **more), ({"norm": "l2"},)),
    "precision": (
        lambda **more: sl.precision(model(), pairs(), blocks=[1], round_to="bfloat16", **more),
        NORM_SCALE,
    ),
    "separator_ablation": (
        lambda **more: sl.separator_ablation(
            model(),
            sl.prompts.repeated(model(), "1", 6, separator=","),
            kinds=["substitute", "mask"],
            from_blocks=[0, 5],
            **more,
        ),
        ({"norm": "l2"}, {"scale": "relative"}, {"substitute": "0"}),
    ),
    "tokenization": (
        lambda **more: sl.tokenization(model(), 3, **more),
        (*NORM_SCALE, {"repeat": "0"}, {"prefix": "How"}),
    ),
    "compare": (
        lambda **more: sl.compare(model(), digits(), {"w": sl.hooks.sliding_window(3)}, lengths=[6], **more),
        NORM_SCALE,
    ),
    "compare, families": (
        lambda **more: sl.compare(
            model(),
            {"digits": digits()},
            {"w": sl.hooks.sliding_window(3)},
            lengths=[4],
            **{"sampling": {"n_samples": 2}} | more,
        ),
        (*NORM_SCALE, {"sampling": {"n_samples": 2, "method": "sketch"}}),
    ),
    "search_separators": (
        lambda **more: sl.search_separators(
            model(),
            digits(),
            designs={"separator": [","], "every": [2], "n_samples": 2, "n_placements": 5},
            lengths=[6],
            **more,
        ),
        NORM_SCALE,
    ),
    "collapse_vs_readout": (
        lambda **more: sl.collapse_vs_readout(model(), task(), **SHORT, **more),
        ({"round_to": torch.bfloat16},),
    ),
}
EACH = [(name, *other.items()) for name, (_, others) in CASES.items() for other in others]


@cache
def usual(name: str) -> Any:
    return CASES[name][0]()


def called(name: str, option: dict[str, Any]) -> Any:
    """The result with another value of an option, in the group in which the function takes it."""
    function = getattr(sl, name.partition(",")[0], None) or getattr(sl.paths, name)
    return CASES[name][0](**in_groups(function, option))


@cache
def usual_figure(name: str) -> tuple[list[str], str]:
    """What is drawn in the figure of the usual result, and what it tells."""
    figure = sl.figures.of(usual(name))
    return drawn(figure), telling(figure)


def telling(figure: go.Figure) -> str:
    """Title, notes and titles of axes and panels, in one line and without numbers, which may be measured."""
    layout: Any = figure.layout
    axes = [layout[name].title.text for name in layout.to_plotly_json() if name.startswith(("xaxis", "yaxis"))]
    texts = [layout.title.text, layout.title.subtitle.text, *(note.text for note in layout.annotations), *axes]
    bars = [one.colorbar.title.text for one in figure.data if "colorbar" in one]
    names = [one.name for one in figure.data]
    return re.sub(r"\s+", " ", " | ".join(map(str, [*texts, *bars, *names])).replace("<br>", " ").replace("\u200b", ""))


def numbers(result: Any) -> dict[str, Any]:
    named = result.data_vars if isinstance(result, xr.Dataset) else {result.name: result}
    return {str(name): values.values for name, values in named.items() if values.dtype.kind in "fiub"}


def drawn(figure: go.Figure) -> list[str]:
    """What is drawn, as text, in which NaN is equal to NaN."""
    return [str(np.asarray(one[axis]).tolist()) for one in figure.data for axis in "xyz" if axis in one]


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name, *options in EACH for option in [dict(options)]], ids=str
)
def test_an_option_that_changes_the_numbers_is_told(name: str, option: dict[str, Any]) -> None:
    one, other = usual(name), called(name, option)
    here, there = numbers(one), numbers(other)
    changed = {*here} != {*there} or any(not np.array_equal(here[key], there[key], equal_nan=True) for key in here)
    assert changed or "collapse_vs_readout" in name  # no short pair is equal once rounded
    calls = [sl.results.provenance(each)["call"] for each in (one, other)]
    assert calls[0] != calls[1]
    if {*option} <= PLACE:
        shared = [key for key in here if key in there]
        both = [each if isinstance(each, xr.DataArray) else each[shared] for each in (one, other)]
        joined = sl.results.concat(dict(zip("ab", both, strict=True)), dim="option")
        assert [sl.results.provenance(joined.sel(option=label))["call"] for label in "ab"] == calls
    else:
        with pytest.raises(InputError, match="is not the same quantity"):
            sl.results.concat({"a": one, "b": other}, dim="option")
    usually, figure = usual_figure(name), sl.figures.of(other)
    assert drawn(figure) == usually[0] or telling(figure) != usually[1]


def test_the_remedy_of_a_refusal_leaves_out_everything_that_differs() -> None:
    one, other = usual("sensitivity"), sl.sensitivity(model(), PROMPT, norm="frobenius")
    with pytest.raises(InputError) as caught:
        sl.results.concat({"a": one, "b": other}, dim="norm")
    left_out = re.search(r"drop_vars\((\[.*?\])\)", caught.value.remedy)
    assert left_out is not None
    names = re.findall(r"'(\w+)'", left_out[1])
    joined = sl.results.concat({"a": one.drop_vars(names), "b": other.drop_vars(names)}, dim="norm")
    assert {"path_bound", "null"} <= {*joined.data_vars}


def measurements() -> dict[str, Any]:
    names = [(sl, name) for name in dir(sl)] + [(sl.paths, name) for name in sl.paths.__all__]
    found = {name: getattr(module, name) for module, name in names if inspect.isfunction(getattr(module, name))}
    makes = ("DataArray", "Dataset")
    return {
        name: one
        for name, one in found.items()
        if str(inspect.signature(one).return_annotation).endswith(makes)
        or getattr(inspect.signature(one).return_annotation, "__name__", "") in makes
    }


@pytest.mark.parametrize("name", [*measurements()])
def test_every_parameter_is_varied_or_has_its_kind(name: str) -> None:
    """A new parameter must be said to be an estimate's, a place's or the subject's, or be varied above."""
    varied = {option for case, *options in EACH if case.split(",")[0] == name for option, _ in options}
    known = varied | SUBJECT | ESTIMATE | EXTENT | PLACE | {option for case, option in LABELS if case == name}
    parameters = inspect.signature(measurements()[name], eval_str=True).parameters
    assert {one for each in parameters.values() for one in options_of(each.annotation) or [each.name]} <= known
