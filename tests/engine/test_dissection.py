"""A block cut open: what its parts are where a dtype ends."""

import torch

from squashlens.engine.differentiating.dissection import OpenBlock


def test_a_weight_below_the_range_of_its_dtype_is_not_none() -> None:
    """A masked key has the weight 0; a seen one whose softmax underflows has the smallest normal number."""
    scores = torch.tensor([[[0.0, -torch.inf, -torch.inf], [0.0, -200.0, -torch.inf], [0.0, -1.0, -200.0]]])
    pattern = scores.softmax(dim=-1)
    assert pattern[0, 1, 1] == pattern[0, 1, 2] == pattern[0, 2, 2] == 0
    seen = {"hook_pattern": pattern[None], "hook_attn_scores": scores[None]}
    found = OpenBlock(1, seen, {}, None).pattern  # pyright: ignore[reportArgumentType]
    least = 2.0**-126
    assert found[0].tolist() == [[1, 0, 0], [1, least, 0], [*pattern[0, 2, :2].double().tolist(), least]]
