"""Hook points that never fire, and hooks that the libraries leave on a model."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.errors import UnsoundModelError
from tests.cases import MORE, save_random


def test_a_point_that_never_fires_is_refused(tmp_path: Any) -> None:
    """GPT-NeoX has a hook point for rotated queries that nothing ever passes."""
    model = sl.load(save_random(MORE["neox"], tmp_path))
    lost = sl.hooks.Hook("lost", "blocks.{block}.attn.hook_rot_q", lambda t: t)
    with pytest.raises(UnsoundModelError, match="have no effect"), sl.applied(model, lost):
        pass
    assert model.hook_dict["blocks.0.attn.hook_rot_q"].fwd_hooks == []


def test_what_transformers_leaves_on_a_model_is_no_hook_of_the_user(bridge_of: Callable[..., Any]) -> None:
    """`run_with_cache` makes transformers install hooks that collect attentions, which stay on the modules."""
    model, ids = bridge_of("llama"), torch.tensor([2, 5, 6, 7])
    before = sl.jacobian_norms(model, ids)
    model.run_with_cache(ids[None])
    after = sl.jacobian_norms(model, ids)
    assert any(m._forward_hooks for m in model.original_model.modules())
    assert sl.results.provenance(after) == sl.results.provenance(before)
    assert sl.results.provenance(after)["ambient_hooks"] == []
    np.testing.assert_array_equal(after, before)
