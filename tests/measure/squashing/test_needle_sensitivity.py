"""One token of many prompts: each number is that of the measurement by itself, each mean that of its group."""

from typing import Any

import numpy as np
import xarray as xr

import squashlens as sl
from squashlens.records.provenance import without_provenance

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
