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


def test_the_prompt_is_recorded_as_it_was_given(tiny: Any) -> None:
    ids = sl.prompts.tokenize(tiny, "110 =")
    for given, recorded in (
        ("110 =", "110 ="),
        (["110 =", "011 ="], ["110 =", "011 ="]),
        (["110 =", "0 ="], ["110 =", "0 ="]),  # of unequal length, measured one by one
        (ids, ids[0].tolist()),
        (ids[0].numpy(), ids[0].tolist()),
        (sl.capture(tiny, "110 ="), "110 ="),
    ):
        found = sl.path_bound(tiny, given)
        assert sl.results.provenance(found)["call"]["prompt"] == recorded
    apart = sl.path_bound(tiny, ["110 =", "0 ="])
    assert sl.results.provenance(apart.sel(prompt=1))["call"]["prompt"] == "0 ="
    collapse = sl.results.provenance(measurements.result("collapse"))
    assert "prompt" not in collapse["call"]  # it has a sequence
    needle = sl.results.provenance(measurements.result("needle"))
    assert needle["call"]["prompt"] == [measurements.ids().tolist()]


def test_the_repr_shows_model_and_call(tiny: Any) -> None:
    found = sl.path_bound(tiny, "110 =")
    assert list(found.attrs) == ["long_name", "units"]
    with xr.set_options(display_width=140):
        assert '\'{"model":"tiny-gemma","call":{"function":"path_bound"' in repr(found)


def test_xarray_keeps_it_where_it_is_true(tiny: Any, tmp_path: Path) -> None:
    """With functions of xarray alone: selections, joins, merges, files; not means over parts or ratios of two calls."""
    bound = sl.path_bound(tiny, "110 =")
    uniform = sl.path_bound(tiny, "110 =", attention="uniform")
    facts = sl.results.provenance(bound)
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
        assert sl.results.provenance(kept) == facts
    both = xr.concat(
        [bound, uniform], dim="kind", coords="different", compat="equals"
    ).assign_coords(kind=["model", "uniform"])
    asked = {
        kind: sl.results.provenance(both.sel(kind=kind))["call"]["attention"]
        for kind in ("model", "uniform")
    }
    assert asked == {"model": "model", "uniform": "uniform"}
    assert sl.results.provenance(both)["call"]["attention"] == ["model", "uniform"]
    for dropped in (both.mean("kind"), bound / uniform):
        with pytest.raises(InputError, match="have no provenance"):
            sl.results.provenance(dropped)
    sensitivity = sl.sensitivity(tiny, "110 =").drop_vars("path_bound")
    merged = xr.merge([bound, sensitivity])
    functions = sl.results.provenance(merged)["call"]
    assert [call["function"] for call in functions] == ["path_bound", "sensitivity"]


def test_measurements_that_use_others_state_their_own_call() -> None:
    for name in ("sensitivity", "compare", "squash_map"):
        if name in measurements.results():
            result = measurements.result(name)
            names = [str(c) for c in result.coords if str(c).startswith("provenance_")]
            assert len(names) == 1, (name, names)


def test_what_is_no_provenance_is_refused() -> None:
    with pytest.raises(InputError, match="did not measure them"):
        sl.results.provenance(xr.DataArray([1.0]))
    for text in ("{", "3", "words"):
        broken = xr.DataArray([1.0], dims="a", coords={"provenance_f": text})
        with pytest.raises(InputError, match="not text of a JSON object"):
            sl.results.provenance(broken)


def test_the_content_of_a_sequence_stands_in_its_results() -> None:
    """Two sequences with one name are told apart, and can be built again."""
    model = measurements.model()
    first, second = (
        sl.prompts.words(model, 4, words, seed=0, suffix="=") for words in ("01", "23")
    )
    held = [
        sl.results.provenance(sl.collapse(model, one))["sequence"]
        for one in (first, second)
    ]
    assert held[0]["name"] == held[1]["name"]
    for one, stated in zip((first, second), held, strict=True):
        ids = stated["token_ids"]
        assert tuple(ids["content"]) == one.content
        assert [*ids["prefix"], *ids["content"], *ids["suffix"]] == list(one.pair(4).v)
