"""Every option that changes what is measured is part of what a result says: in its long names, or in its figure.

Two results that differ in such an option are either refused by `results.concat`, as two quantities, or, for what only
says where a quantity is measured, joined with the option in the provenance and under the title of the figure.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Literal, get_args, get_origin

import numpy as np
import plotly.graph_objects as go
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError
from squashlens.figures.drawing.page import Page
from tests.measurements import ROWS, bundled, model, others, result, returns
from tests.measurements import usual as with_arguments

# What is measured, and labels of the result: their values are coordinates or in the provenance.
SUBJECT = {
    "model",
    "prompt",
    "sequence",
    "task",
    "lengths",
    "positions",
    "groups",
    "spans",
    "interventions",
    "separator",
    "every",
    "n",
    "content",
    "layers",
    "queries",
    "answer",
    "kinds",
    "from_blocks",
    "blocks",
    "prompts",
    "answers",
    "choices",
    "clusters",
    "texts",
    "find",
}
# How numbers are estimated or computed: another value gives another estimate of the same quantity.
ESTIMATE = {
    "seed",
    "seeds",
    "n_probes",
    "n_replacements",
    "n_samples",
    "n_placements",
    "n_train",
    "n_random_models",
    "rtol",
    "n_random_vectors",
    "n_composed",
    "method",
    "noise_lengths",
    "vjp_batch_size",
    "batch_size",
    "resume",
    "device",
    "source",
    "max_new_tokens",
    "n_baseline",
    "n_examples",
    "passes",
}
# How much of a result is kept: its labels say it.
EXTENT = {"k", "keep", "baselines"}
# Where and on what a quantity is measured: results are joined, and figures tell it.
PLACE = {
    "query",
    "from_layer",
    "to_layer",
    "substitute",
    "repeat",
    "prefix",
    "candidates",
    "mode",
    "template",
    "prefill",
    "temperature",
    "direction",
    "parts",
}
KNOWN = SUBJECT | ESTIMATE | EXTENT | PLACE


def choices(function: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """Each other value of the options of a function whose values have names."""
    for name, one in inspect.signature(function, eval_str=True).parameters.items():
        if name not in KNOWN and get_origin(one.annotation) is Literal:
            yield from (
                {name: value}
                for value in get_args(one.annotation)
                if value != one.default
            )


def function_of(name: str) -> Any:
    public = getattr(sl, name, None) or getattr(sl.paths, name, None)
    return ROWS[name].function if name in ROWS else public


NEW = [
    name
    for name in others()
    if hasattr(sl, name) and not (name in ROWS and ROWS[name].varied)
]
EACH = [(name, option) for name, row in ROWS.items() for option in row.varied]
EACH += [(name, option) for name in NEW for option in choices(function_of(name))]


@cache
def usual(name: str) -> Any:
    return result(name) if name in ROWS else called(name, {})


def called(name: str, option: dict[str, Any]) -> Any:
    """The result with another value of an option."""
    if name in ROWS:
        return ROWS[name].called(**option)
    return with_arguments(bundled(model()), function_of(name), **option)


@cache
def usual_figure(name: str) -> tuple[list[str], str]:
    """What is drawn in the figure of the usual result, and what it tells."""
    figure = sl.figures.of(usual(name))
    return drawn(figure), telling(figure)


def telling(figure: go.Figure) -> str:
    """Title, notes and titles of axes and panels, in one line and without numbers, which may be measured."""
    layout: Any = figure.layout
    axes = [
        layout[name].title.text
        for name in layout.to_plotly_json()
        if name.startswith(("xaxis", "yaxis"))
    ]
    page = Page.of(figure)
    panels = [text for panel in page.panels for text in (panel.head, panel.title)]
    texts = [page.title, *page.notes, *panels, *axes]
    bars = [one.colorbar.title.text for one in figure.data if "colorbar" in one]
    names = [one.name for one in figure.data]
    return re.sub(
        r"\s+",
        " ",
        " | ".join(map(str, [*texts, *bars, *names])).replace("<br>", " "),
    )


def numbers(result: Any) -> dict[str, Any]:
    named = (
        result.data_vars if isinstance(result, xr.Dataset) else {result.name: result}
    )
    return {
        str(name): values.values
        for name, values in named.items()
        if values.dtype.kind in "fiub"
    }


def drawn(figure: go.Figure) -> list[str]:
    """What is drawn, as text, in which NaN is equal to NaN."""
    return [
        str(np.asarray(one[axis]).tolist())
        for one in figure.data
        for axis in "xyz"
        if axis in one
    ]


@pytest.mark.few(5)
@pytest.mark.parametrize(("name", "option"), EACH, ids=str)
def test_an_option_that_changes_the_numbers_is_told(
    name: str, option: dict[str, Any]
) -> None:
    one, other = usual(name), called(name, option)
    here, there = numbers(one), numbers(other)
    changed = {*here} != {*there} or any(
        not np.array_equal(here[key], there[key], equal_nan=True) for key in here
    )
    assert (
        changed or "collapse_vs_readout" in name
    )  # no short pair is equal once rounded
    calls = [sl.results.provenance(each)["call"] for each in (one, other)]
    assert calls[0] != calls[1]
    if {*option} <= PLACE:
        shared = [key for key in here if key in there]
        both = [
            each if isinstance(each, xr.DataArray) else each[shared]
            for each in (one, other)
        ]
        joined = sl.results.concat(dict(zip("ab", both, strict=True)), dim="option")
        assert [
            sl.results.provenance(joined.sel(option=label))["call"] for label in "ab"
        ] == calls
    else:
        with pytest.raises(InputError, match="is not the same quantity"):
            sl.results.concat({"a": one, "b": other}, dim="option")
    usually, figure = usual_figure(name), sl.figures.of(other)
    assert drawn(figure) == usually[0] or telling(figure) != usually[1], (
        f"The figure of {name} with {option} draws other numbers under the same words. Say the option in the long "
        "name: the line below the title has only options that are single values."
    )


def test_the_remedy_of_a_refusal_leaves_out_everything_that_differs() -> None:
    one, other = usual("sensitivity"), called("sensitivity", {"norm": "frobenius"})
    with pytest.raises(InputError) as caught:
        sl.results.concat({"a": one, "b": other}, dim="norm")
    left_out = re.search(
        r"drop_vars\((\[.*?\]), errors='ignore'\)", caught.value.remedy
    )
    assert left_out is not None
    names = re.findall(r"'(\w+)'", left_out[1])
    joined = sl.results.concat(
        {"a": one.drop_vars(names), "b": other.drop_vars(names)}, dim="norm"
    )
    assert {"path_bound", "null"} <= {*joined.data_vars}


def measurements() -> dict[str, Any]:
    public = {name: getattr(sl, name) for name in sl.__all__} | {
        n: getattr(sl.paths, n) for n in sl.paths.__all__
    }
    functions = {name: one for name, one in public.items() if inspect.isfunction(one)}
    return {
        name: one
        for name, one in functions.items()
        if returns(one) in ("DataArray", "Dataset")
    }


@pytest.mark.parametrize("name", [*measurements()])
def test_every_parameter_is_varied_or_has_its_kind(name: str) -> None:
    """A new option whose values have no names must be said to be an estimate's or a place's, or be varied above."""
    varied = {
        key
        for row, options in EACH
        if function_of(row).__name__ == name
        for key in options
    }
    known = varied | KNOWN
    new = [*inspect.signature(measurements()[name]).parameters.keys() - known]
    assert not new, (
        f"{name}: what does {new} change? Add it in tests/test_options.py: to ESTIMATE if only how a quantity is "
        "computed; to PLACE if where it is measured; or, if what is measured, as values to try to its row."
    )
