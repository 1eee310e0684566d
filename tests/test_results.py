"""Results come back from their files as they were, and carry what made them."""

import inspect
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import squashlens as sl
from tests import measurements, odd

# Texts that only a tokenizer read, random stacks without tokens, and counts of answers.
WITHOUT_IDS = ("splits", "convergence", "softmax_total_variation", "answer_frequencies")
KINDS: dict[str, Callable[[], Any]] = {
    **{
        name: lambda name=name: measurements.result(name)
        for name in measurements.results()
    },
    "certified": lambda: sl.certified_bound(
        measurements.model(), "11", to_layer=[1, "y"]
    ),
    "several prompts": lambda: sl.path_bound(
        measurements.model(), ["110 =", "011 ="], to_layer=[1, "y"]
    ),
    "unequal prompts": lambda: sl.sensitivity(
        measurements.model(), ["110 =", "How many in 11?"]
    ),
    "capture": lambda: sl.capture(
        measurements.model(), "110 =", layers=[0, 1]
    ).to_xarray(),
    "joined": lambda: sl.results.concat(
        {"a": measurements.result("collapse"), "b": measurements.result("collapse")},
        dim="model",
    ),
    "one number": lambda: sl.path_bound(measurements.model(), "110 =")[2],
    "one row": lambda: measurements.result("collapse").isel(layer=-1, length=0),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS)
def test_every_result_survives_files_and_tables(kind: str, tmp_path: Path) -> None:
    """Back from netCDF as it was; in DataFrames with every number.

    It says what made it, with the ids that were measured: a tokenizer, or a template with a date, may give others
    tomorrow.
    """
    result = KINDS[kind]()
    facts = sl.results.provenance(result)
    assert facts["call"]["function"]
    for variable in result.data_vars.values() if isinstance(result, xr.Dataset) else ():
        assert set(variable.attrs) <= {"long_name", "units"}
        if facts["call"]["function"] != "compare":
            assert sl.results.provenance(variable) == facts
    if kind not in WITHOUT_IDS and "token_id" not in {
        *result.coords,
        *getattr(result, "data_vars", ()),
    }:
        held = [facts, facts.get("sequence") or {}, facts.get("call") or {}]
        assert any(
            one.get(key) for one in held for key in ("token_ids", "prompt", "forms")
        ), facts.keys()
    back = sl.results.open(sl.results.save(result, tmp_path / "x.nc"))
    assert type(back) is type(result)
    xr.testing.assert_identical(back, result)
    assert sl.results.provenance(back) == facts
    whole = (
        result
        if isinstance(result, xr.Dataset)
        else result.to_dataset(name=result.name)
    )
    for name, values in whole.data_vars.items():
        expected = values.values.ravel()
        of_pandas = (
            values.to_dataframe()
            if values.ndim
            else values.expand_dims("scalar").to_dataframe()
        )
        np.testing.assert_array_equal(
            of_pandas[name].to_numpy(dtype=values.dtype), expected
        )


def test_no_result_has_far_more_combinations_of_labels_than_numbers() -> None:
    """`to_dataframe` makes a row for each; every variable has its dimensions repeated over all others."""
    results = {name: measurements.result(name) for name in measurements.results()}
    datasets = {
        name: one for name, one in results.items() if isinstance(one, xr.Dataset)
    }
    rows = {
        name: math.prod(one.sizes.values()) / max(v.size for v in one.values())
        for name, one in datasets.items()
    }
    assert {name: ratio for name, ratio in rows.items() if ratio > 32} == {}
    assert len(rows) > 10


def test_every_measurement_is_among_them() -> None:
    """Each public function that returns a result, but not those that join, open, or read the log of another program."""
    pytest.importorskip(
        "inspect_ai",
        reason="inspect-ai, whose functions are among the public ones, is not installed",
    )
    functions = {
        name: one for name, one in odd.public().items() if not isinstance(one, type)
    }
    returned = {
        name: inspect.signature(one, eval_str=True).return_annotation
        for name, one in functions.items()
    }
    makers = {
        name
        for name, hint in returned.items()
        if re.search(r"xarray.*\.(Dataset|DataArray)", str(hint))
    }
    assert len(makers) > 30
    assert {name.split(".")[-1] for name in makers} - {
        "concat",
        "open",
        "from_log",
    } <= {*KINDS}


def test_provenance_says_what_made_it() -> None:
    model = sl.load(
        "tiny-gemma", device="cpu"
    )  # other tests may have replaced code under a shared one
    facts = sl.results.provenance(
        sl.jacobian_norms(model, "110 =", norm="frobenius", freeze="attention")
    )
    assert facts["model"] == "tiny-gemma"
    assert facts["matmul_precision"] == torch.get_float32_matmul_precision()
    assert (facts["dtype"], facts["device"], facts["bos_count"], facts["proof"]) == (
        "float32",
        "cpu",
        1,
        "verified",
    )
    assert facts["call"]["norm"] == "frobenius"
    assert facts["call"]["freeze"] == ["attention"]
    assert set(facts["versions"]) == {
        "python",
        "squashlens",
        "torch",
        "transformers",
        "transformer-lens",
    }
    assert len(facts["fingerprint"]) == 16
