"""Rounding against torch's own types, numpy's float16, and what a pass in fewer bits keeps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import squashlens as sl
from squashlens.hooks.round_activations import rounded
from tests.cases import FAMILIES, few
from tests.hooks.passes import IDS, logits


@settings(deadline=None)
@given(
    st.lists(st.floats(2.0**-13, 6e4, width=32), min_size=1), st.sampled_from([1, -1])
)
def test_mantissa_bits_are_those_of_the_formats(
    numbers: list[float], sign: int
) -> None:
    """7 and 10 bits are bfloat16 and float16 in their normal range; 23 are float32, 52 float64."""
    x = sign * torch.tensor(numbers, dtype=torch.float32)
    assert torch.equal(rounded(x, 7), x.bfloat16().float())
    assert np.array_equal(
        rounded(x, 10).numpy(), x.numpy().astype(np.float16).astype(np.float32)
    )
    assert torch.equal(rounded(x, 23), x)
    assert torch.equal(rounded(x.double() / 3, 52), x.double() / 3)
    for bits in (0, 2, 5):
        near = rounded(x, bits)
        assert ((near - x).abs() <= x.abs() * 2.0 ** -(bits + 1)).all()
        assert torch.equal(rounded(near, bits), near)


def test_the_edge_of_the_range() -> None:
    assert rounded(torch.tensor([65504.0]), "float16").item() == 65504
    assert rounded(torch.tensor([torch.inf]), "float16").item() == torch.inf


@pytest.mark.few(6)
@pytest.mark.parametrize("family", few(FAMILIES))
@pytest.mark.parametrize("what", ["residual", "keys", "values", "patterns"])
def test_the_pass_goes_on_with_rounded_numbers(
    family: str, what: Any, bridge_of: Callable[..., Any]
) -> None:
    model = bridge_of(family)
    plain = logits(model)

    def moved(to: Any, **where: Any) -> float:
        return (
            (logits(model, sl.hooks.round_activations(to, what, **where)) - plain)
            .abs()
            .max()
            .item()
        )

    assert moved(23) == 0
    assert 0 < moved(10) < moved(3)
    assert moved("bfloat16", blocks=(1,)) > 0
    assert moved(7) > 0


def test_derivatives_go_straight_through(bridge_of: Callable[..., Any]) -> None:
    """Zero nearly everywhere if taken as it is; here that of the model at the rounded numbers."""
    model = bridge_of("llama", torch.float64)
    plain = sl.jacobian_norms(model, IDS)
    with sl.applied(model, sl.hooks.round_activations(20)):
        fine = sl.jacobian_norms(model, IDS)
    with sl.applied(model, sl.hooks.round_activations(2)):
        coarse = sl.jacobian_norms(model, IDS)
    np.testing.assert_allclose(fine.values, plain.values, rtol=1e-3)
    assert (coarse.values > 0).all()
    assert np.abs(coarse.values / plain.values - 1).max() > 1e-2
