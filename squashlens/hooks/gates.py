"""Gates on the outputs of attention, in the models that have them. A model without a gate cannot be given one."""

import math
from collections.abc import Iterable

import torch

from squashlens._typing import Bridge
from squashlens.checks.arguments import validated
from squashlens.engine.anatomy import n_blocks
from squashlens.engine.hooking.hook import Hook, Recipe
from squashlens.errors import InputError

GATES = "blocks.{block}.attn.hook_q_gate"


@validated
def constant_gate(factor: float, blocks: Iterable[int] | None = None) -> Recipe:
    """Replace the gate on the outputs of attention by a constant, in a model that has such a gate.

    Such a model multiplies the output of its heads, before the output matrix, by ``σ(g_j)`` with g a linear function of
    the block's normed input. Here ``σ(g_j) → factor`` for every token j and coordinate, so what the gate selects by
    token is gone. It shows what the gate does for collapse and sensitivity.

    Args:
        factor: the constant, between 0 and 1, both excluded. A gate of weights 0 has ½.
        blocks: blocks to act in; by default all that have a gate.

    Raises:
        InputError: where it is applied, if the model has no gate, or not in one of `blocks`. Of the families that can
            be loaded, Qwen3-Next and Qwen 3.5 have one.

    Source: Qiu et al. 2025, arXiv 2505.06708, the gate after attention, elementwise.

    >>> import squashlens as sl
    >>> sl.hooks.constant_gate(0.5)
    constant_gate(0.5)
    """
    if not 0 < factor < 1:
        raise InputError(f"constant_gate: factor={factor!r} is not a possible value of a gate.", "Use 0 < factor < 1.")
    chosen = None if blocks is None else tuple(blocks)
    name, gate = f"constant_gate({factor!r})", math.log(factor / (1 - factor))

    def make(model: Bridge) -> list[Hook]:
        points, count = model.hook_dict, n_blocks(model)
        gated = [block for block in range(count) if GATES.format(block=block) in points]
        missing = [block for block in chosen or () if block not in gated]
        if missing or not gated:
            where = f"in block {missing[0]}" if gated else "in any block"
            others = f"Its blocks with a gate are {', '.join(map(str, gated))}."
            raise InputError(
                f"{name}: {type(model.original_model).__name__} has no gate on the outputs of attention {where}.",
                others if gated else "Leave this hook out, or use a model with such a gate: Qwen3-Next or Qwen 3.5.",
            )
        return [Hook(name, GATES, lambda gates: torch.full_like(gates, gate), tuple(chosen or gated))]

    return Recipe(name, make)
