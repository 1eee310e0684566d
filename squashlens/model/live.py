"""Make hooks inside attention take effect where a bridge leaves attention to the model's own module.

For many architectures (Gemma 4, Llama 4, OPT, GPT-J, …) the bridge runs the model's own attention and shows its hooks a
pattern that has already been used. The model's attention calls `softmax` on its logits and `dropout` on the pattern,
which does nothing in eval mode. Here both calls are intercepted while the module runs, and the bridge's hook points act
on what they are given. So the numbers are those of the model's own code: its scale, caps, sinks and masks.

TransformerLens's own models pass the pattern to a hook point themselves, and lack a working one on the logits.
"""

import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from squashlens._typing import Bridge

POINTS = ("attn.hook_attn_scores", "attn.hook_pattern")
_SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)


class _Interposed(TorchFunctionMode):
    """While this is active, one attention's softmax gets hooked logits, and its dropout the hooked pattern, each once.

    `scores` and `pattern` are the hook points: functions of a tensor (prompt, head, query, key).
    """

    def __init__(
        self, scores: Callable[[Tensor], Tensor], pattern: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.scores = scores
        self.pattern = pattern
        # The shape (prompt, head, query) of the logits; None before the softmax is called.
        self.rows: tuple[int, ...] | None = None
        self.has_pattern = False  # whether the pattern was hooked

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call any function of PyTorch. The first softmax of four axes gets the hooked logits instead of its input.

        The first dropout after it whose input has the rows of these logits gets the hooked pattern.
        """
        if not args:
            return func(**(kwargs or {}))
        first = args[0]
        if func in _SOFTMAX and self.rows is None and first.ndim == 4:
            self.rows = first.shape[:3]
            args = (self.scores(first), *args[1:])
        elif (
            func is F.dropout and not self.has_pattern and first.shape[:-1] == self.rows
        ):
            self.has_pattern = True
            args = (self.pattern(first), *args[1:])
        return func(*args, **(kwargs or {}))


def bridge_around(inner: Any, tokenizer: Any, name: str) -> Bridge:
    """A bridge in eval mode around a Hugging Face model, whose hook points take effect and have the same axes."""
    from transformer_lens.model_bridge.sources._bridge_builder import (
        build_bridge_from_module,
    )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = build_bridge_from_module(
            inner,
            type(inner).__name__,
            hf_config=inner.config,
            tokenizer=tokenizer,
            model_name=name,
        )
    make_live(model)
    arrange_heads(model)
    model.eval().requires_grad_(False)
    return model


def delegating(model: Bridge) -> list[Any]:
    """The attentions of the model that the bridge leaves to the model's own modules."""
    from transformer_lens.model_bridge.generalized_components.attention import (
        AttentionBridge,
    )

    attentions: list[Any] = []
    for block in model.blocks:
        attn = block._modules.get("attn")
        # Attentions that the bridge computes itself are subclasses with a `forward` of their own.
        if attn is not None and type(attn).forward is AttentionBridge.forward:
            attentions.append(attn)
    return attentions


def make_live(model: Bridge) -> list[Any]:
    """Make hooks inside attention take effect; return the attentions for which this had to be done."""
    changed = [attn for attn in delegating(model) if "forward" not in vars(attn)]
    for attn in changed:
        # Not setattr: the bridge passes attributes on to the module it wraps.
        vars(attn)["forward"] = types.MethodType(_forward, attn)
    return changed


@contextmanager
def live_attention(model: Bridge) -> Iterator[None]:
    """Hooks inside attention take effect in the body; then the attentions have their class's `forward` again."""
    changed = make_live(model)
    try:
        yield
    finally:
        for attn in changed:
            vars(attn).pop("forward", None)


def _forward(attn: Any, *args: Any, **kwargs: Any) -> Any:
    """The `forward` of a bridged attention `attn`: the model's own attention, with hook points before, in and after it.

    It takes the place of the bridge's `forward`, which has no hook points that take effect inside.
    """
    inner = attn.original_component
    if "hidden_states" in kwargs:
        kwargs["hidden_states"] = attn.hook_in(kwargs["hidden_states"])
    else:
        args = (attn.hook_in(args[0]), *args[1:])
    # TransformerLens's own attention calls this function on its pattern.
    if getattr(inner, "accepts_pattern_fn", False):
        kwargs["pattern_fn"] = attn.hook_pattern
    try:
        with _Interposed(attn.hook_attn_scores, attn.hook_pattern):
            output = inner(*args, **kwargs)
    finally:
        # The bridge's block stored the stream here; it would keep the graph of the pass in memory.
        attn._captured_pre_ln_residual = None
    if isinstance(output, tuple):
        return attn.hook_out(output[0]), *output[1:]
    return attn.hook_out(output)


def arrange_heads(model: Bridge) -> None:
    """Give hook points of latent attention (MLA: DeepSeek V2 and V3, …) the axes of other families.

    TransformerLens shows queries, keys and values there as (prompt, head, position, coordinate), and splits the outputs
    of heads by the width of keys, which is not that of values. Elsewhere all are (prompt, position, head, coordinate).
    """
    from transformer_lens.conversion_utils.conversion_steps import (
        RearrangeTensorConversion,
    )
    from transformer_lens.hook_points import HookPoint

    class Rearranged(RearrangeTensorConversion):
        """A conversion to (prompt, position, head, coordinate), which `run_with_cache` must know."""

        splits_attention_heads = True

    for block in model.blocks:
        # A block without attention has none of these hook points.
        attn: Any = block._modules.get("attn", block)
        points = [attn._modules.get(name) for name in ("hook_q", "hook_k", "hook_v")]
        if all(isinstance(point, HookPoint) for point in points):
            for point in points:
                point.hook_conversion = Rearranged(
                    "prompt head position d -> prompt position head d"
                )
            width = attn.original_component.v_head_dim
            attn.o.hook_in.hook_conversion = Rearranged(
                "prompt position (head d) -> prompt position head d", d=width
            )
