"""A prompt as part of a trunk and tokens of its own, and what such tokens may see of one another."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.model.anatomy import FULL, SLIDING, device_of, dtype_of, windows

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Branch:
    """A prompt as the first `at` tokens of a trunk and `tokens` behind them; it is read at its last token."""

    at: int
    tokens: Ids = ()

    def __len__(self) -> int:
        return self.at + len(self.tokens)

    def then(self, tokens: Ids) -> "Branch":
        return Branch(self.at, (*self.tokens, *tokens))

    def ids(self, trunk: Ids) -> Ids:
        """The whole prompt."""
        return (*trunk[: self.at], *self.tokens)

    def along(self, trunk: Ids, positions: Ids | None = None) -> "Branch":
        """The same prompt leaving the trunk as late as it can: not across a gap in the trunk's positions."""
        at, tokens = self.at, self.tokens
        while tokens and at < len(trunk) and trunk[at] == tokens[0]:
            if positions is not None and at and positions[at] != positions[at - 1] + 1:
                break
            at, tokens = at + 1, tokens[1:]
        return Branch(at, tokens)


def causal(n: int) -> Bool[Tensor, "query key"]:
    """Every token sees itself and what stands before it."""
    return torch.ones(n, n, dtype=torch.bool).tril()


def context(
    model: Bridge,
    queries: Int[Tensor, " query"],
    keys: Int[Tensor, " key"],
    visible: Bool[Tensor, "query key"],
) -> dict[str, Any]:
    """Mask and position ids that give every token the past it has in its own prompt, windows included."""
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
