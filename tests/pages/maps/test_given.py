"""Maps of results: which are shown, from which query, and which are refused with a reason."""

from typing import Any

import numpy as np
import pytest

import squashlens as sl
from squashlens.errors import InputError
from tests.pages.maps.test_payload import numbers


@pytest.fixture(scope="module")
def found(tiny: Any) -> Any:
    return sl.squash_map(tiny, "110 =", query=3).result


def test_a_joined_result_is_refused_and_a_part_is_shown(found: Any) -> None:
    both = sl.results.concat({"a": found, "b": found}, "model")
    with pytest.raises(InputError, match=r"the dimension 'model'.*isel\(model=0\)"):
        sl.squash_map(both)
    with pytest.raises(InputError, match="the dimension 'model'"):
        sl.squash_map(both.isel(model=[0]))
    one = sl.squash_map(both.sel(model="b"))._data()
    alone = sl.squash_map(found)._data()
    assert all(
        one[name] == alone[name]
        for name in ("tokens", "queries", "quantities", "collapse")
    )
    np.testing.assert_array_equal(numbers(one), numbers(alone))


def test_the_order_of_dimensions_changes_no_number(tiny: Any, found: Any) -> None:
    profile = sl.influence(tiny, "110 =", method="none")
    for whole in (found, profile):
        turned = whole.transpose(*reversed([*whole.dims]))
        assert sl.squash_map(turned).page() == sl.squash_map(whole).page()


@pytest.mark.parametrize("dim", ["query", "layer", "traced", "path"])
def test_labels_twice_and_none_are_refused(found: Any, dim: str) -> None:
    for chosen in ([], [0, 0]):
        with pytest.raises(
            InputError, match=f"Select at least one {dim}, and none twice"
        ):
            sl.squash_map(found.isel({dim: chosen}))
    assert sl.squash_map(found.isel({dim: [2, 0]})).page()


def test_missing_parts_are_refused_or_said(found: Any) -> None:
    for name in ("token", "token_id"):
        with pytest.raises(InputError, match="that a map cannot be made of"):
            sl.squash_map(found.drop_vars(name))
    for name in ("path_weight", "way_head"):
        data = sl.squash_map(found.drop_vars(name))._data()
        assert data["traces"] is None
        assert "Strongest paths: not measured." in data["notes"]


def test_the_query_of_a_result(tiny: Any, found: Any) -> None:
    assert sl.squash_map(found)._data()["opened"] == 3  # that of its call
    assert sl.squash_map(found, query=1)._data()["opened"] == 1
    assert sl.squash_map(found, query=-2)._data()["opened"] == 3
    profile = sl.influence(tiny, "110 =", method="none")  # whose call names no query
    assert sl.squash_map(profile)._data()["opened"] == profile["position"][-1]
    for query in (5, -6):
        with pytest.raises(
            InputError, match=f"query={query} is not among the 5 queries of the result"
        ):
            sl.squash_map(found, query=query)
    with pytest.raises(InputError, match="query=2 is not among the 2 queries"):
        sl.squash_map(found.sel(query=[1, 4]), query=2)


def test_options_of_a_measurement_are_refused(found: Any) -> None:
    for name, value in (
        ("method", "none"),
        ("norm", "frobenius"),
        ("target", "3"),
        ("spans", "words"),
        ("seed", 1),
    ):
        with pytest.raises(InputError, match=f"{name}=.* is given with a result"):
            sl.squash_map(found, **{name: value})


def test_a_prompt_of_two_tokens_without_bos(bridge_of: Any, tiny: Any) -> None:
    for model, prompt in (
        (tiny, [4, 76]),
        (bridge_of("gpt2"), [4, 6]),
    ):  # GPT-2 has none in front of a text
        shown = sl.squash_map(model, prompt)
        data = shown._data()
        assert len(data["tokens"]) == 2
        assert data["opened"] == 1
        assert "<bos>" not in data["tokens"]
        assert data["quantities"][0]["name"] == "jacobian"
