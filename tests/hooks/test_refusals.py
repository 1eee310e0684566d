"""Arguments of interventions that have the right kind and no meaning."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from squashlens import hooks as change
from squashlens.errors import InputError
from tests.references import raw

OTHER = torch.tensor([[2, 7, 8, 12]])
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: change.sliding_window(0), "window=0"),
    (lambda: change.sliding_window(3, sink=-1), "sink=-1"),
    (lambda: change.attention_temperature(0.0), "not a temperature"),
    (lambda: change.mask_attention((1,), ()), "are not positions"),
    (lambda: change.zero_pattern((-1,)), "are not positions"),
    (lambda: change.mask_tokens((1,), heads=()), "are not heads"),
    (lambda: raw(change.zero_heads)([-1]), "zero_heads: .* are not heads"),
    (lambda: change.scale_attention(-1.0, [2]), "factor=-1.0 is not a factor"),
    (lambda: change.log_scaling("log", 1), "has a logarithm of 0"),
    (lambda: change.log_scaling("llama4", 0), "trained_length=0 is not a number of tokens"),
    (lambda: change.adaptive_temperature(coefficients=()), "are not coefficients"),
    (lambda: change.constant_gate(1.0), "not a possible value of a gate"),
    (lambda: change.constant_gate(0.0), "not a possible value of a gate"),
    (lambda: change.patch_residual([2, 2], OTHER), "names a position twice"),
    (lambda: change.patch_residual([2], OTHER, from_positions=[1, 2]), "1 positions and 2 from_positions"),
    (lambda: change.patch_heads([2], OTHER, from_positions=[1]), "from_positions= is given without"),
    (lambda: change.rounding(-1), "round_to="),
    (lambda: raw(change.rounding)("int8"), "round_to="),
]


@pytest.mark.parametrize(("make", "complaint"), REFUSED)
def test_refusals(make: Callable[[], Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        make()
