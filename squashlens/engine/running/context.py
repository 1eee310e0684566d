"""Masks and position ids for several prompts that continue one trunk in one pass, each seeing only its own past."""

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.engine.anatomy import FULL, SLIDING, device_of, dtype_of, windows


def causal(n: int) -> Bool[Tensor, "query key"]:
    """The causal mask: every token sees itself and earlier tokens."""
    return torch.ones(n, n, dtype=torch.bool).tril()


def context(
    model: Bridge,
    queries: Int[Tensor, " query"],
    keys: Int[Tensor, " key"],
    visible: Bool[Tensor, "query key"],
) -> dict[str, Any]:
    """Mask and position ids with which every token sees the past of its own prompt, within the block's window."""
    device, dtype = device_of(model), dtype_of(model)
    distance = queries[:, None] - keys

    def mask(window: int | None) -> Tensor:
        seen = visible if window is None else visible & (distance < window)
        closed = torch.full(seen.shape, torch.finfo(dtype).min, dtype=dtype)
        return closed.masked_fill(seen, 0.0)[None, None].to(device)

    kinds = set(windows(model))
    masks: Any = {SLIDING if w else FULL: mask(w) for w in kinds}
    return {
        "attention_mask": masks if len(masks) > 1 else next(iter(masks.values())),
        "position_ids": queries[None].to(device),
    }
