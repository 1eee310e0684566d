"""Prompts of unequal lengths in one result: each with the numbers of its own call, the rest said to be padding."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError
from squashlens.records.joining import without_padding

PROMPTS = ["110 =", "How many ones are 0 =", "0 ="]
LENGTHS = [5, 7, 3]
CALLS: list[tuple[Any, dict[str, Any]]] = [
    (sl.bound_vs_jacobian, {"norm": "frobenius"}),
    (sl.jacobian_norms, {"norm": "frobenius", "to_layer": [5, 3]}),
    (
        sl.jacobian_norms,
        {"norm": "frobenius", "method": "sketch", "n_probes": 8, "query": 1},
    ),
    (sl.path_bound, {}),
    (sl.certified_bound, {"from_layer": 5}),
    (sl.substitution_effect, {"n_replacements": 2}),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("verb", "options"), CALLS, ids=lambda value: getattr(value, "__name__", None)
)
def test_each_prompt_has_the_numbers_of_its_own_call(
    verb: Any, options: dict[str, Any], tiny: Any, tmp_path: Path
) -> None:
    found = verb(tiny, PROMPTS, **options)
    assert found["n_tokens"].values.tolist() == LENGTHS
    assert found.sizes["prompt"] == 3
    assert found.sizes["position"] == 7
    failures, fingerprints = [], set()
    for number, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True)):
        one = verb(tiny, prompt, **options)
        here = without_padding(found.isel(prompt=number)).drop_vars(
            ["prompt", "n_tokens"]
        )
        xr.testing.assert_equal(here.transpose(*one.dims), one)
        behind = found.isel(prompt=number, position=slice(length, None))
        assert set(behind["token"].values.tolist()) <= {""}
        assert set(behind["token_id"].values.tolist()) <= {-1}
        failures.append(one.attrs.get("failure_probability", 0))
        fingerprints.add(sl.results.provenance(one)["fingerprint"])
    facts = sl.results.provenance(found)
    assert {facts["fingerprint"]} == fingerprints
    assert found.attrs.get("failure_probability", 0) == pytest.approx(sum(failures))
    path = sl.results.save(found, tmp_path / "found.nc")
    assert sl.results.open(path).identical(found)


@pytest.mark.parametrize("prompts", [PROMPTS, ["110 =", "011 ="], PROMPTS[:1]])
def test_the_next_tokens_of_several_prompts_are_those_of_each(
    prompts: list[str], tiny: Any
) -> None:
    found, each = (
        sl.top_tokens(tiny, prompts),
        [sl.top_tokens(tiny, prompt) for prompt in prompts],
    )
    for number, one in enumerate(each):
        ours = found.isel(prompt=number) if len(prompts) > 1 else found
        np.testing.assert_allclose(ours, one, rtol=1e-5)
        assert ours["token"].values.tolist() == one["token"].values.tolist()
        assert ours["token_id"].values.tolist() == one["token_id"].values.tolist()
    assert len(getattr(sl.figures.of(found), "data", ())) == len(prompts)


def test_a_measurement_of_one_prompt_measures_equal_ones_one_by_one(tiny: Any) -> None:
    found = sl.bound_vs_jacobian(tiny, ["110 =", "011 ="], norm="frobenius")
    for number, prompt in enumerate(("110 =", "011 =")):
        np.testing.assert_array_equal(
            found["path_bound"][number],
            sl.bound_vs_jacobian(tiny, prompt, norm="frobenius")["path_bound"],
        )
    assert "unequal_lengths" not in sl.results.provenance(found)


OF_PROMPTS: list[Any] = [
    sl.path_bound,
    sl.jacobian_norms,
    sl.bound_vs_jacobian,
    sl.substitution_effect,
    sl.top_tokens,
    sl.attention_paths.composition,
    sl.attention_paths.hops,
    sl.attention_paths.strongest_paths,
    sl.attention_paths.depth_limit,
]


def test_refusals(tiny: Any) -> None:
    """Also a prompt of several that cannot be measured, and a sequence or its capture in place of a prompt."""
    ones = sl.prompts.repeated(tiny, "1", 4)
    pairs = sl.capture(tiny, ones, lengths=[2, 4])
    calls: list[Any] = [
        lambda: sl.collapse(tiny, pairs, lengths=[2]),
        lambda: sl.collapse(tiny, sequence=pairs, lengths=[2]),
        lambda: sl.path_bound(tiny, ["110 =", "110 = onse"]),
        lambda: sl.path_bound(tiny, [[2, 4], [2, 4, 9999]]),
        lambda: sl.path_bound(tiny, ["110 =", " "]),
        lambda: sl.path_bound(tiny, [[2, 4], [2] + [4] * 3000]),
        lambda: sl.path_bound(tiny, PROMPTS, query=4),
        lambda: sl.capture(tiny, PROMPTS),
    ]
    for measure in OF_PROMPTS:
        calls += [partial(measure, tiny, given) for given in (ones, pairs)]
    for call in calls:
        with pytest.raises(InputError):
            call()
