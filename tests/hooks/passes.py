"""What a model computes under hooks."""

import contextlib
from typing import Any

import torch

import squashlens as sl

IDS = torch.tensor([[2, 5, 9, 11, 9, 30, 31, 9, 17, 4]])


def logits(model: Any, *hooks: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    """The logits of a bridge under hooks, or of a plain model without."""
    with (
        sl.applied(model, *hooks) if hooks else contextlib.nullcontext(),
        torch.no_grad(),
    ):
        found = model(ids, use_cache=False)
    return getattr(found, "logits", found)


def patterns(model: Any, *hooks: Any) -> dict[int, torch.Tensor]:
    """The attention patterns of a bridge under hooks, by block."""
    with sl.applied(model, *hooks) if hooks else contextlib.nullcontext():
        return sl.capture(model, IDS, keep="patterns").patterns
