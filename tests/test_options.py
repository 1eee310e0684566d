"""Every option that changes what is measured is part of what a result says: in its long names, or in its figure.

Two results that differ in such an option are either refused by `results.concat`, as two quantities, or, for what only
says where a quantity is measured, joined with the option in the provenance and under the title of the figure.
"""

import inspect
import re
from functools import cache
from typing import Any, Literal, get_args, get_origin

import plotly.graph_objects as go
import pytest
import xarray as xr

import squashlens as sl
from squashlens._typing import Distance, Norm, Scale
from squashlens.errors import InputError
from squashlens.records.provenance import without_provenance
from tests.measurements import ROWS, bundled, model, others, result, returns
from tests.measurements import usual as with_arguments

# What is measured, and labels of the result: their values are coordinates or in the provenance.
SUBJECT = """model prompt sequence task lengths positions groups spans interventions separator every n content layers
queries answer kinds from_blocks blocks prompts answers choices clusters texts find
reference other group""".split()  # noqa: SIM905
# How numbers are estimated or computed: another value gives another estimate of the same quantity.
ESTIMATE = """seed seeds n_probes n_replacements n_samples n_placements n_train n_random_models n_random_vectors
method noise_lengths vjp_batch_size batch_size resume device max_new_tokens n_baseline n_examples
passes n_random""".split()  # noqa: SIM905
# How much of a result is kept: its labels say it.
EXTENT = ["k", "keep", "n_keep", "baselines"]
# Where and on what a quantity is measured: results are joined, and figures tell it.
PLACE = """query from_layer to_layer substitute repeat prefix candidates mode template prefill temperature
parts""".split()  # noqa: SIM905
KNOWN = {*SUBJECT, *ESTIMATE, *EXTENT, *PLACE}


def choices(function: Any) -> list[dict[str, Any]]:
    """Each other value of the options of a function whose values have names."""
    options = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        hint = parameter.annotation
        if parameter.name not in KNOWN and get_origin(hint) is Literal:
            values = [value for value in get_args(hint) if value != parameter.default]
            options += [{parameter.name: value} for value in values]
    return options


def function_of(name: str) -> Any:
    if name in ROWS:
        return ROWS[name].function
    return getattr(sl, name, None) or getattr(sl.attention_paths, name, None)


def all_options() -> list[tuple[str, dict[str, Any]]]:
    """Each measurement with each other value of an option; of measurements without a row, those with names."""
    cases = []
    for name, row in ROWS.items():
        cases += [(name, option) for option in row.varied]
    for name in others():
        is_new = name not in ROWS or not ROWS[name].varied
        if hasattr(sl, name) and is_new:
            cases += [(name, option) for option in choices(function_of(name))]
    return cases


CASES = all_options()


def called(name: str, option: dict[str, Any]) -> Any:
    """The result with another value of an option."""
    if name in ROWS:
        return ROWS[name].called(**option)
    return with_arguments(bundled(model()), function_of(name), **option)


def numbers(result: Any) -> xr.Dataset:
    """The variables of a result, without what says where they came from."""
    result = without_provenance(result)
    if isinstance(result, xr.DataArray):
        result = result.to_dataset()
    return result.reset_coords(drop=True)


def call_of(result: Any) -> Any:
    return sl.results.provenance(result)["call"]


@cache
def usual_figure(name: str) -> tuple[str, list[str]]:
    figure = sl.figures.of(result(name))
    return drawn(figure), words(figure)


def drawn(figure: go.Figure) -> str:
    """The numbers that are drawn, as text, in which NaN is equal to NaN."""
    return str(
        [
            (trace["x"], trace["y"], trace.to_plotly_json().get("z"))
            for trace in figure.data
        ]
    )


def words(figure: go.Figure) -> list[str]:
    """All titles, notes and names of lines."""
    return re.findall(r'"(?:text|name)":"([^"]*)"', figure.to_json())


@pytest.mark.few(5)
@pytest.mark.parametrize(("name", "option"), CASES, ids=str)
def test_an_option_that_changes_the_numbers_is_told(
    name: str, option: dict[str, Any]
) -> None:
    usual = result(name)
    changed = called(name, option)
    # No short pair is equal once rounded.
    is_changed = not numbers(usual).equals(numbers(changed))
    assert is_changed or name == "collapse_vs_readout"
    assert call_of(usual) != call_of(changed)
    both = {"usual": usual, "changed": changed}
    if set(option) <= set(PLACE):
        if isinstance(usual, xr.Dataset):
            shared = [name for name in usual.data_vars if name in changed]
            both = {label: part[shared] for label, part in both.items()}
        joined = sl.results.concat(both, dim="option")
        for label, part in both.items():
            assert call_of(joined.sel(option=label)) == call_of(part)
    else:
        with pytest.raises(InputError):
            sl.results.concat(both, dim="option")
    figure = sl.figures.of(changed)
    usually_drawn, usual_words = usual_figure(name)
    assert drawn(figure) == usually_drawn or words(figure) != usual_words, (
        f"The figure of {name} with {option} draws other numbers under the same words. Say the option in the long "
        "name: the line below the title has only options that are single values."
    )


# The default of a parameter that several functions share, and where another one is right: the docstring says why.
DEFAULTS = {
    ("norm", Distance): "linf",
    ("norm", Norm): "spectral",
    ("scale", Scale): "absolute",
    ("n_probes", int): 64,
    ("noise_lengths", int): 4,
    ("n_replacements", int): 4,
    ("seed", int): 0,
}
OTHER_DEFAULTS = {
    "needle_sensitivity": {"norm": "frobenius", "n_probes": 16},
    "squash_map": {"n_probes": 32},
    "compare_interventions": {"scale": "relative"},
    "convergence": {"norm": "l1"},
}

PUBLIC = {
    name: getattr(module, name)
    for module in (sl, sl.attention_paths)
    for name in module.__all__
}
FUNCTIONS = {name: one for name, one in PUBLIC.items() if inspect.isfunction(one)}


SYNTHETIC = {name: getattr(sl.synthetic, name) for name in sl.synthetic.__all__}
WITH_SYNTHETIC = FUNCTIONS | {
    name: one for name, one in SYNTHETIC.items() if inspect.isfunction(one)
}


@pytest.mark.parametrize("name", WITH_SYNTHETIC)
def test_a_parameter_has_one_default(name: str) -> None:
    given = {}
    usual = {}
    signature = inspect.signature(WITH_SYNTHETIC[name], eval_str=True)
    for parameter in signature.parameters.values():
        kind = (parameter.name, parameter.annotation)
        if kind in DEFAULTS and parameter.default is not parameter.empty:
            given[parameter.name] = parameter.default
            usual[parameter.name] = DEFAULTS[kind]
    assert given == usual | OTHER_DEFAULTS.get(name, {})


@pytest.mark.parametrize(
    "name",
    [n for n, one in FUNCTIONS.items() if returns(one) in ("DataArray", "Dataset")],
)
def test_every_parameter_is_varied_or_has_its_kind(name: str) -> None:
    """A new option whose values have no names must be said to be an estimate's or a place's, or be varied above."""
    new = inspect.signature(FUNCTIONS[name]).parameters.keys() - KNOWN
    for row, option in CASES:
        if function_of(row).__name__ == name:
            new -= option.keys()
    assert not new, (
        f"{name}: what does {new} change? Add it in tests/test_options.py: to ESTIMATE if only how a quantity is "
        "computed; to PLACE if where it is measured; or, if what is measured, as values to try to its row."
    )
