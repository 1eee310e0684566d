"""Certificates under hooks that round: of the rounded model, not of the one without."""

from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.errors import UnsoundModelError

IDS = torch.tensor([2, 7, 11, 30, 7, 19])
SHARED: dict[str, Any] = {"bos": "as-given", "progress": False}
KINDS: list[dict[str, Any]] = [
    {"edges": "analytic"}, {"edges": "attention"}, {"edges": "exact"}, {"edges": "exact", "n_composed": 2},
]  # fmt: skip


def bound(model: Any, *hooks: Any, **kind: Any) -> np.ndarray:
    with sl.applied(model, *hooks):
        return sl.path_bound(model, IDS, constants="measured", **kind, **SHARED).values


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("family", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_a_format_and_its_bits_give_one_certificate(family: str, kind: dict[str, Any], bridge_of: Any) -> None:
    """bfloat16 keeps 7 bits behind the leading one, float16 10, in the range of these numbers."""
    model = bridge_of(family)
    plain = bound(model, **kind)
    for form, bits in (("bfloat16", 7), ("float16", 10)):
        found, twin = (bound(model, sl.hooks.rounding(to, blocks=(1,)), **kind) for to in (form, bits))
        np.testing.assert_allclose(found, twin, rtol=1e-6)  # numbers below float16's normal range keep fewer bits
        assert np.abs(found / plain - 1).max() > 1e-5


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("form", ["bfloat16", "float8_e4m3fn"])
def test_certificates_hold_of_the_rounded_model(form: Any, kind: dict[str, Any], bridge_of: Any) -> None:
    hook = sl.hooks.rounding(form, blocks=(1,))
    found = bound(bridge_of("llama"), hook, **kind)
    wide = bridge_of("llama", torch.float64)
    with sl.applied(wide, hook):
        truth = sl.jacobian_norms(wide, IDS, norm="spectral", **SHARED).values
    assert (found >= truth * (1 - 1e-6)).all()


def test_the_sketch_is_of_the_rounded_model(bridge_of: Any) -> None:
    model = bridge_of("llama")
    with sl.applied(model, sl.hooks.rounding("bfloat16", blocks=(1,))):
        found = sl.jacobian_norms(model, IDS, method="sketch_upper", seed=0, **SHARED)
    with sl.applied(model, sl.hooks.rounding(7, blocks=(1,))):
        twin = sl.jacobian_norms(model, IDS, method="sketch_upper", seed=0, **SHARED)
    np.testing.assert_allclose(found, twin, rtol=1e-6)


def test_a_hook_that_computes_in_half_precision_has_no_certificate(bridge_of: Any) -> None:
    model = bridge_of("llama")
    hook = ("blocks.1.hook_resid_pre", lambda z: z.bfloat16().to(z.dtype))
    with sl.applied(model, hook), pytest.raises(UnsoundModelError, match="or a hook on it, computes in bfloat16"):
        sl.path_bound(model, IDS, constants="measured", edges="exact", **SHARED)
