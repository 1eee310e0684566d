"""Maps of results: which are shown, from which query, and which are refused with a reason."""

from collections.abc import Callable
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
    profile = sl.token_influence(tiny, "110 =", method="none")
    for whole in (found, profile):
        turned = whole.transpose(*reversed([*whole.dims]))
        assert sl.squash_map(turned).page() == sl.squash_map(whole).page()


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
    profile = sl.token_influence(
        tiny, "110 =", method="none"
    )  # whose call names no query
    assert sl.squash_map(profile)._data()["opened"] == profile["position"][-1]
    for query in (5, -6):
        with pytest.raises(
            InputError, match=f"query={query} is not among the 5 queries of the result"
        ):
            sl.squash_map(found, query=query)
    with pytest.raises(InputError, match="query=2 is not among the 2 queries"):
        sl.squash_map(found.sel(query=[1, 4]), query=2)


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


REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "no prompt": lambda m, r: sl.squash_map(m),
    "two prompts": lambda m, r: sl.squash_map(m, ["110 =", "111 ="]),
    "one token": lambda m, r: sl.squash_map(m, [[2]]),
    "another query": lambda m, r: sl.squash_map(m, "110 =", query=99),
    "a norm": lambda m, r: sl.squash_map(m, "110 =", norm="l2"),
    "a method": lambda m, r: sl.squash_map(m, "110 =", method="sketch_upper"),
    "a knockout": lambda m, r: sl.squash_map(m, "110 =", knockout="none"),
    "another result": lambda m, r: sl.squash_map(sl.bound_vs_jacobian(m, "110 =")),
    "a prompt beside a result": lambda m, r: sl.squash_map(r, "110 ="),
    "a method beside a result": lambda m, r: sl.squash_map(r, method="none"),
    "spans beside a result": lambda m, r: sl.squash_map(r, spans="words"),
    "no query": lambda m, r: sl.squash_map(r.isel(query=[])),
    "a query twice": lambda m, r: sl.squash_map(r.isel(query=[0, 0])),
    "a path twice": lambda m, r: sl.squash_map(r.isel(path=[0, 0])),
    # The page counts tokens from 0, and would show the numbers of one token for another.
    "later positions": lambda m, r: sl.squash_map(r.sel(position=[1, 2])),
    "two positions": lambda m, r: sl.squash_map(r.sel(position=[0, 1])),
    "two blocks": lambda m, r: sl.squash_map(r.sel(block=[0, 1])),
    "backwards": lambda m, r: sl.squash_map(r.sel(position=[4, 3])),
    "live without a model": lambda m, r: sl.squash_map(r).live(),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_refused(call: Callable[[Any, Any], Any], tiny: Any, found: Any) -> None:
    with pytest.raises(InputError):
        call(tiny, found)
