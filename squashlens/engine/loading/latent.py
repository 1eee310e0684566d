"""Give hook points of latent attention (MLA: DeepSeek V2 and V3, GLM-4-MoE-lite, Youtu) the axes of other families.

TransformerLens shows queries, keys and values there as (prompt, head, position, coordinate), and splits the outputs of
heads by the width of keys, which is not that of values. Elsewhere all four are (prompt, position, head, coordinate).
"""

from typing import Any

from torch import Tensor

from squashlens._typing import Bridge


def arrange_heads(model: Bridge) -> None:
    """Set conversions on these hook points; other models are left as they are."""
    from transformer_lens.conversion_utils.conversion_steps import BaseTensorConversion
    from transformer_lens.hook_points import HookPoint

    class ByToken(BaseTensorConversion):
        """Exchange the axes of heads and positions."""

        splits_attention_heads = True

        def handle_conversion(self, input_value: Tensor, *full_context: Any) -> Tensor:
            return input_value.transpose(1, 2)

        def revert(self, input_value: Tensor, *full_context: Any) -> Tensor:
            return input_value.transpose(1, 2)

    class ByHead(BaseTensorConversion):
        """Split the last axis into heads of a width."""

        splits_attention_heads = True

        def __init__(self, width: int) -> None:
            super().__init__()
            self.width = width

        def handle_conversion(self, input_value: Tensor, *full_context: Any) -> Tensor:
            return input_value.unflatten(-1, (-1, self.width))

        def revert(self, input_value: Tensor, *full_context: Any) -> Tensor:
            return input_value.flatten(2)

    for block in model.blocks:
        attn: Any = block._modules.get("attn", block)
        points = [attn._modules.get(name) for name in ("hook_q", "hook_k", "hook_v")]
        if all(isinstance(point, HookPoint) for point in points):
            for point in points:
                point.hook_conversion = ByToken()
            attn.o.hook_in.hook_conversion = ByHead(attn.original_component.v_head_dim)
