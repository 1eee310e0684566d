"""The path bound on real models against enumeration over the plain model's patterns."""

from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.model.anatomy import windows
from tests.cases import FAMILIES, few
from tests.references import mean_patterns, path_sum

IDS = torch.tensor([2, 7, 11, 30, 7])
LONGER = torch.tensor([2, 7, 11, 30, 7, 7, 59, 4, 21])


@pytest.mark.few(4)
@pytest.mark.parametrize("family", few(FAMILIES))
@pytest.mark.parametrize("query", [-1, 2])
def test_equals_enumeration(
    family: str, query: int, bridge_of: Any, plain_of: Any
) -> None:
    constants = {"beta1": 1.7, "beta2": 0.6, "beta3": 2.5, "sigma_psi": 0.9}
    found = sl.path_bound(bridge_of(family), IDS, query=query, **constants)
    paths = path_sum(
        mean_patterns(plain_of(family), IDS[None]),
        query % 5,
        beta1=1.7,
        gain=0.9 / 0.6 + 1,
    )
    np.testing.assert_allclose(found.values, paths / 2.5, rtol=1e-5, atol=1e-9)


def test_source_and_targets(bridge_of: Any, plain_of: Any) -> None:
    patterns = mean_patterns(plain_of("gemma"), IDS[None])
    model = bridge_of("gemma")
    found = sl.path_bound(model, IDS, from_layer=1, to_layer=[2, 3])
    assert found.dims == ("to_layer", "position")
    assert found["to_layer"].values.tolist() == [2, 3]
    np.testing.assert_allclose(
        found.sel(to_layer=2), path_sum(patterns[1:2], 4, gain=2), rtol=1e-5
    )
    np.testing.assert_allclose(
        found.sel(to_layer=3), path_sum(patterns[1:3], 4, gain=2), rtol=1e-5
    )
    to_y = sl.path_bound(model, IDS, from_layer=1, beta3=2.0)
    np.testing.assert_allclose(to_y, found.sel(to_layer=3) / 2, rtol=1e-12)


@pytest.mark.parametrize("family", few(FAMILIES))
def test_null_respects_native_windows(
    family: str, bridge_of: Any, plain_of: Any
) -> None:
    model = bridge_of(family)
    seen = [
        p > 0 for p in mean_patterns(plain_of(family), LONGER[None])
    ]  # what each block lets each token see
    nulls = [s / s.sum(axis=1, keepdims=True) for s in seen]
    assert any(w is not None for w in windows(model)) == (
        family in ("gemma2", "gemma3", "mistral")
    )
    row = np.eye(9)[8]
    for null in reversed(nulls):
        row = 2 * (row @ (null + np.eye(9)))
    found = sl.path_bound(model, LONGER, attention="uniform")
    np.testing.assert_allclose(found.values, row, rtol=1e-12)
