"""Certificates under hooks that round: of the rounded model, not of the one without."""

from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.errors import UnsoundModelError
from tests.grouped import flat

IDS = torch.tensor([2, 7, 11, 30, 7, 19])
KINDS: list[dict[str, Any]] = [
    {"edges": "analytic"}, {"edges": "attention"}, {"edges": "exact"}, {"edges": "exact", "n_composed": 2},
]  # fmt: skip


def bound(model: Any, *hooks: Any, **kind: Any) -> np.ndarray:
    with sl.applied(model, *hooks):
        return flat.certified_bound(model, IDS, **kind).values


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("form", ["bfloat16", "float8_e4m3fn"])
def test_certificates_hold_of_the_rounded_model(form: Any, kind: dict[str, Any], bridge_of: Any) -> None:
    hook = sl.hooks.rounding(form, blocks=(1,))
    found = bound(bridge_of("llama"), hook, **kind)
    wide = bridge_of("llama", torch.float64)
    with sl.applied(wide, hook):
        truth = flat.jacobian_norms(wide, IDS, norm="spectral").values
    assert (found >= truth * (1 - 1e-6)).all()


def test_a_hook_that_computes_in_half_precision_has_no_certificate(bridge_of: Any) -> None:
    model = bridge_of("llama")
    hook = ("blocks.1.hook_resid_pre", lambda z: z.bfloat16().to(z.dtype))
    with sl.applied(model, hook), pytest.raises(UnsoundModelError, match="or a hook on it, computes in bfloat16"):
        flat.certified_bound(model, IDS, edges="exact")
