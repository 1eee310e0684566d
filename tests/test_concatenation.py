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

MODELS = ("a", "b")


def origin(result: Any) -> dict[str, Any]:
    return sl.results.provenance(result)


def measured(
    tokens: str = "xyz",
    model: str = "a",
    *,
    name: str = "bound",
    function: str = "f",
    units: str = "1",
    long_name: str = "bound",
    **attrs: Any,
) -> xr.DataArray:
    """A result over the letters of a text, whose values are the codes of its letters."""
    coords = {
        "position": np.arange(len(tokens)),
        "token": ("position", np.array([*tokens], dtype=object)),
        "token_id": ("position", np.array([*map(ord, tokens)])),
    }
    values = np.array([*map(ord, tokens)], dtype=float)
    attrs = {"long_name": long_name, "units": units, **attrs}
    array = xr.DataArray(values, coords, ("position",), name, attrs)
    return with_provenance(
        array, {"model": model, "call": {"function": function, "prompt": tokens}}
    )


def test_tokens_stay_with_their_numbers() -> None:
    """Positions go by number, tokens are each part's own, and padding is no token."""
    texts = {"one": "xyz", "two": "xwvut", "three": "q"}
    both = sl.results.concat(
        {name: measured(text, name) for name, text in texts.items()}, dim="model"
    )
    assert both.dims == ("model", "position")
    assert both["token"].dims == both["token_id"].dims == ("model", "position")
    for name, text in texts.items():
        here, n = both.sel(model=name), len(text)
        assert here["n_tokens"].item() == n
        assert [*here["token"].values] == [*text, *[""] * (5 - n)]
        assert here["token_id"].values.tolist() == [*map(ord, text), *[-1] * (5 - n)]
        assert here["token_id"].dtype == np.int64
        np.testing.assert_array_equal(here, [*map(ord, text), *[np.nan] * (5 - n)])
        assert origin(here) == {
            "model": name,
            "call": {"function": "f", "prompt": text},
        }
    assert sl.results.provenance(both)["model"] == [*texts]
    equal = sl.results.concat({2: measured(), 1: measured(model="b")}, dim="number")
    assert equal["token"].dims == ("position",)  # equal tokens are named once
    assert "n_tokens" not in equal.coords
    assert equal["number"].values.tolist() == [2, 1]
    assert sl.results.provenance(equal.sel(number=1))["model"] == "b"


def test_models_of_other_depth_and_lengths(tmp_path: Path) -> None:
    """Layers and lengths that a part lacks are NaN; flags become numbers; labels of text keep their order."""

    def one(layers: list[int], kinds: list[str], model: str) -> xr.Dataset:
        values = np.add.outer(10.0 * np.array(layers), np.arange(len(kinds)))
        values[0] = np.nan  # of the result itself
        coords = {
            "layer": layers,
            "kind": kinds,
            "even": ("layer", np.array(layers) % 2 == 0),
        }
        variables: dict[str, Any] = {
            "d": (("layer", "kind"), values, "D", "model units"),
            "same": (("layer",), np.array(layers) > 1, "whether the same", "1"),
            "why": (
                ("layer",),
                np.array([f"{model}{n}" for n in layers], dtype=object),
                "why",
                "text",
            ),
        }
        return dataset_of(
            "made", coords, variables, {"model": model, "call": {"function": "made"}}
        )

    parts = {"a": one([0, 2], ["z", "b"], "a"), "b": one([0, 1, 3], ["b", "c"], "b")}
    both = sl.results.concat(parts, dim="model")
    assert both["layer"].values.tolist() == [0, 1, 2, 3]
    assert both["kind"].values.tolist() == ["z", "b", "c"]
    assert both["d"].dims == ("model", "layer", "kind")
    np.testing.assert_array_equal(
        both["d"].sel(model="a", kind="b"), [np.nan, np.nan, 21, np.nan]
    )
    np.testing.assert_array_equal(
        both["same"], [[0, np.nan, 1, np.nan], [0, 0, np.nan, 1]]
    )
    assert both["why"].values.tolist() == [["a0", "", "a2", ""], ["b0", "b1", "", "b3"]]
    for label, part in parts.items():
        back = both.sel(model=label)
        assert sl.results.provenance(back) == sl.results.provenance(part)
        for name in ("d", "same"):
            here = back[name].sel(
                {dim: part[dim] for dim in part[name].dims}, drop=True
            )
            np.testing.assert_array_equal(here, part[name])
    fewer: Any = parts | {"b": parts["b"].drop_vars("why")}
    with pytest.raises(InputError, match=r"drop_vars\(\['why'\], errors='ignore'\)"):
        sl.results.concat(fewer, dim="model")
    sl.results.concat(
        {
            name: part.drop_vars(["why"], errors="ignore")
            for name, part in fewer.items()
        },
        dim="model",
    )
    path = sl.results.save(both, tmp_path / "x.nc")
    xr.testing.assert_identical(sl.results.open(path), both)


def test_joined_of_joined_and_one_part(tmp_path: Path) -> None:
    rows = {
        prompt: sl.results.concat(
            {model: measured(prompt, model) for model in MODELS}, dim="model"
        )
        for prompt in ("xyz", "q")
    }
    both = sl.results.open(
        sl.results.save(sl.results.concat(rows, dim="prompt"), tmp_path / "x.nc")
    )
    assert both.dims == ("prompt", "model", "position")
    for prompt in rows:
        for model in MODELS:
            expected = origin(measured(prompt, model))
            assert origin(both.sel(prompt=prompt, model=model)) == expected
            np.testing.assert_array_equal(
                both.sel(prompt=prompt, model=model).dropna("position"),
                measured(prompt, model),
            )
    alone = sl.results.concat({"a": measured()}, dim="model")
    assert origin(alone) == origin(alone.squeeze()) == origin(measured())
    np.testing.assert_array_equal(alone.squeeze(), measured())


def test_answers_to_other_numbers_of_questions_are_counted_alone() -> None:
    few, many = (
        measurements.ROWS["evaluate"].called(lengths=lengths, seeds=n)
        for lengths, n in (([6], 2), ([6, 7], 3))
    )
    both: Any = sl.results.concat({"few": few, "many": many}, dim="run")
    assert sl.results.answer_frequencies(both.sel(run="few")).equals(
        sl.results.answer_frequencies(few)
    )
    with pytest.raises(
        InputError, match="over run, and this function takes one of each"
    ):
        sl.results.answer_frequencies(both)
    apart: Any = [
        sl.results.concat({label: one}, dim="run")
        for label, one in (("few", few), ("many", many))
    ]
    nested: Any = sl.results.concat(dict(zip("xy", apart, strict=True)), dim="half")
    with pytest.raises(InputError, match="no joined part has them"):
        sl.figures.of(nested.sel(half="x", run="many"))
    lengths: Any = sl.results.concat(
        {6: few.sel(length=6), 7: many.sel(length=7)}, dim="length"
    )
    assert float(
        sl.results.answer_frequencies(lengths)["truth"].sum()
    ) == pytest.approx(1)


def test_a_selected_part_can_be_joined_again() -> None:
    """Under another label, which does not lead to another part's provenance."""
    both = sl.results.concat(
        {model: measured(model=model) for model in MODELS}, dim="model"
    )
    swapped = sl.results.concat(
        {"a": both.sel(model="b"), "c": both.sel(model="a")}, dim="model"
    )
    models = [
        sl.results.provenance(one)["model"]
        for one in (swapped, swapped.sel(model="a"), swapped.sel(model="c"))
    ]
    assert models == [["b", "a"], "b", "a"]
    inner = sl.results.concat(
        {"x": both.sel(model="b"), "y": measured(model="c")}, dim="other"
    )
    assert sl.results.provenance(inner)["model"] == ["b", "c"]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("results", "dim", "message"),
    [
        (lambda: {}, "model", "result= is empty"),
        (lambda: measurements.result("collapse"), "model", "result= is one result"),
        (
            lambda: {"a": measured(), 1: measured()},
            "model",
            "Some labels of result= are text and some are numbers",
        ),
        (
            lambda: {"a": measured(), "b": measured(function="g")},
            "model",
            "with provenance_f; and .* with provenance_g",
        ),
        (
            lambda: {"a": measured(), "b": measured(units="model units")},
            "model",
            r"bound \(1\) .*bound \(model",
        ),
        (
            lambda: {"a": measured(), "b": measured(long_name="l2")},
            "model",
            "'bound' is not the same quantity in 'a'",
        ),
        (
            lambda: {"a": measured(), "b": measured()[0]},
            "model",
            r"over \(position\), .*over \(\)",
        ),
        (
            lambda: {"a": measured(), "b": measured()},
            "position",
            "already have 'position'",
        ),
        (
            lambda: {"a": measured(), "b": measured("xyz").isel(position=[0, 0])},
            "model",
            "cannot be joined",
        ),
        (
            lambda: {"a": measured(), "b": measured(name="g")},
            "model",
            r"with provenance_f; and missing. .* same options\. `squash",
        ),
    ],
)
def test_what_is_not_one_measurement_is_refused(
    results: Any, dim: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        sl.results.concat(results(), dim)


def test_attributes_that_differ_are_not_those_of_the_first() -> None:
    one, two = (
        measurements.result("path_bound").assign_attrs(estimated_tightness=t, mine=t)
        for t in (2.5, 2.8)
    )
    one.attrs |= {"rounding": 1e-9, "failure_probability": 1e-6}
    two.attrs |= {"rounding": 1e-8, "failure_probability": 2e-6}
    both = sl.results.concat({"one": one, "two": two}, dim="run")
    assert (both.attrs["rounding"], both.attrs["failure_probability"]) == (
        1e-8,
        pytest.approx(3e-6),
    )
    assert both.attrs["estimated_tightness"] == 2.8
    assert "mine" not in both.attrs
    assert both.attrs["units"] == one.attrs["units"]
