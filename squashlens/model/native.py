"""TransformerLens's own models: those of `TransformerBridge.boot_native`, and compiled tracr programs.

They have no Hugging Face model and no Hugging Face configuration; this module answers questions about either from the
bridge's `cfg`. Two things differ from all other models:

* The plain model is a new `NativeModel` with the bridge's weights (`rebuilt`), which runs without the bridge.
* Its attention passes the pattern after the softmax to `hook_attn_scores`, and ignores the result of a hook there; see
  `live`.

Its attention is not that of transformers, so patterns are always computed.
"""

import copy
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from squashlens._typing import Bridge

HOME = "transformer_lens.model_bridge.sources.native.model"


def is_native(model: Bridge) -> bool:
    """Whether a bridge wraps a `NativeModel`, or a class derived from it."""
    return _is_native(type(model.original_model))


@cache
def _is_native(kind: type) -> bool:
    return any(
        base.__module__ == HOME and base.__qualname__ == "NativeModel"
        for base in kind.__mro__
    )


def native_config(model: Bridge) -> SimpleNamespace:
    """The native model's configuration in Hugging Face form; a soft cap of TransformerLens is off unless positive."""
    cfg = model.cfg

    def cap(value: float) -> float | None:
        return float(value) if value > 0 else None

    return SimpleNamespace(
        model_type="native",
        max_position_embeddings=int(cfg.n_ctx),
        hidden_act=str(cfg.act_fn or ("silu" if cfg.gated_mlp else "gelu")).lower(),
        attn_logit_softcapping=cap(cfg.attn_scores_soft_cap),
        final_logit_softcapping=cap(cfg.output_logits_soft_cap),
    )


def n_outcomes(model: Bridge) -> int:
    """The number of outcomes of the next-token distribution: the vocabulary, or the outputs of a native model."""
    inner: Any = model.original_model
    return int(inner.head.out_features) if is_native(model) else int(model.cfg.d_vocab)


def outputs_are_tokens(model: Bridge) -> bool:
    """Whether the outputs of a model are its input tokens; a compiled program may have other outputs."""
    return n_outcomes(model) == int(model.cfg.d_vocab)


def rebuilt(model: Bridge) -> Any:
    """A new `NativeModel` of the bridge's configuration, independent of it, in float32 as its class builds it."""
    wrapped: Any = model.original_model
    with torch.random.fork_rng(devices=[]):  # its random weights are replaced
        return type(wrapped)(copy.deepcopy(wrapped.cfg))


def plain_outputs(plain: Any, ids: Tensor) -> SimpleNamespace:
    """Run a `NativeModel` without a bridge: logits, v⁽⁰⁾ … v⁽ᴸ⁻¹⁾ and y, and the pattern of every block."""
    streams: list[Tensor] = []
    patterns: list[Tensor] = []

    def entering(_module: Any, args: Any) -> None:
        streams.append(args[0].detach().clone())

    def attended(_module: Any, _args: Any, out: Any) -> None:
        patterns.append(out[1].detach().clone())

    def y(_module: Any, _args: Any, out: Tensor) -> None:
        streams.append(out.detach().clone())

    handles = [plain.ln_out.register_forward_hook(y)]
    for layer in plain.layers:
        handles.append(layer.register_forward_pre_hook(entering))
        handles.append(layer.attn.register_forward_hook(attended))
    try:
        logits = plain(ids)
    finally:
        for handle in handles:
            handle.remove()
    return SimpleNamespace(logits=logits, hidden_states=streams, attentions=patterns)
