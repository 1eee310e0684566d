"""The last tokens of v = [x, a] and v* = [x, a, a] at every length, after every layer of a random stack.

Attention is computed by rows, so that no full attention pattern is in memory.
"""

from collections.abc import Iterable, Iterator, Sequence
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
    """The tokens of one pass in the order of their positions, with their content, position and visible keys."""

    stack: Stack
    content: Int[Tensor, " token"]
    position: Int[Tensor, " token"]
    branch: Bool[Tensor, " token"]
    open: bool = False

    def __len__(self) -> int:
        return len(self.content)

    def reach(self, rows: Int[Tensor, " row"]) -> int:
        """The number of first tokens that include everything these rows attend to."""
        return len(self) if self.open else max(int(rows.max()) + 1, min(self.stack.prefix, len(self)))

    def distance(self, rows: Int[Tensor, " row"], reach: int) -> Int[Tensor, "row key"]:
        """The position of the query minus that of the key."""
        return self.position[rows, None] - self.position[:reach]

    def visible(self, rows: Int[Tensor, " row"], reach: int) -> Bool[Tensor, "row key"]:
        """A mask of the first `reach` tokens that each row attends to; a branch attends to the trunk and to itself."""
        distance = self.distance(rows, reach)
        if self.open:
            return torch.ones_like(distance, dtype=torch.bool)
        own = rows[:, None] == torch.arange(reach, device=rows.device)
        seen = distance > 0
        if self.stack.window is not None:
            seen &= (distance < self.stack.window) | (self.position[:reach] < self.stack.sinks)
        if self.stack.mask == "prefix":
            first = self.position < self.stack.prefix
            seen |= first[rows, None] & first[:reach]
        return own | (seen & ~self.branch[:reach])


@dataclass(frozen=True)
class Pair:
    """The passes that compute v and v*, which are often the same, and the rows of their last tokens."""

    plain: Pack
    doubled: Pack
    v: Int[Tensor, " length"]
    star: Int[Tensor, " length"]

    @property
    def shared(self) -> bool:
        """Whether one pass gives both v and v*."""
        return self.plain is self.doubled


def pairs(stack: Stack, lengths: Sequence[int], device: torch.device) -> Iterator[Pair]:
    """The passes that give v and v* at all lengths, in ascending order."""
    alone = [n for n in lengths if stack.mask == "none" or n < stack.prefix]
    for n in alone:
        plain, doubled = _whole(stack, range(n), device), _whole(stack, [*range(n), n - 1], device)
        yield Pair(plain, doubled, torch.tensor([n - 1], device=device), torch.tensor([n], device=device))
    together = [n for n in lengths if n not in set(alone)]
    if together:
        yield _share(stack, together, device)


def _whole(stack: Stack, content: Sequence[int], device: torch.device) -> Pack:
    """A pass over one sequence in which every token attends to every other."""
    n = len(content)
    return Pack(
        stack,
        content=torch.tensor(content, device=device),
        position=torch.arange(n, device=device),
        branch=torch.zeros(n, dtype=torch.bool, device=device),
        open=True,
    )


def _share(stack: Stack, lengths: Sequence[int], device: torch.device) -> Pair:
    """Trunk and branches in one pass, ordered by position; no token attends to a later one."""
    trunk, n = torch.arange(lengths[-1]), torch.tensor(lengths)
    position = torch.cat((trunk, n))
    order = position.argsort(stable=True)  # at one position the trunk's token comes first
    place = order.argsort()
    pack = Pack(
        stack,
        content=torch.cat((trunk, n - 1))[order].to(device),
        position=position[order].to(device),
        branch=(order >= len(trunk)).to(device),
    )
    return Pair(pack, pack, place[n - 1].to(device), place[len(trunk) :].to(device))


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
        stack, reach = self.drawn.stack, self.pack.reach(rows)
        query = _place(self.drawn, self._queries(rows), self.pack.position[rows])
        scores = query @ self.key[:, :, :reach].mT / stack.per_head**0.5
        if stack.encoding == "alibi":
            scores = scores + alibi(self.pack.distance(rows, reach), stack.heads).to(scores)
        if self.drawn.biases is not None:
            bucket = t5_bucket(self.pack.distance(rows, reach), both_ways=stack.mask in ("prefix", "none"))
            scores = scores + self.drawn.biases[:, :, bucket]
        pattern = scores.masked_fill(~self.pack.visible(rows, reach), -torch.inf).softmax(dim=-1)
        mixed = rearrange(pattern @ self.value[:, :, :reach], "seed head row dot -> seed row (head dot)")
        return self._finish(rows, mixed), pattern

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


def blocks(stack: Stack, rows: Int[Tensor, " row"], keys: int, seeds: int) -> Sequence[Int[Tensor, " place"]]:
    """Rows in groups whose attention rows have at most `CELLS` entries, with at least one row in each."""
    return rows.split(max(1, CELLS // (seeds * stack.heads * keys)))


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
    rows of last tokens are computed, so a single layer needs O(n·d) memory. With a causal mask, a window, or a prefix
    no longer than v, one pass gives all lengths.

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
    together = max(1, NUMBERS // (chosen[-1] * stack.width))
    groups = [numbers[start : start + together] for start in range(0, len(numbers), together)]
    with torch.no_grad():
        found = [
            _several(draw(stack, chosen[-1], group, dtype, place), chosen, place)
            for group in bar(groups, desc="seeds", unit="pass")
        ]
    return _join(found, dim=0)


def _several(drawn: Drawn, lengths: list[int], device: torch.device) -> LastTokens:
    """All lengths for a few seeds. The lengths that need separate passes are the shortest ones, or all."""
    return _join([_through(drawn, pair) for pair in pairs(drawn.stack, lengths, device)], dim=2)


def _through(drawn: Drawn, pair: Pair) -> LastTokens:
    """The last tokens after every layer; below the top layer, all tokens are computed for the next layer."""
    one = drawn.inputs(pair.plain.content, pair.plain.position)
    two = one if pair.shared else drawn.inputs(pair.doubled.content, pair.doubled.position)
    found = []
    for layer in range(drawn.stack.depth):
        plain = Attention.of(drawn, pair.plain, layer, one)
        doubled = plain if pair.shared else Attention.of(drawn, pair.doubled, layer, two)
        found.append(_read(pair, plain, doubled))
        if layer < drawn.stack.depth - 1:
            one = _advance(plain)
            two = one if pair.shared else _advance(doubled)
    return _join(found, dim=1)


def _read(pair: Pair, plain: Attention, doubled: Attention) -> LastTokens:
    """The last tokens after one layer, computed in groups of lengths."""
    parts, seeds = [], len(plain.key)
    for v, star in zip(
        blocks(plain.drawn.stack, pair.v, len(pair.doubled), seeds),
        blocks(plain.drawn.stack, pair.star, len(pair.doubled), seeds),
        strict=True,
    ):
        last, row = plain.rows(v)
        repeated, row_star = doubled.rows(star)
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


def _advance(attention: Attention) -> Float[Tensor, "seed token d"]:
    """All tokens of a pass after one layer."""
    size, seeds = len(attention.pack), len(attention.key)
    rows = torch.arange(size, device=attention.key.device)
    groups = blocks(attention.drawn.stack, rows, size, seeds)
    return torch.cat([attention.rows(group)[0] for group in groups], dim=1)


def _join(parts: Sequence[LastTokens], dim: int) -> LastTokens:
    """Several results joined along seeds (0), layers (1) or lengths (2)."""
    names = ("v", "star", "total_variation", "self_weight")
    return LastTokens(*(torch.cat([getattr(part, name) for part in parts], dim=dim) for name in names))
