"""What the files of a checkpoint say about a run without loading it: the sizes of its parts, and lengths in tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from squashlens.engine.loading.identity import count_weights
from squashlens.engine.loading.sources import resolve


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, in numbers: all weights, blocks, the residual stream, the MLP, and all queries and keys."""

    weights: int
    blocks: int
    width: int
    mlp: int
    queries: int
    keys: int

    def operations(self, n: int) -> int:
        """Floating-point operations of a forward pass of n tokens: two for each weight, and attention."""
        return 2 * self.weights * n + 4 * self.blocks * n**2 * self.queries

    def activations(self, n: int, vectors: int = 0) -> int:
        """Numbers beside the weights: those of a pass of n tokens, or of a batch of vector–Jacobian products."""
        attention = self.width + 5 * self.queries + 3 * self.keys
        if not vectors:
            return n * max(2 * self.mlp + 4 * self.width, attention)
        kept = (self.blocks + 10) * self.width + 4 * (self.mlp + self.queries + self.keys)
        return n * (kept + vectors * max(3 * self.mlp + 4 * self.width, 3 * self.width + attention))


@cache
def shape_of(name: str, revision: str | None = None) -> Shape | None:
    """The sizes of a model whose files are here; None if they are not, or do not say."""
    from transformers import AutoConfig

    weights = count_weights(name)
    if weights is None:
        return None
    try:
        config: Any = AutoConfig.from_pretrained(resolve(name), revision=revision, local_files_only=True)
        config = config.get_text_config()
        width, blocks, heads = config.hidden_size, config.num_hidden_layers, config.num_attention_heads
    except (OSError, ValueError, AttributeError):
        return None
    each = getattr(config, "head_dim", None) or width // heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    mlp = getattr(config, "intermediate_size", None) or 4 * width
    return Shape(weights, blocks, width, mlp, heads * each, groups * each)


def lengths_of(name: str, revision: str | None, texts: Sequence[str]) -> list[int] | None:
    """The numbers of tokens of some texts; None if the tokenizer is not here."""
    tokenizer = _tokenizer(name, revision)
    return None if tokenizer is None else [len(ids) for ids in tokenizer(list(texts))["input_ids"]] if texts else []


@cache
def _tokenizer(name: str, revision: str | None) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(resolve(name), revision=revision, local_files_only=True)
    except (OSError, ValueError):
        return None
