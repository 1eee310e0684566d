"""Results come back from their files as they were, and carry what made them."""

import inspect
from pathlib import Path

import pytest
import xarray as xr

import squashlens as sl
from tests import measurements, odd

# Texts that only a tokenizer read, random stacks without tokens, and counts of answers.
WITHOUT_IDS = ("splits", "convergence", "softmax_total_variation", "answer_frequencies")
# Where the ids of the tokens that were measured may stand.
IDS = ("token_ids", "prompt", "forms")


@pytest.mark.few(1)
@pytest.mark.parametrize("name", measurements.results())
def test_every_result_survives_files(name: str, tmp_path: Path) -> None:
    result = measurements.result(name)
    again = sl.results.open(sl.results.save(result, tmp_path / "x.nc"))
    assert type(again) is type(result)
    xr.testing.assert_identical(again, result)
    assert sl.results.provenance(again) == sl.results.provenance(result)


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
