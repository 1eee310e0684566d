"""Tables of results: a row for each number, with the model, prompt and token that it belongs to."""

from typing import Any

import numpy as np
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError
from squashlens.records.labels import dataset_of
from tests import measurements
from tests.test_concatenation import measured

table_of: Any = sl.results.table


def test_a_row_has_a_number_and_what_it_belongs_to(tiny: Any) -> None:
    bound = sl.path_bound(tiny, "110 =")
    table = table_of(bound)
    about = ["model", "prompt", "hooks"]
    labels = ["position", "token", "token_id"]
    assert table.columns.tolist() == about + labels + [
        "variable",
        "meaning",
        "value",
        "unit",
    ]
    assert table["value"].tolist() == bound.values.tolist()
    assert table["token"].tolist() == bound["token"].values.tolist()
    same = table[["model", "prompt", "variable", "unit"]].drop_duplicates()
    assert same.to_numpy().tolist() == [["tiny-gemma", "110 =", "path_bound", "1"]]


@pytest.mark.few(3)
@pytest.mark.parametrize("name", measurements.results())
def test_no_number_is_lost_or_repeated(name: str) -> None:
    """Each variable has as many rows as numbers, under its own coordinates, and no provenance."""
    result = measurements.result(name)
    if isinstance(result, xr.DataArray):
        result = result.to_dataset()
    numbers = {n: values for n, values in result.items() if values.dtype.kind in "biuf"}
    if not numbers:
        with pytest.raises(InputError):
            table_of(result)
        return
    table = table_of(result)
    assert len(table) == sum(values.size for values in numbers.values())
    assert table["value"].dtype == float
    assert "fingerprint" not in table.to_csv()
    # Numbers of prompts are replaced by prompts, and dimensions called like columns get an underscore.
    not_as_they_are = ("prompt", "value", "unit")
    for variable, values in numbers.items():
        rows = table[table["variable"] == variable]
        expected = np.sort(values.values.astype(float).ravel())
        np.testing.assert_array_equal(np.sort(rows["value"]), expected)
        assert set(rows["unit"]) == {values.attrs["units"]}
        for dim in map(str, result.dims):
            # A variable is not crossed with the dimensions of others.
            if dim not in (*values.dims, *not_as_they_are) and dim in rows:
                assert rows[dim].isna().all()
        own = list(map(str, values.dims))
        if own and not set(own) & set(not_as_they_are):
            assert not rows.duplicated(subset=own).any()


def test_several_results_with_their_prompts(tiny: Any) -> None:
    """Of unequal lengths, given together, joined or as a dict: padding is left out, and each row has its prompt."""
    prompts = ["11 =", "How many ones are in 1101?", "0 ="]
    parts = {
        label: sl.path_bound(tiny, text)
        for label, text in zip("abc", prompts, strict=True)
    }
    expected = [value for part in parts.values() for value in part.values.tolist()]
    of_prompts = []
    for text, part in zip(prompts, parts.values(), strict=True):
        of_prompts += [text] * part.size
    joined = table_of(sl.results.concat(parts, dim="which"))
    apart = table_of(parts)
    for table in (table_of(sl.path_bound(tiny, prompts)), joined, apart):
        assert table["value"].tolist() == expected
        assert table["prompt"].tolist() == of_prompts
        assert (table["token"] != "").all()
    assert joined["which"].tolist() == apart["label"].tolist()
    assert apart["label"].unique().tolist() == ["a", "b", "c"]
    pair = sl.path_bound(tiny, ["11 =", "10 ="])
    assert set(table_of(pair.isel(prompt=1))["prompt"]) == {"10 ="}
    ids = sl.prompts.tokenize(tiny, "10 =")
    assert set(table_of(sl.path_bound(tiny, ids))["prompt"]) == {str(ids[0].tolist())}


def test_models_and_prompts_of_a_joined_result() -> None:
    """Also where the labels are called model or prompt."""
    parts = {"a": measured("xyz", "model a"), "b": measured("xy", "model b")}
    table = table_of(sl.results.concat(parts, dim="which"))
    assert table["model"].tolist() == ["model a"] * 3 + ["model b"] * 2
    assert table["which"].tolist() == ["a"] * 3 + ["b"] * 2
    for dim in ("model", "prompt"):
        table = table_of(sl.results.concat(parts, dim=dim))
        assert table[dim].tolist() == ["a"] * 3 + ["b"] * 2
        assert f"{dim}_" not in table


def test_each_row_has_its_hooks(tiny: Any) -> None:
    plain = sl.path_bound(tiny, "110 =")
    with sl.applied(tiny, sl.hooks.mask_tokens([1])):
        masked = sl.path_bound(tiny, "110 =")
    hooks = [f"blocks.{n}.attn.hook_attn_scores: mask_tokens(1)" for n in range(6)]
    parts = {"a": plain, "b": masked}
    for table in (table_of(parts), table_of(sl.results.concat(parts, dim="run"))):
        assert table["hooks"].tolist() == [""] * 5 + ["; ".join(hooks)] * 5


def test_whole_numbers_stay_whole_and_flags_are_1_and_0() -> None:
    variables: dict[str, Any] = {
        "flag": (("layer",), [True, False], "whether", "1"),
        "count": (("label",), [3, 4], "count", "items"),
        "text": (("layer",), ["a", "b"], "text", "text"),
    }
    coords = {"layer": [0, 1], "even": ("layer", [True, False]), "label": [10, 20]}
    table = table_of(
        dataset_of("made", coords, variables, {"call": {"function": "made"}})
    )
    assert table["value"].tolist() == [1, 0, 3, 4]
    assert str(table["layer"].dtype) == "Int64"
    assert table["layer"].dropna().tolist() == [0, 1]
    assert table["even"].dropna().tolist() == [True, False]
    assert table["label"].dropna().tolist() == [10, 20]
    assert table["layer"].isna().tolist() == [False, False, True, True]


def test_what_is_of_several_calls_has_numbers_and_no_model(tiny: Any) -> None:
    ratio = sl.path_bound(tiny, "11 =") / sl.path_bound(tiny, "11 =", query=-2)
    table = table_of(ratio.rename("ratio"))
    assert table["value"].tolist() == ratio.values.tolist()
    assert (table[["model", "prompt", "hooks"]] == "").all(axis=None)


def test_what_has_no_table_is_refused() -> None:
    for given in ({}, measurements.result("evaluate_task")[["answer"]]):
        with pytest.raises(InputError):
            table_of(given)
