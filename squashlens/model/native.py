"""TransformerLens's own models: those of `TransformerBridge.boot_native`, and compiled tracr programs.

They have no Hugging Face twin and no Hugging Face configuration. What other modules ask of either is answered here from
the bridge's `cfg`. Three things are different from every other family:

* The plain model is a `NativeModel` built anew around the bridge's weights (`rebuilt`), run without the bridge.
* Its attention shows `hook_attn_scores` the pattern after the softmax, and ignores what a hook there returns.
  `scores_shown` runs attention from its queries and keys instead, with a live hook point on the logits.
* It is no attention of transformers, so `handed_over` gives its queries, keys and values to the function that the
  attention of other families is handed to.
"""

import copy
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.errors import UnsoundModelError

HOME = "transformer_lens.model_bridge.sources.native.model"
SCORES = "attn.hook_attn_scores"


@dataclass(frozen=True)
class Description:
    """A native model's `cfg` in the words of a Hugging Face configuration, as far as they are asked for."""

    model_type: str
    max_position_embeddings: int
    hidden_act: str | None
    attn_logit_softcapping: float | None
    final_logit_softcapping: float | None


@dataclass(frozen=True)
class Outputs:
    """What a plain forward pass shows, named as transformers names it."""

    logits: Tensor
    hidden_states: tuple[Tensor, ...]
    attentions: tuple[Tensor, ...]


def is_native(model: Bridge) -> bool:
    """Whether a bridge wraps a `NativeModel`, or a class derived from it."""
    kinds = type(model.original_model).__mro__
    return any(kind.__module__ == HOME and kind.__qualname__ == "NativeModel" for kind in kinds)


def described(model: Bridge) -> Description:
    """What the configuration of a Hugging Face model would say. A cap of TransformerLens is off unless positive."""
    cfg = model.cfg
    activation = str(cfg.act_fn or ("silu" if cfg.gated_mlp else "gelu")).lower()
    caps = (float(cap) if cap > 0 else None for cap in (cfg.attn_scores_soft_cap, cfg.output_logits_soft_cap))
    return Description("native", int(cfg.n_ctx), activation, *caps)


def outcomes(model: Bridge) -> int:
    """The number of outcomes that a next-token distribution is over: the vocabulary, or a native model's own output."""
    inner: Any = model.original_model
    return int(inner.head.out_features) if is_native(model) else int(model.cfg.d_vocab)


def says_tokens(model: Bridge) -> bool:
    """Whether what a model puts out are tokens that it takes in: a compiled program's outcomes are its own."""
    return outcomes(model) == int(model.cfg.d_vocab)


def require_causal(model: Bridge) -> None:
    """Refuse attention to later tokens: every measurement here counts on there being none."""
    if str(model.cfg.attention_dir) != "causal":
        raise UnsoundModelError(
            f"This native model has attention_dir={str(model.cfg.attention_dir)!r}: tokens attend to later ones.",
            "The measurements need causal attention: compile a tracr program with `causal=True`, or set "
            "attention_dir='causal' in the configuration.",
        )


def rebuilt(model: Bridge) -> Any:
    """A `NativeModel` of the bridge's configuration with the bridge's weights, of which the bridge knows nothing.

    It is in float32 but for the weights, as its class builds it; the weights are shared.
    """
    wrapped: Any = model.original_model
    weights = {key.replace("._original_component", ""): value for key, value in wrapped.state_dict().items()}
    with torch.random.fork_rng(devices=[]):  # it draws weights that are replaced
        plain = type(wrapped)(copy.deepcopy(wrapped.cfg))
    expected = set(plain.state_dict())
    plain.load_state_dict({key: value for key, value in weights.items() if key in expected}, assign=True)
    return plain


def outputs_of(plain: Any, ids: Tensor) -> Outputs:
    """One pass of a `NativeModel` outside any bridge: logits, v⁽⁰⁾ … v⁽ᴸ⁻¹⁾ and y, and every block's pattern."""
    streams: list[Tensor] = []
    patterns: list[Tensor] = []
    handles = [
        layer.register_forward_pre_hook(lambda _, args: streams.append(args[0].detach().clone()))
        for layer in plain.layers
    ]
    handles += [
        layer.attn.register_forward_hook(lambda _, args, out: patterns.append(out[1].detach().clone()))
        for layer in plain.layers
    ]
    handles.append(plain.ln_out.register_forward_hook(lambda _, args, out: streams.append(out.detach().clone())))
    try:
        return Outputs(plain(ids), tuple(streams), tuple(patterns))
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def scores_shown(model: Bridge) -> Iterator[None]:
    """The body's passes go through `hook_attn_scores` with the masked logits, and go on with what hooks return.

    Numbers are those of the model's own attention but for rounding. Attention that is handed over has no logits.
    """
    ours = [block.attn for block in model.blocks if "forward" not in vars(block.attn)]
    try:
        for attn in ours:  # not setattr: the bridge passes attributes on to the module it wraps
            vars(attn)["forward"] = types.MethodType(_with_scores, attn)
        yield
    finally:
        for attn in ours:
            vars(attn).pop("forward", None)


def _with_scores(attn: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Attention as `NativeAttention` computes it, through the bridge's hook points."""
    inner = attn.original_component
    queries, keys, values, hidden = _made_of(attn, args, kwargs)
    keys, values = (tensor.repeat_interleave(inner.kv_repeats, dim=1) for tensor in (keys, values))
    scores = queries @ keys.mT / inner.scale
    if inner.attn_scores_soft_cap > 0:
        scores = inner.attn_scores_soft_cap * torch.tanh(scores / inner.attn_scores_soft_cap)
    scores = attn.hook_attn_scores(scores.masked_fill(hidden, -torch.inf))
    pattern = attn.hook_pattern(scores.softmax(dim=-1))
    mixed = (pattern @ values).transpose(1, 2).flatten(2)
    return attn.hook_out(inner.o(mixed)), pattern


def handed_over(attend: Callable[..., tuple[Tensor, None]], causal: object) -> Callable[..., Any]:
    """A forward method for a native block's attention that gives queries, keys and values to `attend`.

    `causal` is what `attend` takes for a mask that hides later tokens and nothing else.
    """

    def forward(attn: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        inner = attn.original_component
        queries, keys, values, hidden = _made_of(attn, args, kwargs)
        mask = causal
        if kwargs.get("attention_mask") is not None:
            mask = torch.zeros(hidden.shape, dtype=queries.dtype, device=queries.device)
            mask = mask.masked_fill(hidden, torch.finfo(queries.dtype).min)
        cap = inner.attn_scores_soft_cap
        mixed, _ = attend(inner, queries, keys, values, mask, scaling=1 / inner.scale, softcap=cap if cap > 0 else None)
        return attn.hook_out(inner.o(mixed.flatten(2))), None

    return forward


def _made_of(attn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys and values, (prompt, head or group, position, …), and which keys are hidden from which queries."""
    inner = attn.original_component
    entering = attn.hook_in(args[0] if args else kwargs["hidden_states"])
    prompts, n = entering.shape[:2]
    queries, keys, values = (
        part(entering).view(prompts, n, heads, inner.d_head).transpose(1, 2)
        for part, heads in ((inner.q, inner.n_heads), (inner.k, inner.n_kv_heads), (inner.v, inner.n_kv_heads))
    )
    if inner.rotary is not None:
        queries, keys = inner.rotary.apply_rope(queries, keys, position_ids=kwargs.get("position_ids"))
    hidden = torch.ones(n, n, dtype=torch.bool, device=entering.device).triu(1)[None, None]
    mask = kwargs.get("attention_mask")
    return queries, keys, values, hidden if mask is None else inner._combine_attention_mask(hidden, mask, batch=prompts)
