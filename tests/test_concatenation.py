"""Results of several models and prompts side by side: no number is given to another model, token or prompt."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError
from squashlens.records.labels import dataset_of
from squashlens.records.provenance import with_provenance
from tests import measurements

provenance = sl.results.provenance
concat: Any = sl.results.concat


def measured(
    tokens: str = "xyz", model: str = "a", *, function: str = "f", **attrs: str
) -> xr.DataArray:
    """A result over the letters of a text, whose values are the codes of its letters."""
    letters = list(tokens)
    codes = np.array(list(map(ord, tokens)))
    coords = {
        "position": np.arange(len(tokens)),
        "token": ("position", np.array(letters, dtype=object)),
        "token_id": ("position", codes),
    }
    attrs = {"long_name": "bound", "units": "1"} | attrs
    array = xr.DataArray(codes.astype(float), coords, ("position",), "bound", attrs)
    call = {"function": function, "prompt": tokens}
    return with_provenance(array, {"model": model, "call": call})


def test_tokens_stay_with_their_numbers() -> None:
    """Positions go by number, tokens are each part's own, and padding is no token."""
    texts = {"one": "xyz", "two": "xwvut", "three": "q"}
    parts = {name: measured(text, name) for name, text in texts.items()}
    joined = concat(parts, dim="model")
    assert joined.dims == joined["token"].dims == ("model", "position")
    assert provenance(joined)["model"] == list(texts)
    for name, text in texts.items():
        part = joined.sel(model=name)
        n_missing = 5 - len(text)
        codes = list(map(ord, text))
        assert part["n_tokens"] == len(text)
        assert part["token"].values.tolist() == list(text) + [""] * n_missing
        assert part["token_id"].dtype == np.int64
        assert part["token_id"].values.tolist() == codes + [-1] * n_missing
        np.testing.assert_array_equal(part, codes + [np.nan] * n_missing)
        assert provenance(part) == provenance(parts[name])


def test_equal_tokens_are_named_once() -> None:
    joined = concat({2: measured(), 1: measured(model="b")}, dim="number")
    assert joined["token"].dims == ("position",)
    assert "n_tokens" not in joined.coords
    assert joined["number"].values.tolist() == [2, 1]
    assert provenance(joined.sel(number=1))["model"] == "b"


def of_layers(layers: list[int], kinds: list[str], model: str) -> xr.Dataset:
    """Distances by layer and kind, flags and texts by layer."""
    distance = np.add.outer(10.0 * np.array(layers), np.arange(len(kinds)))
    distance[0] = np.nan  # of the result itself
    texts = np.array([f"{model}{layer}" for layer in layers], dtype=object)
    variables: dict[str, Any] = {
        "d": (("layer", "kind"), distance, "D", "model units"),
        "same": (("layer",), np.array(layers) > 1, "whether the same", "1"),
        "why": (("layer",), texts, "why", "text"),
    }
    facts = {"model": model, "call": {"function": "made"}}
    return dataset_of("made", {"layer": layers, "kind": kinds}, variables, facts)


def test_models_of_other_depth(tmp_path: Path) -> None:
    """Layers and kinds that a part lacks are NaN; flags become numbers; labels of text keep their order."""
    parts = {
        "a": of_layers([0, 2], ["z", "b"], "a"),
        "b": of_layers([0, 1, 3], ["b", "c"], "b"),
    }
    joined = concat(parts, dim="model")
    assert joined["layer"].values.tolist() == [0, 1, 2, 3]
    assert joined["kind"].values.tolist() == ["z", "b", "c"]
    of_a = joined["d"].sel(model="a", kind="b")
    np.testing.assert_array_equal(of_a, [np.nan, np.nan, 21, np.nan])
    expected = [[0, np.nan, 1, np.nan], [0, 0, np.nan, 1]]
    np.testing.assert_array_equal(joined["same"], expected)
    expected = [["a0", "", "a2", ""], ["b0", "b1", "", "b3"]]
    assert joined["why"].values.tolist() == expected
    for label, part in parts.items():
        again = joined.sel(model=label, layer=part["layer"], kind=part["kind"])
        assert provenance(again) == provenance(part)
        np.testing.assert_array_equal(again["d"], part["d"])
        np.testing.assert_array_equal(again["same"], part["same"])
    path = sl.results.save(joined, tmp_path / "x.nc")
    xr.testing.assert_identical(sl.results.open(path), joined)


def test_joined_of_joined() -> None:
    rows = {}
    for prompt in ("xyz", "q"):
        parts = {model: measured(prompt, model) for model in ("a", "b")}
        rows[prompt] = concat(parts, dim="model")
    joined = concat(rows, dim="prompt")
    assert joined.dims == ("prompt", "model", "position")
    part = joined.sel(prompt="q", model="b")
    assert provenance(part) == provenance(measured("q", "b"))
    np.testing.assert_array_equal(part.dropna("position"), measured("q", "b"))


def test_answers_to_other_numbers_of_questions_are_counted_alone() -> None:
    evaluate = measurements.ROWS["evaluate_task"].called
    few = evaluate(lengths=[6], seeds=2)
    many = evaluate(lengths=[6, 7], seeds=3)
    frequencies: Any = sl.results.answer_frequencies
    joined = concat({"few": few, "many": many}, dim="run")
    assert frequencies(joined.sel(run="few")).equals(frequencies(few))
    with pytest.raises(InputError):
        frequencies(joined)


def test_a_selected_part_can_be_joined_again() -> None:
    """Under another label, which does not lead to another part's provenance."""
    joined = concat({"a": measured(), "b": measured(model="b")}, dim="model")
    parts = {"a": joined.sel(model="b"), "c": joined.sel(model="a")}
    swapped = concat(parts, dim="model")
    assert provenance(swapped)["model"] == ["b", "a"]
    assert provenance(swapped.sel(model="a"))["model"] == "b"
    assert provenance(swapped.sel(model="c"))["model"] == "a"


REFUSED = {
    "nothing": ({}, "model"),
    "one result": (measured().to_dataset(), "model"),
    "functions": ({"a": measured(), "b": measured(function="g")}, "model"),
    "units": ({"a": measured(), "b": measured(units="model units")}, "model"),
    "definitions": ({"a": measured(), "b": measured(long_name="l2")}, "model"),
    "dimensions": ({"a": measured(), "b": measured()[0]}, "model"),
    "a dimension twice": ({"a": measured(), "b": measured()}, "position"),
    "names": ({"a": measured(), "b": measured().rename("g")}, "model"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_one_measurement_is_refused(case: str) -> None:
    results, dim = REFUSED[case]
    with pytest.raises(InputError):
        concat(results, dim)


def test_certificates_are_those_of_all_parts() -> None:
    """And attributes that differ are not those of the first."""
    one = measured(mine="1")
    one.attrs |= {
        "rounding": 1e-9,
        "failure_probability": 1e-6,
        "estimated_tightness": 2.5,
    }
    two = measured(mine="2")
    two.attrs |= {
        "rounding": 1e-8,
        "failure_probability": 2e-6,
        "estimated_tightness": 2.8,
    }
    assert concat({"one": one, "two": two}, dim="run").attrs == {
        "long_name": "bound",
        "units": "1",
        "rounding": 1e-8,
        "failure_probability": pytest.approx(3e-6),
        "estimated_tightness": 2.8,
    }
