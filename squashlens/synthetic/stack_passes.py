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
from squashlens.model.memory import device_named
from squashlens.synthetic import stack as stacks
from squashlens.synthetic.stack import Drawn, Stack
from squashlens.theory.distances import total_variation

EPS = 1e-6  # ε under the root of a norm
CELLS = 2**22  # limit of entries of a block of attention rows: 32 MiB in float64
NUMBERS = 2**24  # most coordinates (seeds × tokens × width) that are computed together


@dataclass(frozen=True)
class Pack:
    """The tokens of one pass, in the order of their positions: a trunk with v of all lengths, and a branch for each v*.

    A branch repeats the last token of its v; it attends to the trunk up to there and to itself. `v` and `star` are the
    rows of the last tokens of v and v*.
    """

    content: Int[Tensor, " token"]
    position: Int[Tensor, " token"]
    branch: Bool[Tensor, " token"]
    v: Int[Tensor, " length"]
    star: Int[Tensor, " length"]

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> "Pack":
        """The tokens that give v and v* at all lengths, in ascending order."""
        trunk = torch.arange(lengths[-1], device=device)
        n = torch.tensor(lengths, device=device)
        # First the trunk, then for each v* token n − 1 once more, at position n.
        content = torch.cat((trunk, n - 1))
        position = torch.cat((trunk, n))
        # At one position the trunk's token comes first.
        order = position.argsort(stable=True)
        place = order.argsort()  # of each of these tokens in that order
        return cls(
            content=content[order],
            position=position[order],
            branch=order >= len(trunk),
            v=place[n - 1],
            star=place[len(trunk) :],
        )


class Attention:
    """One layer over the tokens of a pass, with queries, keys and values; rows are computed on demand.

    `x` is the input of the layer, or None if q, k and v are drawn directly.
    """

    def __init__(
        self,
        drawn: Drawn,
        pack: Pack,
        layer: int,
        x: Float[Tensor, "seed token d"] | None,
    ) -> None:
        """Compute the queries, keys and values of all tokens, with encodings that act on them."""
        stack = drawn.stack
        self.drawn = drawn
        self.pack = pack
        self.x = x
        self.weights: dict[str, Tensor] = {}
        if x is None:
            q, k, v = [given[:, pack.content] for given in drawn.direct]
        else:
            self.weights = drawn.layers[layer]
            state = normalise(x, stack.norm)
            q = state @ self.weights["query"]
            k = state @ self.weights["key"]
            v = state @ self.weights["value"]
        if stack.encoding == "sinusoidal_qk":
            places = stacks.sinusoids(pack.position, stack.width, stack.base).to(q)
            q = q + places
            k = k + places
        self.query = by_head(q, stack.heads)
        self.key = by_head(k, stack.heads)
        self.value = by_head(v, stack.heads)
        if stack.encoding == "rope":
            self.query = stacks.rotate(self.query, pack.position, stack.base)
            self.key = stacks.rotate(self.key, pack.position, stack.base)

    def rows(
        self, rows: Int[Tensor, " row"]
    ) -> tuple[Float[Tensor, "seed row d"], Float[Tensor, "seed head row key"]]:
        """The layer's output at these tokens, and their attention rows up to the last token that any of them sees."""
        stack = self.drawn.stack
        # The first tokens, which include all that rows attend to.
        reach = int(rows.max()) + 1
        distance = self.pack.position[rows, None] - self.pack.position[:reach]
        products = self.query[:, :, rows] @ self.key[:, :, :reach].mT
        scores = products / stack.per_head**0.5
        if stack.encoding == "alibi":
            scores = scores + stacks.alibi(distance, stack.heads).to(scores)
        if self.drawn.biases is not None:
            scores = scores + self.drawn.biases[:, :, stacks.t5_bucket(distance)]
        is_visible = (distance > 0) & ~self.pack.branch[:reach]
        if stack.window is not None:
            is_visible &= distance < stack.window
        is_visible |= rows[:, None] == torch.arange(reach, device=rows.device)
        pattern = scores.masked_fill(~is_visible, -torch.inf).softmax(dim=-1)
        mixed = pattern @ self.value[:, :, :reach]
        mixed = rearrange(mixed, "seed head row dot -> seed row (head dot)")
        return self._output(rows, mixed), pattern

    def groups(self, rows: Int[Tensor, " row"]) -> Sequence[Int[Tensor, " place"]]:
        """Rows in groups whose attention rows have at most `CELLS` entries, with at least one row in each."""
        seeds, heads, tokens, _ = self.key.shape
        return rows.split(max(1, CELLS // (seeds * heads * tokens)))

    def _output(
        self, rows: Int[Tensor, " row"], mixed: Float[Tensor, "seed row d"]
    ) -> Float[Tensor, "seed row d"]:
        """The output after W_O, the residual connection and the MLP."""
        if self.x is None:
            return mixed
        stack = self.drawn.stack
        z = mixed @ self.weights["output"]
        if stack.residual:
            z = z + self.x[:, rows]
        if not stack.mlp:
            return z
        hidden = functional.gelu(normalise(z, stack.norm) @ self.weights["up"])
        added = hidden @ self.weights["down"]
        return z + added if stack.residual else added


def by_head(
    x: Float[Tensor, "seed token d"], heads: int
) -> Float[Tensor, "seed head token dot"]:
    """The coordinates of each head."""
    return rearrange(x, "seed token (head dot) -> seed head token dot", head=heads)


def normalise(
    x: Float[Tensor, "seed row d"], norm: StackNorm
) -> Float[Tensor, "seed row d"]:
    """x ÷ √(mean x² + ε) (``"rms"``), the same after subtracting the mean (``"layer"``), or x (``"none"``)."""
    if norm == "none":
        return x
    if norm == "layer":
        x = x - x.mean(dim=-1, keepdim=True)
    return x / (x.square().mean(dim=-1, keepdim=True) + EPS).sqrt()


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
        InputError: if lengths or seeds are not valid.

    Source: Barbero et al. 2024, appendix C.3 and Theorem B.3.

    >>> found = last_tokens(Stack(), [10, 100], seeds=2)
    >>> tuple(found.v.shape), bool((found.v - found.star).abs().max() > 0)
    ((2, 1, 2, 64), True)
    """
    ns = stacks.chosen_lengths(lengths)
    numbers = stacks.chosen_seeds(seeds)
    torch_device = device_named(device)
    pack = Pack.of(ns, torch_device)
    every_token = torch.arange(len(pack.content), device=torch_device)
    shape = (len(numbers), stack.depth, len(ns))
    result = LastTokens(
        v=torch.empty(*shape, stack.width, dtype=dtype),
        star=torch.empty(*shape, stack.width, dtype=dtype),
        total_variation=torch.empty(*shape, stack.heads, dtype=torch.float64),
        self_weight=torch.empty(*shape, stack.heads, dtype=torch.float64),
    )
    step = max(1, NUMBERS // (ns[-1] * stack.width))  # seeds of one pass
    with torch.no_grad():
        for start in bar(range(0, len(numbers), step), desc="seeds", unit="pass"):
            seed = slice(start, start + step)
            drawn = stacks.draw(stack, ns[-1], numbers[seed], dtype, torch_device)
            x = drawn.inputs(pack.content, pack.position)
            for layer in range(stack.depth):
                attention = Attention(drawn, pack, layer, x)
                _write_last_tokens(attention, result, seed, layer)
                # Below the top layer, all tokens are computed for the next one.
                if layer < stack.depth - 1:
                    groups = attention.groups(every_token)
                    x = torch.cat([attention.rows(rows)[0] for rows in groups], dim=1)
    return result


def _write_last_tokens(
    attention: Attention, result: LastTokens, seed: slice, layer: int
) -> None:
    """Write the last tokens after one layer to `result`, at these seeds, in groups of lengths."""
    pack = attention.pack
    every_length = torch.arange(len(pack.v), device=pack.v.device)
    for lengths in attention.groups(every_length):
        place = (seed, layer, lengths.cpu())
        v, row = attention.rows(pack.v[lengths])
        star, row_star = attention.rows(pack.star[lengths])
        # The row of v has no weight on the tokens that only v* sees.
        padded = functional.pad(row, (0, row_star.shape[-1] - row.shape[-1]))
        repeated = pack.star[lengths, None].expand(*row_star.shape[:3], 1)
        self_weight = row_star.gather(-1, repeated)[..., 0]
        result.v[place] = v.cpu()
        result.star[place] = star.cpu()
        # (seed, head, length) → (seed, length, head)
        result.total_variation[place] = total_variation(padded, row_star).mT.cpu()
        result.self_weight[place] = self_weight.mT.double().cpu()
