"""One layer of a random stack: attention by rows, so that no full attention pattern is in memory, then the MLP."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from squashlens._typing import StackNorm
from squashlens.synthetic.stacks.draws import Drawn, Weights
from squashlens.synthetic.stacks.encodings import alibi, rotate, sinusoids, t5_bucket
from squashlens.synthetic.stacks.packing import Pack
from squashlens.synthetic.stacks.stack import Stack

EPS = 1e-6  # ε under the root of a norm
CELLS = 2**22  # limit of entries of a block of attention rows: 32 MiB in float64


@dataclass(frozen=True)
class Attention:
    """One layer over the tokens of a pass, with keys and values; rows are computed on demand.

    `x` is the input of the layer and `state` the same after the norm. Both are None if q, k and v are drawn directly.
    """

    drawn: Drawn
    pack: Pack
    weights: Weights | None
    x: Float[Tensor, "seed token d"] | None
    state: Float[Tensor, "seed token d"] | None
    key: Float[Tensor, "seed head token dot"]
    value: Float[Tensor, "seed head token dot"]

    @classmethod
    def of(cls, drawn: Drawn, pack: Pack, layer: int, x: Float[Tensor, "seed token d"] | None) -> "Attention":
        """The layer for all tokens of a pass, with projected keys and values, or with those drawn for each token."""
        stack = drawn.stack
        if x is None:
            weights, state = None, None
            key, value = (drawn.direct[which][:, pack.content] for which in (1, 2))
        else:
            weights, state = drawn.layers[layer], normed(x, stack.norm)
            key, value = state @ weights.key, state @ weights.value
        return cls(drawn, pack, weights, x, state, _placed(drawn, key, pack.position), _heads(drawn, value))

    def rows(self, rows: Int[Tensor, " row"]) -> tuple[Float[Tensor, "seed row d"], Float[Tensor, "seed head row key"]]:
        """The layer's output at these tokens, and their attention rows up to the last token that any of them sees."""
        stack, reach = self.drawn.stack, self.pack.reach(rows)
        query = _placed(self.drawn, self._queries(rows), self.pack.position[rows])
        scores = query @ self.key[:, :, :reach].mT / stack.per_head**0.5
        if stack.encoding == "alibi":
            scores = scores + alibi(self.pack.distance(rows, reach), stack.heads).to(scores)
        if self.drawn.biases is not None:
            bucket = t5_bucket(self.pack.distance(rows, reach), both_ways=stack.mask in ("prefix", "none"))
            scores = scores + self.drawn.biases[:, :, bucket]
        pattern = scores.masked_fill(~self.pack.visible(rows, reach), -torch.inf).softmax(dim=-1)
        mixed = rearrange(pattern @ self.value[:, :, :reach], "seed head row dot -> seed row (head dot)")
        return self._finished(rows, mixed), pattern

    def _queries(self, rows: Int[Tensor, " row"]) -> Float[Tensor, "seed row d"]:
        if self.state is None or self.weights is None:
            return self.drawn.direct[0][:, self.pack.content[rows]]
        return self.state[:, rows] @ self.weights.query

    def _finished(self, rows: Int[Tensor, " row"], mixed: Float[Tensor, "seed row d"]) -> Float[Tensor, "seed row d"]:
        """The output after W_O, the residual connection and the MLP."""
        stack, weights = self.drawn.stack, self.weights
        if weights is None or self.x is None:
            return mixed
        z = mixed @ weights.output
        z = z + self.x[:, rows] if stack.residual else z
        if weights.up is None or weights.down is None:
            return z
        grown = functional.gelu(normed(z, stack.norm) @ weights.up) @ weights.down
        return z + grown if stack.residual else grown


def normed(x: Float[Tensor, "seed row d"], norm: StackNorm) -> Float[Tensor, "seed row d"]:
    """x ÷ √(mean x² + ε) (``"rms"``), the same after subtracting the mean (``"layer"``), or x (``"none"``)."""
    if norm == "none":
        return x
    centred = x - x.mean(dim=-1, keepdim=True) if norm == "layer" else x
    return centred / (centred.square().mean(dim=-1, keepdim=True) + EPS).sqrt()


def blocks(stack: Stack, rows: Int[Tensor, " row"], keys: int, seeds: int) -> Sequence[Int[Tensor, " place"]]:
    """Rows in groups whose attention rows have at most `CELLS` entries, with at least one row in each."""
    return rows.split(max(1, CELLS // (seeds * stack.heads * keys)))


def _placed(
    drawn: Drawn, x: Float[Tensor, "seed token d"], position: Int[Tensor, " token"]
) -> Float[Tensor, "seed head token dot"]:
    """Queries or keys with positional encodings, split into heads."""
    stack = drawn.stack
    if stack.encoding == "sinusoidal_qk":
        x = x + sinusoids(position, stack.width, stack.base).to(x)
    heads = _heads(drawn, x)
    return rotate(heads, position, stack.base) if stack.encoding == "rope" else heads


def _heads(drawn: Drawn, x: Float[Tensor, "seed token d"]) -> Float[Tensor, "seed head token dot"]:
    return rearrange(x, "seed token (head dot) -> seed head token dot", head=drawn.stack.heads)
