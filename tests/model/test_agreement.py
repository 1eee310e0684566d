"""The one comparison of two computations: relative to what is compared, row by row if asked, and never for NaN."""

import pytest
import torch

from squashlens.model.agreement import agree, difference

SMALL = torch.tensor([1e-6, -3e-6])


def test_agreement_is_relative_to_what_is_compared() -> None:
    assert agree(SMALL, SMALL * (1 + 1e-6), torch.float32)
    assert not agree(SMALL, SMALL * 1.01, torch.float32)
    assert agree(SMALL, SMALL * 1.01, torch.float32, size=torch.ones(1))
    assert agree(SMALL * 0, SMALL * 0, torch.float32)
    assert not agree(SMALL, SMALL[:1], torch.float32)


@pytest.mark.parametrize("ours", [SMALL * torch.nan, torch.tensor([1e-6, torch.nan])])
def test_nan_agrees_with_nothing(ours: torch.Tensor) -> None:
    assert not agree(ours, SMALL, torch.float32)
    assert not agree(SMALL, ours, torch.float32)
    assert not agree(ours, ours, torch.float32)
    assert not agree(SMALL, SMALL, torch.float32, size=ours)


def test_rows_are_compared_by_their_own_size() -> None:
    truth = torch.tensor([[1.0, 2.0], [1e-6, 2e-6]])
    ours = truth + torch.tensor([[0.0], [1e-6]])
    assert agree(ours, truth, torch.float32)
    assert not agree(ours, truth, torch.float32, dim=-1)
    error, allowed = difference(ours, truth, torch.float32, dim=-1)
    torch.testing.assert_close(
        error, torch.tensor([0.0, 1e-6], dtype=torch.float64), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(
        allowed,
        1e-4 * torch.tensor([2.0, 2e-6], dtype=torch.float64),
        rtol=1e-6,
        atol=0,
    )
