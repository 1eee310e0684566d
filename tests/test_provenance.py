"""A result has its provenance once; it is not read where it may be that of one part only."""

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError
from squashlens.figures.drawing.inputs.facts import notes_of
from squashlens.records import facts
from squashlens.records.joining import joined
from squashlens.records.results import sealed
from tests import odd


@pytest.mark.parametrize("name", [name for name in odd.result("") if name != "shares_and_counts"])
def test_every_result_has_it_once(name: str) -> None:
    found = odd.result(name)
    call = sl.results.provenance(found)["call"]
    assert call["function"]
    if isinstance(found, xr.Dataset):
        for variable in found.data_vars.values():
            assert set(variable.attrs) <= {"long_name", "units"}
            assert sl.results.provenance(variable) == sl.results.provenance(found)


def test_the_prompt_is_recorded_as_it_was_given(tiny: Any) -> None:
    ids = sl.prompts.tokenize(tiny, "110 =")
    for given, recorded in (
        ("110 =", "110 ="),
        (["110 =", "011 ="], ["110 =", "011 ="]),
        (["110 =", "0 ="], ["110 =", "0 ="]),  # of unequal length, measured one by one
        (ids, ids[0].tolist()),
        (ids[0].numpy(), ids[0].tolist()),
        (sl.capture(tiny, "110 ="), ids[0].tolist()),
    ):
        found = sl.path_bound(tiny, given)
        assert sl.results.provenance(found)["call"]["prompt"] == recorded
    apart = sl.path_bound(tiny, ["110 =", "0 ="])
    assert sl.results.provenance(apart.sel(prompt=1))["call"]["prompt"] == "0 ="
    assert "prompt" not in sl.results.provenance(odd.result("collapse"))["call"]  # it has a sequence
    assert sl.results.provenance(odd.result("needle"))["call"]["prompt"] == [odd.ids().tolist()]


def test_the_repr_begins_with_model_and_prompt(tiny: Any) -> None:
    found = sl.path_bound(tiny, "110 =\n" * 9)
    assert list(found.attrs) == ["long_name", "units", "model", "prompt", "provenance"]
    assert found.attrs["model"] == "tiny-gemma"
    assert found.attrs["prompt"].startswith("'110 =\\n110")
    assert len(found.attrs["prompt"]) <= 80
    assert odd.result("collapse").attrs["sequence"] == "Bernoulli(0.7), seed 0"
    assert odd.result("evaluate").attrs["task"] == "taught_count_bernoulli"
    assert "units" not in odd.result("collapse").attrs


def test_what_selects_or_reorders_keeps_it(tiny: Any, tmp_path: Path) -> None:
    bound = sl.path_bound(tiny, ["110 =", "011 ="], to_layer=[2, "y"])
    expected = sl.results.provenance(bound)
    collapse = odd.result("collapse")
    changed = [
        bound.isel(position=[0, 2]), bound.sel(to_layer="y"), bound.isel(prompt=0, drop=True), bound[0, 1, 2],
        bound.transpose("position", ...), bound.copy(), bound.rename("other"), bound.assign_coords(mine=3),
        bound.isel(prompt=0).swap_dims(position="token"), bound.stack(cell=("prompt", "position")),
        bound.sortby("position", ascending=False), bound.isel(prompt=[1, 0]), bound.isel(prompt=[0]).squeeze(),
        bound.sel(to_layer="y").expand_dims("to_layer"), copy.deepcopy(bound), pickle.loads(pickle.dumps(bound)),  # noqa: S301
        sl.results.open(sl.results.save(bound, tmp_path / "x.nc")),
        sl.results.open(sl.results.save(bound, tmp_path / "x.json")),
        bound.to_dataset(name="bound", promote_attrs=True), bound.isel(position=[]),
    ]  # fmt: skip
    for one in changed:
        assert sl.results.provenance(one) == expected
    stored = sl.results.open(sl.results.save(collapse, tmp_path / "y.nc"))
    for one in (
        collapse.isel(layer=-1), collapse[["distance"]], collapse["distance"], collapse["distance"].isel(layer=[0]),
        stored["distance"], sl.results.open(sl.results.save(collapse["distance"], tmp_path / "z.nc")),
        sl.results.open(sl.results.save(stored["distance"], tmp_path / "z.json")),
    ):  # fmt: skip
        assert sl.results.provenance(one) == sl.results.provenance(collapse)


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "negated": (lambda r: r * -1, "values of 'distance' were computed from a result of `collapse`"),
    "doubled": (lambda r: 2 * r, "values of 'distance' were computed"),
    "a variable doubled": (lambda r: r.assign(distance=2 * r["distance"]), "values of 'distance' were computed"),
    "a new variable": (lambda r: r.assign(mine=r["distance"] - r["distance"]), r"'mine' .*drop_vars\('mine'\)"),
    "a mean": (lambda r: r.mean("length"), "values of 'distance' were computed"),
    "masked": (lambda r: r.where(r["length"] > 8), "values of 'distance' were computed"),
    "filled": (lambda r: r.fillna(0), "values of 'distance' were computed"),
    "cast": (lambda r: r.astype("float16"), "values of 'distance' were computed"),
    "relabelled": (
        lambda r: r.assign_coords(length=r["length"].values[::-1]),
        "labels 'length' of this result are not",
    ),
    "increased": (lambda r: r.assign_coords(length=r["length"] + 1), "labels 'length' of this result are not"),
    "other units": (lambda r: r.assign(distance=r["distance"].assign_attrs(units="1")), r"Restore them with .*units='"),
    "another long name": (
        lambda r: r.assign(distance=r["distance"].assign_attrs(long_name="bound")),
        "The long name or units of 'distance' are not those that `collapse` gave",
    ),
    "without attributes": (lambda r: r.assign(distance=r["distance"].drop_attrs()), "Restore them with .*long_name='"),
    "extended": (lambda r: r.reindex(layer=[0, 1, 9], fill_value=1.0), r"labels of 'layer' .* did not measure.*dropna"),
    "swapped variables": (lambda r: r.rename(distance="rms", rms="distance"), "those of another variable"),
    "a variable twice": (lambda r: r.assign(rms=r["distance"]), "values of 'rms' .* those of another variable"),
    "swapped labels": (lambda r: r.isel(layer=0).rename(length="layer", layer="length"), "labels '(length|layer)' of"),
}

OPENED = {  # a file has only which values and labels are as they were measured
    **dict.fromkeys(("other units", "another long name", "without attributes"), "values of 'distance' were computed"),
    "extended": "labels 'layer' of this result are not",
}


# Also in a file: those that read otherwise there, and one of each kind.
FILED = {*OPENED, "negated", "a mean", "relabelled", "swapped variables", "swapped labels"}


@pytest.mark.parametrize("name", CHANGES)
def test_values_that_were_computed_and_labels_that_were_replaced_have_none(name: str, tmp_path: Path) -> None:
    """xarray keeps the attributes of a result in what is computed from it."""
    change, message = CHANGES[name]
    changed = change(odd.result("collapse"))
    assert "provenance" in changed.attrs
    for one in (changed, pickle.loads(pickle.dumps(changed))):  # noqa: S301
        with pytest.raises(InputError, match=message):
            sl.results.provenance(one)
    if name in FILED:
        opened = sl.results.open(sl.results.save(changed, tmp_path / "x.nc"))
        xr.testing.assert_identical(opened, changed)
        with pytest.raises(InputError, match=OPENED.get(name, message)):
            sl.results.provenance(opened)
    assert (
        sl.results.provenance(odd.result("collapse"))["call"]["function"] == "collapse"
    )  # the result itself has it still


def test_a_single_number_that_was_computed_has_none(tiny: Any) -> None:
    bound = sl.path_bound(tiny, "110 =")
    with pytest.raises(InputError, match="Nothing in this result is known to be measured.*`path_bound`"):
        sl.results.provenance(bound.mean())
    with pytest.raises(InputError, match="squashlens did not measure it"):
        sl.results.provenance(odd.result("collapse")["distance"] * 2)


def test_a_file_that_plain_xarray_opened_needs_the_function_that_opens_results(tiny: Any, tmp_path: Path) -> None:
    path = sl.results.save(sl.path_bound(tiny, "110 ="), tmp_path / "x.nc")
    with xr.open_dataset(path, engine="h5netcdf") as opened:
        with pytest.raises(InputError, match=r"Open files with `squashlens\.results\.open`"):
            sl.results.provenance(opened["path_bound"])
        other = tmp_path / "other.nc"
        opened["path_bound"].to_netcdf(other, engine="h5netcdf")
    with pytest.raises(InputError, match=r"`squashlens\.results\.save`"):
        sl.results.provenance(sl.results.open(other)["path_bound"])


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.assign_coords(model=["b", "a"]), lambda r: r.assign_coords(model=["x", "y"]),
        lambda r: r.rename(model="other"), lambda r: r.isel(model=0, drop=True), lambda r: r.drop_vars("model"),
        lambda r: r.assign_coords(model=[0, 1]), lambda r: r.reindex(model=["a", "z"]),
        lambda r: r.isel(model=0, drop=True).expand_dims(model=["b"]),
    ],
)  # fmt: skip
def test_parts_need_their_own_labels(change: Callable[[Any], Any]) -> None:
    def one(model: str) -> xr.DataArray:
        return sealed(xr.DataArray([1.0, 2.0], dims="layer", name="d"), {"model": model, "call": {"function": "f"}})

    found = joined({"a": one("a"), "b": one("b")}, "model")
    assert sl.results.provenance(found.isel(model=1))["model"] == "b"
    with pytest.raises(InputError, match="labels|a new dimension 'other'"):
        sl.results.provenance(change(found))


def test_figures_tables_and_exports_need_measured_values() -> None:
    collapse, bound = odd.result("collapse"), odd.result("path_bound")
    with pytest.raises(InputError, match="were computed from a result of `collapse`"):
        sl.figures.of(collapse * -1)
    with pytest.raises(InputError, match="were computed from a result of `path_bound`"):
        sl.results.table(bound - bound)
    with pytest.raises(InputError, match="were computed from a result of `path_bound`"):
        sl.results.concat({"a": bound, "b": 2 * bound}, dim="run")
    assert len(sl.figures.of(collapse[["distance"]]).data)
    assert sl.results.table(collapse["distance"])["model"].unique().tolist() == [
        sl.results.provenance(collapse)["model"]
    ]


@pytest.mark.parametrize("ending", ["", ".nc", ".json"])
def test_computed_values_are_not_drawn_under_the_name_of_the_measurement(
    tiny: Any, tmp_path: Path, ending: str
) -> None:
    """Arithmetic on a variable of a Dataset leaves no provenance, but long name and coordinates; so do files of it."""
    found, other = (sl.sensitivity(tiny, prompt, progress=False) for prompt in ("110 =", "0110 ="))
    for computed in (
        found["jacobian"] * 2, found["jacobian"] - found["null"].assign_attrs(found["jacobian"].attrs),
        found["jacobian"] / other["jacobian"], found["path_bound"] - found["jacobian"],
        found["jacobian"] - sl.path_bound(tiny, "110 ="), (found["null"] / found["jacobian"]).rename("looseness"),
        found["jacobian"].cumsum("position").assign_coords(position=found["position"]),
        (found["jacobian"] * 2).sortby("position", ascending=False).rename("mine"),
        found["jacobian"].where(found["position"] > 0, 0),
    ):  # fmt: skip
        values: Any = computed.assign_coords({name: found[name] for name in ("token", "token_id")})
        own: Any = values.drop_attrs().assign_attrs(long_name="a number of mine", units="1")
        if ending:
            values, own = (
                sl.results.open(sl.results.save(one, tmp_path / f"{name}{ending}"))
                for name, one in {"a": values, "b": own}.items()
            )
        for use in (
            sl.figures.by_token, sl.figures.of, lambda one: sl.figures.of({"a": one, "b": found["jacobian"]}),
            lambda one: sl.figures.of(one.to_dataset(name="jacobian")),
            lambda one: sl.results.save(one, tmp_path / "x.csv"), sl.results.table, sl.export.circuitsvis,
        ):  # fmt: skip
            with pytest.raises(InputError, match="computed from"):
                use(values)
        figure: Any = sl.figures.of(own)
        assert figure.layout.title.text == "A number of mine"
        sl.results.save(own, tmp_path / "x.csv")


def test_values_of_the_user_are_drawn(tiny: Any, tmp_path: Path) -> None:
    """Arrays of the user's own, also at the labels of a result, and computed ones that say what they are."""
    found = sl.path_bound(tiny, "110 =")
    there = {name: found[name] for name in ("position", "token")}
    own = xr.DataArray(np.arange(5.0), dims="position", coords=there, attrs={"long_name": "share of mine"})
    doubled = (2 * found).drop_attrs().assign_attrs(long_name="twice the bound")
    for one, title in ((own, "Share of mine"), (doubled, "Twice the bound")):
        figure: Any = sl.figures.of(one)
        assert figure.layout.title.text == title
        assert sl.results.save(one, tmp_path / "x.csv").stat().st_size
    with pytest.raises(InputError, match="were computed from a result of `path_bound`.*drop_attrs"):
        sl.results.save(2 * found, tmp_path / "x.csv")
    joined = xr.concat([found, found], dim="model", combine_attrs="override")
    for use in (sl.figures.of, sl.results.table, lambda one: sl.results.save(one, tmp_path / "x.csv")):
        with pytest.raises(InputError, match="a new dimension 'model'"):
            use(joined)


def test_what_plain_xarray_joins_is_refused(tiny: Any) -> None:
    a, b = (sl.path_bound(tiny, prompt) for prompt in ("110 =", "011 ="))
    new = "a new dimension 'model': it was joined or reshaped.*Join results with `squashlens.results.concat`"
    for one in (
        xr.concat([a, b], dim="model", coords="minimal", compat="override", combine_attrs="override"),
        a.expand_dims("model"),
        xr.concat([odd.result("collapse")] * 2, dim="model", combine_attrs="override", data_vars="all"),
    ):
        with pytest.raises(InputError, match=new):
            sl.results.provenance(one)
    merged = xr.merge([a.rename("one"), b.rename("two")], compat="override", join="override")
    with pytest.raises(InputError, match="The variable 'two' of this Dataset has a provenance of its own"):
        sl.results.provenance(merged)
    longer = xr.concat([a, b], dim="position", combine_attrs="override")
    with pytest.raises(InputError, match="10 values along 'position', and 5 were measured"):
        sl.results.provenance(longer)
    evaluated = odd.result("evaluate")
    both = xr.concat([evaluated, evaluated], dim="model", combine_attrs="override", data_vars="all")
    with pytest.raises(InputError, match="a new dimension 'model'"):
        notes_of(both)  # the line under the title of every figure
    assert sl.results.provenance(both.isel(model=0)) == sl.results.provenance(evaluated)


@pytest.mark.parametrize(
    "text",
    [
        '{"joined": 3}', '{"joined": {}}', '{"joined": {"dim": "a", "labels": [1], "shared": {}, "parts": 2}}',
        '{"joined": {"dim": "a", "labels": [1], "shared": {}, "parts": []}}', '{"measured": 3}',
        '{"measured": {"a": "b"}}',
        '{"joined": {"dim": {}, "labels": [1], "shared": {"a": 1}, "parts": [{"a": {"b": 1}}]}}',
        '{"joined": {"dim": "a", "labels": [1], "shared": [], "parts": [[]]}}', '{"measured": []}',
    ],
)  # fmt: skip
def test_a_damaged_provenance_is_refused(text: str) -> None:
    result = xr.DataArray([1.0, 2.0], dims="a", coords={"a": [1, 2]}, attrs={"provenance": text})
    with pytest.raises(InputError, match=r"is not a provenance|joined or reshaped"):
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
        back = facts.told(stored, lambda dim, place=place: [place] if dim == "k" else None)
        assert back == part
        assert json.dumps(back, sort_keys=True) == json.dumps(part, sort_keys=True)  # in which true is not 1
    assert facts.told(stored, lambda dim: None)["a"] == 1
    assert facts.told(stored, lambda dim: [2, 0])["b"] == [parts[2]["b"], parts[0]["b"]]
    assert facts.told(stored, lambda dim: None)["f"] == [None, None, [None]]
    assert facts.told(stored, lambda dim: ["other"]) == facts.told(stored, lambda dim: None)


def test_joined_of_joined_keeps_every_part(tmp_path: Path) -> None:
    def one(model: str, seed: int) -> xr.DataArray:
        array = xr.DataArray(torch.arange(3.0).numpy(), dims="layer", name="d", attrs={"long_name": "D", "units": "1"})
        return sealed(array, {"model": model, "call": {"function": "f", "seed": seed}})

    rows = {model: joined({seed: one(model, seed) for seed in (1, 2)}, "seed") for model in "ab"}
    found = joined(rows, "model")
    assert found.dims == ("model", "seed", "layer")
    assert sl.results.provenance(found) == {"model": ["a", "b"], "call": {"function": "f", "seed": [1, 2]}}
    back = sl.results.open(sl.results.save(found, tmp_path / "x.nc"))
    for model in "ab":
        for seed in (1, 2):
            expected = {"model": model, "call": {"function": "f", "seed": seed}}
            assert sl.results.provenance(back.sel(model=model, seed=seed)) == expected
            assert sl.results.provenance(back.sel(seed=seed).sel(model=[model])) == expected
    assert sl.results.provenance(found.isel(model=0)) == {"model": "a", "call": {"function": "f", "seed": [1, 2]}}
    np.testing.assert_array_equal(found.isel(seed=0, model=1), [0, 1, 2])


# Texts that only a tokenizer read, random stacks without tokens, and counts of answers.
WITHOUT_IDS = ("splits", "convergence", "survey", "softmax_total_variation", "answer_frequencies")


@pytest.mark.parametrize("name", [name for name in odd.result("") if name not in WITHOUT_IDS])
def test_the_ids_that_were_measured_stand_in_every_result(name: str) -> None:
    """As a coordinate, or in the provenance: a tokenizer, or a template with a date, may give others tomorrow."""
    result = odd.result(name)
    if name != "top_tokens" and ("token_id" in result.coords or "token_id" in getattr(result, "data_vars", ())):
        return
    facts = sl.results.provenance(result)
    held = [facts, facts.get("sequence") or {}, facts.get("call") or {}]
    assert any(one.get(key) for one in held for key in ("token_ids", "prompt", "forms")), facts.keys()
    assert not any(isinstance(one.get("prompt"), str) for one in held if "token_ids" not in facts)


def test_the_content_of_a_sequence_stands_in_its_results() -> None:
    """Two sequences with one name are told apart, and can be built again."""
    model = odd.model()
    first, second = (sl.prompts.words(model, 4, words, seed=0, suffix="=") for words in ("01", "23"))
    held = [sl.results.provenance(sl.collapse(model, one))["sequence"] for one in (first, second)]
    assert held[0]["name"] == held[1]["name"]
    for one, stated in zip((first, second), held, strict=True):
        ids = stated["token_ids"]
        assert tuple(ids["content"]) == one.content
        assert [*ids["prefix"], *ids["content"], *ids["suffix"]] == list(one.pair(4).v)
