"""Every result says where it came from, and what xarray makes of it says so where that is still true."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError
from tests import measurements

provenance = sl.results.provenance


def test_the_prompt_is_recorded_as_it_was_given(tiny: Any) -> None:
    def recorded(prompt: Any) -> Any:
        return provenance(sl.path_bound(tiny, prompt))["call"]["prompt"]

    ids = sl.prompts.tokenize(tiny, "110 =")
    assert recorded("110 =") == "110 ="
    assert recorded(["110 =", "011 ="]) == ["110 =", "011 ="]
    assert recorded(sl.capture(tiny, "110 =")) == "110 ="
    assert recorded(ids) == ids[0].tolist()
    assert recorded(ids[0].numpy()) == ids[0].tolist()
    # Prompts of unequal length are measured one by one.
    apart = sl.path_bound(tiny, ["110 =", "0 ="])
    assert provenance(apart)["call"]["prompt"] == ["110 =", "0 ="]
    assert provenance(apart.sel(prompt=1))["call"]["prompt"] == "0 ="
    assert "prompt" not in provenance(measurements.result("collapse"))["call"]


def test_xarray_keeps_it_in_parts_arithmetic_and_files(
    tiny: Any, tmp_path: Path
) -> None:
    bound = sl.path_bound(tiny, "110 =")
    bound.to_netcdf(tmp_path / "plain.nc")
    for kept in (
        bound[2],
        bound.sel(position=[1, 2]),
        2 * bound,
        bound / bound.sum(),
        bound.to_dataset(),
        bound.rename("mine"),
        copy.deepcopy(bound),
        pickle.loads(pickle.dumps(bound)),  # noqa: S301
        xr.load_dataarray(tmp_path / "plain.nc"),
    ):
        assert provenance(kept) == provenance(bound)


def test_xarray_keeps_each_parts_and_drops_it_from_what_is_of_several(
    tiny: Any,
) -> None:
    bound = sl.path_bound(tiny, "110 =")
    uniform = sl.path_bound(tiny, "110 =", attention="uniform")
    both = xr.concat([bound, uniform], "kind", coords="different", compat="equals")
    assert provenance(both)["call"]["attention"] == ["model", "uniform"]
    assert provenance(both.isel(kind=0)) == provenance(bound)
    assert provenance(both.isel(kind=1)) == provenance(uniform)
    for dropped in (both.mean("kind"), bound / uniform):
        with pytest.raises(InputError):
            provenance(dropped)
    sensitivity = sl.bound_vs_jacobian(tiny, "110 =").drop_vars("path_bound")
    merged = xr.merge([bound, sensitivity], compat="no_conflicts")
    calls = provenance(merged)["call"]
    assert [call["function"] for call in calls] == ["path_bound", "bound_vs_jacobian"]


@pytest.mark.parametrize(
    "coords", [{}, *({"provenance_f": t} for t in ("{", "3", "a"))]
)
def test_what_is_no_provenance_is_refused(coords: dict[str, str]) -> None:
    with pytest.raises(InputError):
        provenance(xr.DataArray([1.0], dims="a", coords=coords))


def test_the_content_of_a_sequence_stands_in_its_results() -> None:
    """Two sequences with one name are told apart, and can be built again."""
    model = measurements.model()
    for words in ("01", "23"):
        sequence = sl.prompts.words(model, 4, words, seed=0, suffix="=")
        stated = provenance(sl.collapse(model, sequence))["sequence"]
        ids = stated["token_ids"]
        assert stated["name"] == sequence.name
        assert tuple(ids["content"]) == sequence.content
        whole = [*ids["prefix"], *ids["content"], *ids["suffix"]]
        assert whole == list(sequence.pair(4).v)
