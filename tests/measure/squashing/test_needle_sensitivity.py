"""One token of many prompts: each number is that of the measurement by itself, each mean that of its group."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from scipy.stats import sem, t

import squashlens as sl
from squashlens.records.provenance import without_provenance

PROMPTS = [
    [2, 7, 11, 30, 7],
    [2, 7, 9, 30, 7, 7, 59],
    [2, 9, 11, 30, 8],
    [2, 12, 9, 30, 7, 7, 5],
]
AT = [2, 5, 1, -2]


@pytest.mark.slow
def test_every_number_is_the_measurements(bridge_of: Callable[..., Any]) -> None:
    model = bridge_of("gemma2")
    among: dict[str, Any] = {"candidates": [5, 6, 30], "n_replacements": 9}
    groups = [("a", 1), ("b", 1), ("a", 1), ("b", 2)]
    found = sl.needle_sensitivity(model, PROMPTS, AT, groups, **among)
    for k, (prompt, place) in enumerate(zip(PROMPTS, AT, strict=True)):
        ids, one = torch.tensor(prompt), found.isel(prompt=k)
        bound = sl.path_bound(model, ids).values[place]
        null = sl.path_bound(model, ids, attention="uniform").values[place]
        swap = sl.substitution_effect(model, ids, **among)
        wanted = {
            "path_bound": bound,
            "bound_over_null": bound / null,
            "jacobian": sl.jacobian_norms(model, ids, norm="frobenius").values[place],
            "output_change": swap["output_change"].values[place],
            "kl": swap["kl"].values[place],
        }
        for name, value in wanted.items():
            assert one[name].item() == pytest.approx(value, rel=1e-3), name
        assert value > 0
    means = found["jacobian"].values
    np.testing.assert_allclose(
        found["jacobian_mean"].values,
        [[means[[0, 2]].mean(), np.nan], [means[1], means[3]]],
    )
    low, high = found["jacobian_low"].values, found["jacobian_high"].values
    two = means[[0, 2]]
    np.testing.assert_allclose(
        [low[0, 0], high[0, 0]], t.interval(0.95, 1, two.mean(), sem(two))
    )
    assert np.isnan(low[1]).all()
    assert found["prompts"].values.tolist() == [[2, 0], [1, 1]]


ASKED = [
    f"What is the last digit in this sequence ? {digits} ="
    for digits in ("0111", "1101 1")
]


def test_a_text_is_found_whatever_its_tokens(tiny: Any) -> None:
    found = sl.needle_sensitivity(tiny, ASKED, find=" 0")
    by_hand = sl.needle_sensitivity(
        tiny, ASKED, found["position"].values.tolist(), [(" 0", 10), (" 0", 12)]
    )
    xr.testing.assert_equal(without_provenance(found), without_provenance(by_hand))
    assert found["position"].values.tolist() == [10, 12]
    two = sl.needle_sensitivity(tiny, ASKED, find="last digit", method="sketch", seed=3)
    way: dict[str, Any] = {"norm": "frobenius", "method": "sketch", "seed": 3}
    way["n_probes"] = 16
    norms = [
        sl.jacobian_norms(tiny, text, spans={"": [4, 5]}, **way).item()
        for text in ASKED
    ]
    np.testing.assert_array_equal(two["jacobian"], norms)
    assert two["token"].values.tolist() == ["last digit"] * 2
    assert (two["kl"] > 0).all()
