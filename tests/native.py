"""TransformerLens's own models for the tests: seeded ones, programs written by hand, and what they compute, plainly."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge

BASE: dict[str, Any] = dict(
    n_layers=3,
    d_model=16,
    d_head=4,
    n_heads=4,
    n_ctx=24,
    d_vocab=20,
    d_mlp=24,
    act_fn="gelu",
    normalization_type="LN",
    attention_dir="causal",
    seed=0,
)
KINDS: dict[str, dict[str, Any]] = {
    "layer_norm": {},
    "no_norm": {"normalization_type": None, "act_fn": "relu"},
    "attention_only": {"normalization_type": None, "attn_only": True},
    "like_llama": {
        "normalization_type": "RMS",
        "positional_embedding_type": "rotary",
        "gated_mlp": True,
        "act_fn": "silu",
        "n_key_value_heads": 2,
    },
    "without_gains": {"normalization_type": "LNPre", "act_fn": "gelu_new"},
    "capped": {
        "attn_scores_soft_cap": 3.0,
        "output_logits_soft_cap": 5.0,
        "attn_scale": 3.0,
    },
    "program": {
        "normalization_type": None,
        "act_fn": "relu",
        "n_ctx": 9,
        "d_vocab": 6,
        "d_vocab_out": 4,
    },
}


def native(
    kind: str = "layer_norm", dtype: torch.dtype | None = None, **other: Any
) -> Any:
    """A bridge as `boot_native` gives it, train mode and all, with weights and biases that do something."""
    model = TransformerBridge.boot_native(
        TransformerBridgeConfig(**BASE | KINDS[kind] | other), dtype=dtype
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.original_model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.3 * noise.to(parameter.dtype))
    return model


ACTIVATIONS: dict[str, Any] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


def capped(values: Tensor, cap: float) -> Tensor:
    """Values with a soft cap; 0 and less stand for no cap."""
    return cap * torch.tanh(values / cap) if cap > 0 else values


class Plain:
    """A native model's forward pass in float64 from its weights and configuration; nothing of it runs TransformerLens.

    `mask` is added to the logits of every head in every block.
    """

    def __init__(self, model: Any, mask: Tensor | None = None) -> None:
        state = model.original_model.state_dict()
        self.weights = {
            k.replace("._original_component", ""): v.detach().double()
            for k, v in state.items()
        }
        self.cfg = model.cfg
        self.mask = mask
        self.patterns: list[Tensor] = []

    def embedded(self, ids: Tensor) -> Tensor:
        """v⁽⁰⁾ of one prompt, (position, d)."""
        stream = self.weights["tok_embed.weight"][ids]
        if "pos.weight" in self.weights:
            stream = stream + self.weights["pos.weight"][: len(ids)]
        return stream

    def block(self, number: int, stream: Tensor) -> Tensor:
        name = f"layers.{number}"
        stream = stream + self.attention(
            f"{name}.attn", self.norm(f"{name}.ln1", stream)
        )
        if self.cfg.attn_only:
            return stream
        return stream + self.mlp(f"{name}.mlp", self.norm(f"{name}.ln2", stream))

    def mlp(self, name: str, entering: Tensor) -> Tensor:
        activation = ACTIVATIONS[self.cfg.act_fn]
        if not self.cfg.gated_mlp:
            inside = activation(self.linear(f"{name}.fc_in", entering))
            return self.linear(f"{name}.fc_out", inside)
        gate = entering @ self.weights[f"{name}.gate.weight"].T
        inside = entering @ self.weights[f"{name}.in.weight"].T
        return (activation(gate) * inside) @ self.weights[f"{name}.out.weight"].T

    def run(self, stream: Tensor, blocks: range | None = None) -> Tensor:
        """From one block's stream to another's; from the lowest to y if not said."""
        self.patterns = []
        for number in range(self.cfg.n_layers) if blocks is None else blocks:
            stream = self.block(number, stream)
        return self.norm("ln_out", stream) if blocks is None else stream

    def logits(self, ids: Tensor) -> Tensor:
        logits = self.run(self.embedded(ids)) @ self.weights["head.weight"].T
        return capped(logits, self.cfg.output_logits_soft_cap)

    def linear(self, name: str, entering: Tensor) -> Tensor:
        product = entering @ self.weights[f"{name}.weight"].T
        return product + self.weights[f"{name}.bias"]

    def norm(self, name: str, stream: Tensor) -> Tensor:
        kind = self.cfg.normalization_type
        if kind is None:
            return stream
        if kind.startswith("LN"):
            stream = stream - stream.mean(dim=-1, keepdim=True)
        mean_square = stream.square().mean(dim=-1, keepdim=True)
        normalized = stream / (mean_square + self.cfg.eps).sqrt()
        gain = self.weights.get(f"{name}.weight", 1)
        bias = self.weights.get(f"{name}.bias", 0)
        return normalized * gain + bias

    def heads(self, name: str, entering: Tensor) -> Tensor:
        """Queries, keys or values, (head, position, d_head); one for each query head."""
        vectors = self.linear(name, entering)
        heads = vectors.view(len(entering), -1, self.cfg.d_head).transpose(0, 1)
        return heads.repeat_interleave(self.cfg.n_heads // len(heads), dim=0)

    def attention(self, name: str, entering: Tensor) -> Tensor:
        cfg = self.cfg
        queries = self.heads(f"{name}.q", entering)
        keys = self.heads(f"{name}.k", entering)
        values = self.heads(f"{name}.v", entering)
        if cfg.positional_embedding_type == "rotary":
            queries = self.rotated(queries)
            keys = self.rotated(keys)
        scale = cfg.attn_scale if cfg.attn_scale > 0 else cfg.d_head**0.5
        scores = capped(queries @ keys.mT / scale, cfg.attn_scores_soft_cap)
        if self.mask is not None:
            scores = scores + self.mask
        n = len(entering)
        later = torch.ones(n, n, dtype=torch.bool).triu(1)
        pattern = scores.masked_fill(later, -torch.inf).softmax(dim=-1)
        self.patterns.append(pattern)
        return self.linear(f"{name}.o", (pattern @ values).transpose(0, 1).flatten(1))

    def rotated(self, vectors: Tensor) -> Tensor:
        """Each pair of neighbours turned by position · base^(−2i/d); the turns are rounded as the model stores them."""
        d = vectors.shape[-1]
        frequency = 1 / self.cfg.rotary_base ** (torch.arange(0, d, 2).float() / d)
        angle = torch.outer(torch.arange(vectors.shape[1]).float(), frequency)
        turn = torch.complex(angle.cos().double(), angle.sin().double())
        pairs = torch.view_as_complex(vectors.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * turn).flatten(-2)


def previous_token(symbols: int, n: int, beta: float, *, causal: bool = True) -> Any:
    """The program ``aggregate(select(indices, indices, k == q − 1), tokens)`` as tracr compiles it: one block, no norm.

    The residual stream has one coordinate for each symbol, each position and each output: tokens t, indices p, output
    ``previous_1``. Position j asks for index j − 1 with logit `beta`; position 0, which has no index before it, attends
    to itself. What is given is a stand-in for tracr's `AssembledTransformerModel`, for `utilities.tracr`.
    """
    d = symbols + n + symbols
    width = max(symbols, n)
    token = slice(0, symbols)
    index = slice(symbols, symbols + n)
    output = slice(symbols + n, d)
    embed = np.zeros((symbols, d))
    embed[:, token] = np.eye(symbols)
    positions = np.zeros((n, d))
    positions[:, index] = np.eye(n)
    key = np.zeros((d, width))
    key[index, :n] = np.eye(n)
    # Row j of the stream's index asks for j − 1.
    query = np.zeros((d, width))
    query[index, :n] = beta * width**0.5 * np.eye(n, k=-1)
    value = np.zeros((d, width))
    value[token, :symbols] = np.eye(symbols)
    out = np.zeros((width, d))
    out[:symbols, output] = np.eye(symbols)
    layer = "transformer/layer_0"
    params = {
        "token_embed": {"embeddings": embed},
        "pos_embed": {"embeddings": positions},
        f"{layer}/attn/query": {"w": query, "b": np.zeros(width)},
        f"{layer}/attn/key": {"w": key, "b": np.zeros(width)},
        f"{layer}/attn/value": {"w": value, "b": np.zeros(width)},
        f"{layer}/attn/linear": {"w": out, "b": np.zeros(d)},
        f"{layer}/mlp/linear_1": {"w": np.zeros((d, 1)), "b": np.zeros(1)},
        f"{layer}/mlp/linear_2": {"w": np.zeros((1, d)), "b": np.zeros(d)},
    }
    return SimpleNamespace(
        params=params,
        model_config=SimpleNamespace(
            num_layers=1,
            num_heads=1,
            key_size=width,
            mlp_hidden_size=1,
            causal=causal,
            layer_norm=False,
        ),
        output_encoder=SimpleNamespace(encoding_map={s: s for s in range(symbols)}),
        residual_labels=[
            *(f"tokens:{s}" for s in range(symbols)),
            *(f"indices:{i}" for i in range(n)),
            *(f"previous_1:{s}" for s in range(symbols)),
        ],
    )


def compiled(program: Any, label: str) -> Any:
    """The bridge of a compiled program, as the documentation of `transformer_lens.utilities.tracr` makes it."""
    from transformer_lens.utilities import tracr

    model = TransformerBridge.boot_native(
        tracr.make_tracr_transformer_bridge_config(program)
    )
    model.load_state_dict(
        tracr.make_tracr_transformer_bridge_state_dict(program, label), strict=False
    )
    return model
