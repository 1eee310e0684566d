"""The last tokens of v = [x, a] and v* = [x, a, a] at every length, after every layer of a random stack.

Attention is computed by rows, so that no full attention pattern is in memory.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from squashlens._typing import StackNorm
from squashlens.bars import bar
from squashlens.checks.arguments import validated
from squashlens.engine.memory import device_named
from squashlens.synthetic.stack import (
    Drawn,
    Stack,
    Weights,
    alibi,
    chosen_lengths,
    chosen_seeds,
    draw,
    rotate,
    sinusoids,
    t5_bucket,
)
from squashlens.theory.distances import total_variation


@dataclass(frozen=True)
class Pack:
    """The tokens of one pass, in the order of their positions: a trunk with v of all lengths, and a branch for each v*.

    A branch repeats the last token of its v; it attends to the trunk up to there and to itself. `v` and `star` are the
    rows of the last tokens of v and v*.
    """

    stack: Stack
    content: Int[Tensor, " token"]
    position: Int[Tensor, " token"]
    branch: Bool[Tensor, " token"]
    v: Int[Tensor, " length"]
    star: Int[Tensor, " length"]

    @classmethod
    def of(cls, stack: Stack, lengths: Sequence[int], device: torch.device) -> "Pack":
        """The tokens that give v and v* at all lengths, in ascending order."""
        trunk, n = torch.arange(lengths[-1]), torch.tensor(lengths)
        position = torch.cat((trunk, n))
        order = position.argsort(stable=True)  # at one position the trunk's token comes first
        place = order.argsort()
        content, branch = torch.cat((trunk, n - 1))[order], order >= len(trunk)
        parts = (content, position[order], branch, place[n - 1], place[len(trunk) :])
        return cls(stack, *(part.to(device) for part in parts))

    def __len__(self) -> int:
        return len(self.content)

    def distance(self, rows: Int[Tensor, " row"], reach: int) -> Int[Tensor, "row key"]:
        """The position of the query minus that of the key."""
        return self.position[rows, None] - self.position[:reach]

    def visible(self, rows: Int[Tensor, " row"], reach: int) -> Bool[Tensor, "row key"]:
        """A mask of the first `reach` tokens that each row attends to."""
        distance = self.distance(rows, reach)
        own = rows[:, None] == torch.arange(reach, device=rows.device)
        seen = distance > 0
        if self.stack.window is not None:
            seen &= (distance < self.stack.window) | (self.position[:reach] < self.stack.sinks)
        return own | (seen & ~self.branch[:reach])


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
            weights, state = drawn.layers[layer], normalise(x, stack.norm)
            key, value = state @ weights.key, state @ weights.value
        return cls(drawn, pack, weights, x, state, _place(drawn, key, pack.position), _heads(drawn, value))

    def rows(self, rows: Int[Tensor, " row"]) -> tuple[Float[Tensor, "seed row d"], Float[Tensor, "seed head row key"]]:
        """The layer's output at these tokens, and their attention rows up to the last token that any of them sees."""
        stack, reach = self.drawn.stack, int(rows.max()) + 1  # the first tokens, which include all that rows attend to
        query = _place(self.drawn, self._queries(rows), self.pack.position[rows])
        scores = query @ self.key[:, :, :reach].mT / stack.per_head**0.5
        if stack.encoding == "alibi":
            scores = scores + alibi(self.pack.distance(rows, reach), stack.heads).to(scores)
        if self.drawn.biases is not None:
            scores = scores + self.drawn.biases[:, :, t5_bucket(self.pack.distance(rows, reach))]
        pattern = scores.masked_fill(~self.pack.visible(rows, reach), -torch.inf).softmax(dim=-1)
        mixed = rearrange(pattern @ self.value[:, :, :reach], "seed head row dot -> seed row (head dot)")
        return self._finish(rows, mixed), pattern

    def groups(self, rows: Int[Tensor, " row"]) -> Sequence[Int[Tensor, " place"]]:
        """Rows in groups whose attention rows have at most `CELLS` entries, with at least one row in each."""
        return rows.split(max(1, CELLS // (len(self.key) * self.drawn.stack.heads * len(self.pack))))

    def _queries(self, rows: Int[Tensor, " row"]) -> Float[Tensor, "seed row d"]:
        if self.state is None or self.weights is None:
            return self.drawn.direct[0][:, self.pack.content[rows]]
        return self.state[:, rows] @ self.weights.query

    def _finish(self, rows: Int[Tensor, " row"], mixed: Float[Tensor, "seed row d"]) -> Float[Tensor, "seed row d"]:
        """The output after W_O, the residual connection and the MLP."""
        stack, weights = self.drawn.stack, self.weights
        if weights is None or self.x is None:
            return mixed
        z = mixed @ weights.output
        z = z + self.x[:, rows] if stack.residual else z
        if weights.up is None or weights.down is None:
            return z
        grown = functional.gelu(normalise(z, stack.norm) @ weights.up) @ weights.down
        return z + grown if stack.residual else grown


def normalise(x: Float[Tensor, "seed row d"], norm: StackNorm) -> Float[Tensor, "seed row d"]:
    """x ÷ √(mean x² + ε) (``"rms"``), the same after subtracting the mean (``"layer"``), or x (``"none"``)."""
    if norm == "none":
        return x
    centred = x - x.mean(dim=-1, keepdim=True) if norm == "layer" else x
    return centred / (centred.square().mean(dim=-1, keepdim=True) + EPS).sqrt()


def _place(
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


NUMBERS = 2**24  # the largest number of coordinates (seeds × tokens × width) that are computed together


@dataclass(frozen=True)
class LastTokens:
    """The last tokens of v and v* after each layer, and the difference of their attention rows."""

    v: Float[Tensor, "seed layer length d"]
    star: Float[Tensor, "seed layer length d"]
    total_variation: Float[Tensor, "seed layer length head"]
    self_weight: Float[Tensor, "seed layer length head"]


@validated
def last_tokens(
    stack: Stack,
    lengths: Iterable[int],
    *,
    seeds: int | Iterable[int] = 5,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> LastTokens:
    """Representations of the last token of v (n tokens) and v* (n + 1 tokens, the last repeated) at every length n.

    Each seed draws one growing sequence, whose first n tokens are the same at every length. In the top layer only the
    rows of last tokens are computed, so a single layer needs O(n·d) memory. One pass gives all lengths.

    Args:
        stack: the stack to run.
        lengths: n, the numbers of tokens of v, at least 1.
        seeds, dtype, device: as in `convergence`; results are returned on the CPU.

    Returns:
        `v` and `star`, of shape (seed, layer, length, d), after layers 1 to depth, for ascending lengths.
        `total_variation`, of shape (seed, layer, length, head), is
        δ(α_n, α*_{n+1}) = Σ_{i ≤ n+1} |α_{n,i} − α*_{n+1,i}| with α_{n,n+1} = 0, between 0 and 2. `self_weight`, of
        the same shape, is α*_{n+1,n+1}, the last summand of δ.

    Raises:
        InputError: if a length exceeds a learned table, or lengths or seeds are not valid.

    Source: Barbero et al. 2024, appendix C.3 and Theorem B.3.

    >>> found = last_tokens(Stack(), [10, 100], seeds=2)
    >>> tuple(found.v.shape), bool((found.v - found.star).abs().max() > 0)
    ((2, 1, 2, 64), True)
    """
    chosen, numbers = chosen_lengths(lengths), chosen_seeds(seeds)
    stack.check_lengths(chosen)
    place = device_named(device)
    pack = Pack.of(stack, chosen, place)
    together = max(1, NUMBERS // (chosen[-1] * stack.width))
    groups = [numbers[start : start + together] for start in range(0, len(numbers), together)]
    with torch.no_grad():
        drawn = (draw(stack, chosen[-1], group, dtype, place) for group in bar(groups, desc="seeds", unit="pass"))
        return _join([_through(one, pack) for one in drawn], dim=0)


def _through(drawn: Drawn, pack: Pack) -> LastTokens:
    """The last tokens after every layer; below the top layer, all tokens are computed for the next layer."""
    x, found = drawn.inputs(pack.content, pack.position), []
    for layer in range(drawn.stack.depth):
        attention = Attention.of(drawn, pack, layer, x)
        found.append(_read(attention))
        if layer < drawn.stack.depth - 1:
            every = torch.arange(len(pack), device=attention.key.device)
            x = torch.cat([attention.rows(group)[0] for group in attention.groups(every)], dim=1)
    return _join(found, dim=1)


def _read(attention: Attention) -> LastTokens:
    """The last tokens after one layer, computed in groups of lengths."""
    parts, pack = [], attention.pack
    for v, star in zip(attention.groups(pack.v), attention.groups(pack.star), strict=True):
        last, row = attention.rows(v)
        repeated, row_star = attention.rows(star)
        padded = functional.pad(row, (0, row_star.shape[-1] - row.shape[-1]))
        own = star[:, None].expand(*row_star.shape[:3], 1)
        parts.append(
            LastTokens(
                last[:, None].cpu(),
                repeated[:, None].cpu(),
                total_variation(padded, row_star).mT[:, None].cpu(),
                row_star.gather(-1, own)[..., 0].double().mT[:, None].cpu(),
            )
        )
    return _join(parts, dim=2)


def _join(parts: Sequence[LastTokens], dim: int) -> LastTokens:
    """Several results joined along seeds (0), layers (1) or lengths (2)."""
    names = ("v", "star", "total_variation", "self_weight")
    return LastTokens(*(torch.cat([getattr(part, name) for part in parts], dim=dim) for name in names))
