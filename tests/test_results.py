"""Results come back from their files as they were, and carry what made them."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import squashlens as sl
from tests import measurements, odd

# Texts that only a tokenizer read, random stacks without tokens, and counts of answers.
WITHOUT_IDS = ("splits", "convergence", "softmax_total_variation", "answer_frequencies")
# Where the ids of the tokens that were measured may stand.
IDS = ("token_ids", "prompt", "forms")


def certified() -> Any:
    return sl.certified_bound(measurements.model(), "11", to_layer=[1, 6])


def several_prompts() -> Any:
    prompts = ["110 =", "011 ="]
    return sl.path_bound(measurements.model(), prompts, to_layer=[1, 6])


def unequal_prompts() -> Any:
    return sl.bound_vs_jacobian(measurements.model(), ["110 =", "How many in 11?"])


def capture() -> Any:
    return sl.capture(measurements.model(), "110 =", layers=[0, 1]).to_xarray()


def joined() -> Any:
    collapse = measurements.result("collapse")
    return sl.results.concat({"a": collapse, "b": collapse}, dim="model")


def one_number() -> Any:
    return measurements.result("path_bound")[2]


def one_row() -> Any:
    return measurements.result("collapse").isel(layer=-1, length=0)


MADE = (
    certified,
    several_prompts,
    unequal_prompts,
    capture,
    joined,
    one_number,
    one_row,
)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [*measurements.results(), *MADE], ids=str)
def test_every_result_survives_files_and_tables(kind: Any, tmp_path: Path) -> None:
    """Back from netCDF as it was; in DataFrames with every number."""
    result = measurements.result(kind) if isinstance(kind, str) else kind()
    again = sl.results.open(sl.results.save(result, tmp_path / "x.nc"))
    assert type(again) is type(result)
    xr.testing.assert_identical(again, result)
    assert sl.results.provenance(again) == sl.results.provenance(result)
    whole = result if isinstance(result, xr.Dataset) else result.to_dataset()
    for name, values in whole.data_vars.items():
        if not values.ndim:
            values = values.expand_dims("scalar")
        of_pandas = values.to_dataframe()[name].to_numpy(dtype=values.dtype)
        np.testing.assert_array_equal(of_pandas, values.values.ravel())


@pytest.mark.few(1)
@pytest.mark.parametrize("name", measurements.results())
def test_every_result_says_what_made_it(name: str) -> None:
    """With the ids that were measured: a tokenizer, or a template with a date, may give others tomorrow."""
    result = measurements.result(name)
    facts = sl.results.provenance(result)
    assert facts["call"]["function"]
    variables = result.data_vars if isinstance(result, xr.Dataset) else {}
    for variable in variables.values():
        assert set(variable.attrs) <= {"long_name", "units"}
        if facts["call"]["function"] != "compare_interventions":
            assert sl.results.provenance(variable) == facts
    has_ids = name in WITHOUT_IDS or "token_id" in {**result.coords, **variables}
    for stated in (facts, facts.get("sequence"), facts["call"]):
        has_ids = has_ids or any(stated.get(key) for key in IDS if stated)
    assert has_ids, facts.keys()


def test_every_measurement_is_among_them() -> None:
    """Each public function that returns a result, but not those that join, open, or read the log of another program."""
    pytest.importorskip("inspect_ai", reason="inspect-ai is not installed")
    known = {*measurements.results(), "certified_bound", "concat", "open", "from_log"}
    makers = set()
    for name, function in odd.public().items():
        if not inspect.isclass(function):
            hint = inspect.signature(function, eval_str=True).return_annotation
            if "xarray" in str(hint):
                makers.add(name.rpartition(".")[2])
    assert len(makers) > 30
    assert makers <= known
