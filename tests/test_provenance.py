"""Every result has its provenance, and says whether its values are those that were measured."""

import copy
import json
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError
from squashlens.records import facts
from squashlens.records.joining import joined
from squashlens.records.results import sealed
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
    assert (
        "prompt" not in sl.results.provenance(measurements.result("collapse"))["call"]
    )  # it has a sequence
    assert sl.results.provenance(measurements.result("needle"))["call"]["prompt"] == [
        measurements.ids().tolist()
    ]


def test_the_repr_begins_with_model_and_prompt(tiny: Any) -> None:
    found = sl.path_bound(tiny, "110 =\n" * 9)
    assert list(found.attrs) == [
        "long_name",
        "units",
        "model",
        "prompt",
        "source",
        "provenance",
    ]
    assert found.attrs["model"] == "tiny-gemma"
    assert found.attrs["prompt"].startswith("'110 =\\n110")
    assert len(found.attrs["prompt"]) <= 80
    collapse = measurements.result("collapse").attrs
    assert (collapse["sequence"], "units" in collapse) == (
        "Bernoulli(0.7), seed 0",
        False,
    )
    assert measurements.result("evaluate").attrs["task"] == "taught_count_bernoulli"


def values_of(result: Any) -> str:
    return sl.results.provenance(result)["values"]


def test_what_a_measurement_gave_is_measured(tiny: Any, tmp_path: Path) -> None:
    """Also a copy, a variable of it, and what comes back from a file, whoever wrote it."""
    bound, collapse = (
        sl.path_bound(tiny, ["110 =", "011 ="], to_layer=[2, "y"]),
        measurements.result("collapse"),
    )
    bound.to_netcdf(tmp_path / "plain.nc", engine="h5netcdf")
    for one in (
        bound,
        bound.copy(),
        copy.deepcopy(bound),
        pickle.loads(pickle.dumps(bound)),  # noqa: S301
        bound.drop_vars("token"),
        bound.to_dataset(promote_attrs=True),
        bound.to_dataset(),
        xr.load_dataarray(tmp_path / "plain.nc", engine="h5netcdf"),
        *(
            sl.results.open(sl.results.save(bound, tmp_path / f"x{ending}"))
            for ending in (".nc", ".json")
        ),
    ):
        assert sl.results.provenance(one) == sl.results.provenance(bound)
        assert values_of(one) == "measured"
    stored = sl.results.open(sl.results.save(collapse, tmp_path / "y.nc"))
    for one in (
        collapse[["distance", "rms"]],
        collapse["distance"],
        stored["distance"],
        sl.results.open(sl.results.save(collapse["distance"], tmp_path / "z.nc")),
        sl.results.open(sl.results.save(stored["distance"], tmp_path / "z.json")),
    ):
        assert sl.results.provenance(one) == sl.results.provenance(collapse)
        assert values_of(one) == "measured"


def edited(change: Callable[[Any], object], result: Any) -> Any:
    """A copy that was changed in place."""
    found = result.copy(deep=True)
    change(found)
    return found


CHANGES: dict[str, Callable[[Any], Any]] = {
    "one value": partial(edited, lambda r: r["distance"].__setitem__((0, 0), -1.0)),
    "labels in place": partial(
        edited, lambda r: r.coords.__setitem__("length", r["length"] + 1)
    ),
    "nearest": lambda r: r.reindex(layer=[0.4, 1.4], method="nearest"),
    "rounded": lambda r: r.map(lambda v: v.round(3) if v.dtype.kind == "f" else v),
    "filled": lambda r: r.where(r["length"] > 8).fillna(0),
    "a mean": lambda r: r.mean("length", keep_attrs=True),
    "a new variable": lambda r: r.assign(mine=r["distance"] - r["rms"]),
    "other units": lambda r: r.assign(distance=r["distance"].assign_attrs(units="1")),
    "a renamed dimension": lambda r: r.rename(layer="depth"),
    "relabelled": lambda r: r.assign_coords(length=r["length"].values[::-1]),
    "a selection": lambda r: r.isel(layer=-1),
    "a joined copy": lambda r: xr.concat(
        [r, r], dim="model", combine_attrs="override", data_vars="all"
    ),
    "stacked": lambda r: r.stack(cell=("layer", "length")),
}
UNSAVED = ("stacked",)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CHANGES)
def test_everything_else_is_derived_and_says_what_from(
    name: str, tmp_path: Path
) -> None:
    collapse = measurements.result("collapse")
    changed = CHANGES[name](collapse)
    expected = sl.results.provenance(collapse) | {"values": "derived"}
    for one in (changed, pickle.loads(pickle.dumps(changed))):  # noqa: S301
        assert sl.results.provenance(one) == expected
    if name not in UNSAVED:
        for ending in (".nc", ".json"):
            back = sl.results.open(sl.results.save(changed, tmp_path / f"x{ending}"))
            assert sl.results.provenance(back) == expected
        assert (
            sl.results.table(changed)["meaning"].str.startswith("derived from: ")
        ).all()
    assert values_of(collapse) == "measured"  # the result itself is as it was


def test_what_several_calls_made_is_derived(tiny: Any) -> None:
    bound, longer = (sl.path_bound(tiny, prompt) for prompt in ("110 =", "0110 ="))
    both = bound / longer.isel(position=slice(5)).assign_coords(
        bound.coords
    )  # xarray keeps only what both have
    assert sl.results.provenance(both) == {"values": "derived"}
    mixed = xr.merge(
        [bound.rename("one"), longer.isel(position=0, drop=True).rename("two")],
        compat="override",
    )
    assert values_of(mixed) == "derived"
    assert sl.results.provenance(mixed)["call"]["prompt"] == ["110 =", "0110 ="]
    with pytest.raises(InputError, match="did not measure them"):
        sl.results.provenance(xr.DataArray([1.0]))


def test_a_part_of_a_joined_result_has_its_own_provenance() -> None:
    def one(model: str, value: float) -> xr.DataArray:
        return sealed(
            xr.DataArray([1.0, value], dims="layer", name="d"),
            {"model": model, "call": {"function": "f"}},
        )

    found = joined({"a": one("a", 2), "b": one("b", 3)}, "model")
    assert values_of(found) == "measured"
    assert sl.results.provenance(found.isel(model=1)) == {
        "model": "b",
        "call": {"function": "f"},
        "values": "measured",
    }
    assert (
        values_of(2 * found.isel(model=1))
        == values_of(found.isel(model=1).assign_coords(model="a"))
        == "derived"
    )
    for other in (
        found.assign_coords(model=["x", "y"]),
        found.rename(model="other"),
        found.drop_vars("model"),
    ):
        assert sl.results.provenance(other)["model"] == [
            "a",
            "b",
        ]  # whichever part it is


@pytest.mark.parametrize(
    "text",
    [
        '{"joined": 3}',
        '{"joined": {"dim": "a", "labels": [1], "shared": {}, "parts": []}}',
        "{",
        "3",
        "[]",
        3,
        "[" * 100_000,
        b"{}",
    ],
)
def test_a_damaged_provenance_is_refused(text: Any) -> None:
    result = xr.DataArray(
        [1.0, 2.0], dims="a", coords={"a": [1, 2]}, attrs={"provenance": text}
    )
    with pytest.raises(InputError, match="is not a provenance"):
        sl.results.provenance(result)


def test_stored_facts_of_parts_come_back_unchanged() -> None:
    """Deep ones, missing ones, empty ones; true is not 1."""
    parts: list[dict[str, Any]] = [
        {"a": 1, "b": {"c": True, "d": []}, "e": {}, "f": None},
        {"a": 1.0, "b": {"c": 1, "d": []}, "e": {"x": [1, {"y": 2}]}},
        {"a": 1, "b": {"d": []}, "e": {}, "f": [None]},
    ]
    stored = json.loads(facts.written(facts.together("k", [0, 1, 2], parts)))
    for place, part in enumerate(parts):
        back = facts.read_facts(
            stored, lambda dim, place=place: [place] if dim == "k" else None
        )
        assert back == part
        assert json.dumps(back, sort_keys=True) == json.dumps(
            part, sort_keys=True
        )  # in which true is not 1
    assert facts.read_facts(stored, lambda dim: None)["a"] == 1
    assert facts.read_facts(stored, lambda dim: [2, 0])["b"] == [
        parts[2]["b"],
        parts[0]["b"],
    ]
    assert facts.read_facts(stored, lambda dim: None)["f"] == [None, None, [None]]
    assert facts.read_facts(stored, lambda dim: ["other"]) == facts.read_facts(
        stored, lambda dim: None
    )


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
