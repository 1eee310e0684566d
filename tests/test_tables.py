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


def test_a_row_has_a_number_and_what_it_belongs_to(tiny: Any) -> None:
    found = sl.path_bound(tiny, "110 =")
    table = sl.results.table(found)
    assert table.columns.tolist() == [
        "model",
        "prompt",
        "hooks",
        "position",
        "token",
        "token_id",
        "variable",
        "meaning",
        "value",
        "unit",
    ]
    assert table["value"].tolist() == found.values.tolist()
    assert table["token"].tolist() == found["token"].values.tolist()
    same = {name: {*table[name]} for name in ("model", "prompt", "variable", "unit")}
    assert same == {
        "model": {"tiny-gemma"},
        "prompt": {"110 ="},
        "variable": {"path_bound"},
        "unit": {"1"},
    }


@pytest.mark.few(3)
@pytest.mark.parametrize("name", measurements.results())
def test_no_number_is_lost_or_repeated(name: str) -> None:
    """Each variable has as many rows as numbers, under its own coordinates, and no provenance."""
    found = measurements.result(name)
    whole = (
        found if isinstance(found, xr.Dataset) else found.to_dataset(name=found.name)
    )
    numbers = {
        str(key): values
        for key, values in whole.data_vars.items()
        if values.dtype.kind in "biuf"
    }
    if not numbers:
        with pytest.raises(InputError, match="has no numbers"):
            sl.results.table(found)
        return
    table = sl.results.table(found)
    assert table["variable"].value_counts().to_dict() == {
        key: values.size for key, values in numbers.items()
    }
    assert table["value"].dtype == float
    for key, values in numbers.items():
        here = table[table["variable"] == key]
        np.testing.assert_array_equal(
            np.sort(here["value"]), np.sort(values.values.astype(float).ravel())
        )
        own = {f"{dim}_" if dim == "value" else str(dim) for dim in values.dims} - {
            "prompt"
        }
        assert (
            "prompt" in values.dims
            or not own
            or not here.duplicated(subset=[*own]).any()
        )
        for dim in (
            set(map(str, whole.dims)) - set(map(str, values.dims)) - {"prompt", "value"}
        ):
            assert (
                dim not in here or here[dim].isna().all()
            )  # not crossed with the dimensions of others
        (unit,) = set(here["unit"])
        assert unit == values.attrs["units"]
    assert not any("fingerprint" in str(cell) for cell in table.iloc[0])


def test_several_results_with_their_prompts_and_models(tiny: Any) -> None:
    """Of unequal lengths and given together, joined or as a dict: padding is left out, and each row has its prompt."""
    prompts = ["11 =", "How many ones are in 1101?", "0 ="]
    parts = {prompt: sl.path_bound(tiny, prompt) for prompt in prompts}
    expected = {
        (prompt, position): float(value)
        for prompt, part in parts.items()
        for position, value in enumerate(part)
    }
    together = sl.results.table(sl.path_bound(tiny, prompts))
    joined = sl.results.table(
        sl.results.concat(dict(zip("abc", parts.values(), strict=True)), dim="which")
    )
    apart = sl.results.table(dict(zip("abc", parts.values(), strict=True)))
    for table in (together, joined, apart):
        found = {(row.prompt, row.position): row.value for row in table.itertuples()}
        assert found == expected
        assert len(table) == len(expected)
        assert (table["token"] != "").all()
    assert (
        [*dict.fromkeys(joined["which"])]
        == [*dict.fromkeys(apart["label"])]
        == ["a", "b", "c"]
    )
    of_ids = sl.results.table(
        sl.path_bound(tiny, sl.prompts.tokenize(tiny, ["11 =", "10 ="]))[1:]
    )
    assert set(of_ids["prompt"]) == {str(sl.prompts.tokenize(tiny, "10 =")[0].tolist())}
    assert set(
        sl.results.table(sl.path_bound(tiny, ["11 =", "10 ="]).isel(prompt=1))["prompt"]
    ) == {"10 ="}


def test_models_of_a_joined_result() -> None:
    """Also where variables are not of one part, and where the labels are called model."""
    both = sl.results.concat(
        {
            name: measured("xyz"[:n], f"model {name}")
            for n, name in ((3, "a"), (2, "b"))
        },
        dim="which",
    )
    table = sl.results.table(both)
    assert table["model"].tolist() == ["model a"] * 3 + ["model b"] * 2
    assert table["which"].tolist() == ["a"] * 3 + ["b"] * 2
    renamed = sl.results.table(
        sl.results.concat(
            {name: measured("xyz", f"full {name}") for name in "ab"}, dim="model"
        )
    )
    assert renamed["model"].tolist() == ["a"] * 3 + ["b"] * 3
    assert "model_" not in renamed
    labelled = sl.results.table(
        sl.results.concat(
            {"short": measured("xy"), "long": measured("xyz")}, dim="prompt"
        )
    )
    assert labelled["prompt"].tolist() == ["short"] * 2 + ["long"] * 3
    sequences = sl.results.table(
        {
            name: measurements.result(name)
            for name in ("collapse", "evaluate", "convergence")
        }
    )
    assert [*dict.fromkeys(sequences["prompt"])] == [
        "Bernoulli(0.7), seed 0",
        "taught_count_bernoulli",
        "",
    ]
    assert [*dict.fromkeys(sequences["model"])] == ["tiny-gemma", ""]


def test_each_row_has_its_hooks(tiny: Any) -> None:
    plain = sl.path_bound(tiny, "110 =")
    with sl.applied(tiny, sl.hooks.mask_tokens([1])):
        masked = sl.path_bound(tiny, "110 =")
    names = "; ".join(
        f"blocks.{block}.attn.hook_attn_scores: mask_tokens(1)" for block in range(6)
    )
    for table in (
        sl.results.table({"a": plain, "b": masked}),
        sl.results.table(sl.results.concat({"a": plain, "b": masked}, dim="run")),
    ):
        assert table["hooks"].tolist() == [""] * 5 + [names] * 5


def test_whole_numbers_stay_whole_and_flags_are_1_and_0() -> None:
    variables: dict[str, Any] = {
        "flag": (("layer",), [True, False], "whether", "1"),
        "count": (("label",), [3, 4], "count", "items"),
        "text": (("layer",), ["a", "b"], "text", "text"),
    }
    coords = {"layer": [0, 1], "even": ("layer", [True, False]), "label": [10, 20]}
    table = sl.results.table(
        dataset_of("made", coords, variables, {"call": {"function": "made"}})
    )
    assert table["value"].tolist() == [1, 0, 3, 4]
    assert table["layer"].tolist()[:2] == [0, 1]
    assert str(table["layer"].dtype) == "Int64"
    assert table["even"].tolist()[:2] == [True, False]
    assert table["layer"].isna().tolist() == [False, False, True, True]
    assert table["label"].tolist()[2:] == [10, 20]


def test_what_has_no_table_is_refused() -> None:
    for given, message in (
        ({}, "result= is empty"),
        (
            measurements.result("evaluate")[["answer"]],
            "has no numbers: its variables are texts",
        ),
    ):
        with pytest.raises(InputError, match=message):
            sl.results.table(given)
