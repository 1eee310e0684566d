"""One layer of a random stack: attention by rows, so that no full attention pattern is in memory, then the MLP."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from squashlens._typing import StackNorm
from squashlens.synthetic.stacks.draws import Drawn, Weights, alibi, rotate, sinusoids, t5_bucket
from squashlens.synthetic.stacks.stack import Stack


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
        yield _shared(stack, together, device)


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


def _shared(stack: Stack, lengths: Sequence[int], device: torch.device) -> Pair:
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
