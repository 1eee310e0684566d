"""The shapes of models whose weights are drawn at random, and the works that are timed on each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Gemma3TextConfig, GemmaConfig

import squashlens as sl
from squashlens.engine import budget
from squashlens.engine.anatomy import dtype_of, n_blocks, width, windows
from squashlens.engine.proving.proof import shared_copy
from squashlens.sequences import GrowingSequence
from tests.grouped import flat

TOKENS: dict[str, Any] = dict(pad_token_id=0, eos_token_id=1, bos_token_id=2)
BATCH = 32  # cotangents at a time: saturates a card from a few hundred tokens on
PROBES = 32


GEMMA: dict[str, Any] = dict(vocab_size=256_000, head_dim=256, max_position_embeddings=65_536, **TOKENS)
SHAPES: dict[str, dict[str, Any]] = {
    "gemma-2b": GEMMA | dict(
        hidden_size=2048, intermediate_size=16_384, num_hidden_layers=18, num_attention_heads=8, num_key_value_heads=1
    ),
    "gemma-7b": GEMMA | dict(
        hidden_size=3072, intermediate_size=24_576, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=16,
    ),
    "gemma-3-4b": GEMMA | dict(
        vocab_size=262_208, hidden_size=2560, intermediate_size=10_240, num_hidden_layers=34, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=131_072, query_pre_attn_scalar=256, sliding_window=1024,
    ),
}  # fmt: skip
SMALL: dict[str, Any] = dict(
    vocab_size=60, hidden_size=64, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4, head_dim=16
)
SMALL_TOO: dict[str, dict[str, int]] = {
    "gemma-2b": dict(num_key_value_heads=1), "gemma-7b": dict(num_key_value_heads=4),
    "gemma-3-4b": dict(num_key_value_heads=2, query_pre_attn_scalar=16, sliding_window=32),
}  # fmt: skip
MODELS = tuple(SHAPES)


def config(name: str, small: bool) -> Any:
    """The configuration of a shape; with `small` another of the same family, for the CPU."""
    kind = Gemma3TextConfig if name == "gemma-3-4b" else GemmaConfig
    return kind(**SHAPES[name] | (SMALL | SMALL_TOO[name] if small else {}))


@dataclass(frozen=True)
class Work:
    """One thing that is timed: its kind, its number of tokens, and how often."""

    kind: str
    n: int
    times: int = 1

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.n} tokens"


def works(model: str, small: bool) -> list[Work]:
    """What is timed on a shape, what matters most first."""
    if small:
        kinds = ("forward", "bound", "collapse", "sketch", "exact", "profile")
        return [Work(kind, 96) for kind in kinds]
    long = {"gemma-2b": (2048, 8192, 32_768), "gemma-7b": (2048, 32_768), "gemma-3-4b": (2048, 8192)}[model]
    one = {"gemma-2b": 512, "gemma-7b": 128, "gemma-3-4b": 427}[model]
    found = [Work(kind, n, times=3 if n < 30_000 else 2) for n in long for kind in ("forward", "bound")]
    return [*found, Work("collapse", 1024), Work("sketch", 2048), Work("exact", one), Work("profile", 1024)]


class Subject:
    """A model of a shape on a device: its bridge, and the plain model with fused attention and the same weights."""

    def __init__(self, name: str, small: bool, device: str, dtype: torch.dtype) -> None:
        from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

        torch.manual_seed(0)
        with torch.device(device):
            inner = AutoModelForCausalLM.from_config(config(name, small), dtype=dtype, attn_implementation="eager")
        inner = inner.eval().requires_grad_(False)
        self.device = device
        self.plain: Any = shared_copy(inner)
        self.plain.set_attn_implementation("sdpa")
        self.model = build_bridge_from_module(
            inner, type(inner).__name__, hf_config=inner.config, tokenizer=None, model_name=name
        )
        self.model.eval().requires_grad_(False)

    @property
    def weights(self) -> int:
        """Bytes of the weights."""
        return sum(p.numel() * p.itemsize for p in self.model.original_model.parameters())

    def verify(self) -> str:
        """Prove the bridge, so that the first measurement is timed without; how it attends.

        The prompt is longer than a window, and so has blocks of both kinds.
        """
        n = 1 + max(window or 2 for window in windows(self.model))
        return sl.results.provenance(sl.path_bound(self.model, self.ids(n)))["attention_implementation"]

    def ids(self, n: int) -> torch.Tensor:
        ids = torch.randint(3, 60, (n,), generator=torch.Generator().manual_seed(0))
        ids[0] = 2
        return ids

    def call(self, work: Work) -> Callable[[], Any]:
        """What is run for a work."""
        ids, options = self.ids(work.n), {}
        products: dict[str, Any] = options | {"vjp_batch_size": BATCH}
        calls: dict[str, Callable[[], Any]] = {
            "forward": lambda: self._forward(ids[None].to(self.device)),
            "bound": lambda: sl.path_bound(self.model, ids),
            "sketch": lambda: flat.jacobian_norms(
                self.model, ids, norm="frobenius", method={"method": "sketch", "n_probes": PROBES}, **products
            ),
            "exact": lambda: flat.jacobian_norms(self.model, ids, **products),
            "collapse": lambda: self._collapse(work.n, options),
            "profile": lambda: flat.profile(self.model, ids, method="none", extras={"n_random_models": 0}, **options),
        }
        return calls[work.kind]

    def _forward(self, ids: torch.Tensor) -> None:
        with torch.no_grad():
            self.plain(ids, use_cache=False, logits_to_keep=1)

    def _collapse(self, n: int, options: Any) -> Any:
        sequence = GrowingSequence("constant", (7,) * n, (7, 8), prefix=(2,))
        return sl.collapse(
            self.model, flat.capture(self.model, sequence, keep="residuals", pairs={"noise_lengths": 0}, **options)
        )

    def estimate(self, work: Work) -> int | None:
        """Bytes beyond the weights that squashlens expects of a work, `None` where it makes no estimate."""
        n, item = work.n, dtype_of(self.model).itemsize
        if work.kind == "forward":
            return budget.pass_bytes(self.model, 1, n)
        if work.kind == "bound":
            kept = n_blocks(self.model) * budget.queries_and_keys(self.model, 1, n)
            return kept + budget.pass_bytes(self.model, 1, n)
        if work.kind in ("sketch", "exact"):
            return budget.products_bytes(self.model, 1, n, BATCH)
        if work.kind == "collapse":
            streams = n * (n_blocks(self.model) + 2) * width(self.model) * item
            return budget.pass_bytes(self.model, 1, n + 2) + streams
        return None
