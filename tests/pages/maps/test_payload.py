"""The data of the page: the result's numbers as float32, and sentences about what is missing."""

import base64
import json
import re
from typing import Any

import numpy as np
import pytest

import squashlens as sl
from squashlens.pages.maps.payload import MOST, payload, text_of
from tests.pages.maps.made import HOSTILE, made


def numbers(data: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(data["blob"]), dtype="<f4")


def test_the_page_has_the_results_numbers(tiny: Any) -> None:
    found = sl.squash_map(tiny, "110 =", knockout="attention").result
    data = payload(found)
    blob = numbers(data)
    for one in data["quantities"]:
        for query, start in zip(data["queries"], one["starts"], strict=True):
            row = found[one["name"]].sel(query=query).values[..., : query + 1]
            if start < 0:
                assert np.isnan(row).all()
            else:
                np.testing.assert_array_equal(
                    blob[start : start + row.size], row.astype("<f4").ravel()
                )
    assert [one["name"] for one in data["quantities"]] == [
        "jacobian",
        "bound_over_null",
        "path_bound",
        "target_score_change",
        "null",
    ]
    for trace in data["traces"]["queries"]:
        for name, place in (("way_share", "share"), ("head_attention", "attention")):
            one = (
                found[name]
                .sel(traced=trace["query"], position=slice(0, trace["query"]))
                .values
            )
            np.testing.assert_array_equal(
                blob[trace[place] : trace[place] + one.size], one.astype("<f4").ravel()
            )
    series = {one["name"]: one["start"] for one in data["distance"]["series"]}
    influence = sl.influence_by_distance(
        tiny, "110 =", method="none", n_random_models=0
    )["influence"]
    null = influence.sel(quantity="null").values.astype("<f4").ravel()
    np.testing.assert_array_equal(
        blob[series["null"] : series["null"] + null.size], null
    )
    assert "jacobian" not in series, "a mean over one query of many"


@pytest.mark.few(1)
@pytest.mark.parametrize(("n", "layers"), [(4096, 7), (1500, 27), (40_000, 19)])
def test_a_long_prompt_is_thinned_to_six_megabytes_and_says_so(
    n: int, layers: int
) -> None:
    queries = range(n) if n < 3000 else range(n - 8, n)
    if n * len(queries) * layers > 2e7:
        queries = range(0, n, 25)
    page = sl.squash_map(
        made([f"t{k}" for k in range(n)], layers=layers, queries=list(queries))
    ).page()
    assert len(page.encode()) <= MOST
    data = json.loads(re.search(r'application/json">(.*?)</script>', page)[1])  # type: ignore[index]
    assert data["opened"] in data["queries"]
    assert any("measured" in note for note in data["notes"])
    if len(data["queries"]) < len(queries):
        assert any("the result has all of them" in note for note in data["notes"])


def test_a_profile_becomes_a_map_with_what_it_has(tiny: Any) -> None:
    profile = sl.token_influence(
        tiny,
        "110 =",
        queries=[1, 4],
        layers=[0, 3],
        method="auto",
        norm="frobenius",
    )
    data = payload(sl.squash_map(profile).result)
    assert (data["queries"], data["layers"], data["opened"], data["traces"]) == (
        [1, 4],
        [0, 3],
        4,
        None,
    )
    assert "Measured: 2 of 5 queries." in data["notes"]
    assert {one["name"]: one["norm"] for one in data["quantities"]}[
        "jacobian"
    ] == "frobenius"


def test_what_is_too_large_for_a_page_is_said() -> None:
    data = payload(made(["a", "b", "c"], size=1e60))
    assert "path_bound" not in [one["name"] for one in data["quantities"]]
    assert re.fullmatch(
        r"Path bound: up to .*e\+\d\d, too large for a page; the result has it\.",
        data["notes"][0],
    )
    assert [one["name"] for one in data["distance"]["series"]] == ["null"]
    assert np.isfinite(numbers(data)[numbers(data) > 1]).all()


def test_no_token_ends_the_data() -> None:
    text = text_of(payload(made(HOSTILE)))
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text)["tokens"] == list(HOSTILE)


def test_the_code_makes_the_same_map(tiny: Any) -> None:
    found = sl.squash_map(tiny, "110 =", method="none", query=3)
    (line,) = re.findall(
        r"^sl\.squash_map.*(?=\.save)", found._data()["code"], flags=re.MULTILINE
    )
    again = eval(line, {"sl": sl, "model": tiny})  # noqa: S307
    assert again.result.equals(found.result)
    assert found._data()["notes"] == [
        "Jacobian: not measured.",
        "Knockout: not measured.",
    ]


@pytest.mark.slow
def test_ways_leave_room_for_numbers() -> None:
    """For prompts of some hundred tokens all ways would fill the page, and hardly a query would be left."""
    model = sl.load("tiny-prose", device="cpu")
    ids = [3 + k % 40 for k in range(300)]
    found = sl.squash_map(model, ids, method="none")
    data = found._data()
    assert len(found.page().encode()) <= MOST
    assert data["layers"] == found.result["layer"].values.tolist()
    assert len(data["queries"]) >= 100
    traced = [trace["query"] for trace in data["traces"]["queries"]]
    assert len(traced) >= 20
    assert {*traced} <= {*data["queries"]}
    assert data["opened"] in traced
    if len(traced) < found.result.sizes["traced"]:
        assert any("the result has all of them" in note for note in data["notes"])
