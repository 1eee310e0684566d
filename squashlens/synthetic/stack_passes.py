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
from squashlens.synthetic.stack import (
    Drawn,
    Stack,
    alibi,
    chosen_lengths,
    chosen_seeds,
    draw,
    rotate,
    sinusoids,
    t5_bucket,
)
from squashlens.theory.distances import total_variation

EPS = 1e-6  # ε under the root of a norm
CELLS = 2**22  # limit of entries of a block of attention rows: 32 MiB in float64
NUMBERS = (
    2**24
)  # the largest number of coordinates (seeds × tokens × width) that are computed together


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
        trunk, n = torch.arange(lengths[-1]), torch.tensor(lengths)
        position = torch.cat((trunk, n))
        order = position.argsort(
            stable=True
        )  # at one position the trunk's token comes first
        place = order.argsort()
        content, branch = torch.cat((trunk, n - 1))[order], order >= len(trunk)
        parts = (content, position[order], branch, place[n - 1], place[len(trunk) :])
        return cls(*(part.to(device) for part in parts))


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
        stack, self.drawn, self.pack, self.x = drawn.stack, drawn, pack, x
        if x is None:
            self.weights: dict[str, Tensor] = {}
            q, k, v = (given[:, pack.content] for given in drawn.direct)
        else:
            self.weights, state = drawn.layers[layer], normalise(x, stack.norm)
            q, k, v = (state @ self.weights[name] for name in ("query", "key", "value"))
        if stack.encoding == "sinusoidal_qk":
            places = sinusoids(pack.position, stack.width, stack.base).to(q)
            q, k = q + places, k + places
        self.query, self.key, self.value = (
            rearrange(
                x, "seed token (head dot) -> seed head token dot", head=stack.heads
            )
            for x in (q, k, v)
        )
        if stack.encoding == "rope":
            self.query, self.key = (
                rotate(x, pack.position, stack.base) for x in (self.query, self.key)
            )

    def rows(
        self, rows: Int[Tensor, " row"]
    ) -> tuple[Float[Tensor, "seed row d"], Float[Tensor, "seed head row key"]]:
        """The layer's output at these tokens, and their attention rows up to the last token that any of them sees."""
        stack, pack = self.drawn.stack, self.pack
        reach = (
            int(rows.max()) + 1
        )  # the first tokens, which include all that rows attend to
        position, branch = pack.position[:reach], pack.branch[:reach]
        distance = pack.position[rows, None] - position
        scores = (
            self.query[:, :, rows] @ self.key[:, :, :reach].mT / stack.per_head**0.5
        )
        if stack.encoding == "alibi":
            scores = scores + alibi(distance, stack.heads).to(scores)
        if self.drawn.biases is not None:
            scores = scores + self.drawn.biases[:, :, t5_bucket(distance)]
        seen = (distance > 0) & ~branch
        if stack.window is not None:
            seen &= distance < stack.window
        own = rows[:, None] == torch.arange(reach, device=rows.device)
        pattern = scores.masked_fill(~(own | seen), -torch.inf).softmax(dim=-1)
        mixed = rearrange(
            pattern @ self.value[:, :, :reach],
            "seed head row dot -> seed row (head dot)",
        )
        return mixed if self.x is None else self._finish(
            self.x[:, rows], mixed
        ), pattern

    def groups(self, rows: Int[Tensor, " row"]) -> Sequence[Int[Tensor, " place"]]:
        """Rows in groups whose attention rows have at most `CELLS` entries, with at least one row in each."""
        return rows.split(
            max(
                1,
                CELLS
                // (len(self.key) * self.drawn.stack.heads * len(self.pack.content)),
            )
        )

    def _finish(
        self, x: Float[Tensor, "seed row d"], mixed: Float[Tensor, "seed row d"]
    ) -> Float[Tensor, "seed row d"]:
        """The output after W_O, the residual connection and the MLP."""
        stack, weights = self.drawn.stack, self.weights
        z = mixed @ weights["output"]
        z = z + x if stack.residual else z
        if not stack.mlp:
            return z
        grown = (
            functional.gelu(normalise(z, stack.norm) @ weights["up"]) @ weights["down"]
        )
        return z + grown if stack.residual else grown


def normalise(
    x: Float[Tensor, "seed row d"], norm: StackNorm
) -> Float[Tensor, "seed row d"]:
    """x ÷ √(mean x² + ε) (``"rms"``), the same after subtracting the mean (``"layer"``), or x (``"none"``)."""
    if norm == "none":
        return x
    centred = x - x.mean(dim=-1, keepdim=True) if norm == "layer" else x
    return centred / (centred.square().mean(dim=-1, keepdim=True) + EPS).sqrt()


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
    chosen, numbers, place = (
        chosen_lengths(lengths),
        chosen_seeds(seeds),
        device_named(device),
    )
    pack, shape = Pack.of(chosen, place), (len(numbers), stack.depth, len(chosen))
    found = LastTokens(
        *(torch.empty(*shape, stack.width, dtype=dtype) for _ in ("v", "star")),
        *(
            torch.empty(*shape, stack.heads, dtype=torch.float64)
            for _ in ("total_variation", "self_weight")
        ),
    )
    together = max(1, NUMBERS // (chosen[-1] * stack.width))
    groups = [
        slice(start, start + together) for start in range(0, len(numbers), together)
    ]
    with torch.no_grad():
        for seed in bar(groups, desc="seeds", unit="pass"):
            drawn = draw(stack, chosen[-1], numbers[seed], dtype, place)
            x = drawn.inputs(pack.content, pack.position)
            for layer in range(stack.depth):
                attention = Attention(drawn, pack, layer, x)
                _read(attention, found, seed, layer)
                if (
                    layer < stack.depth - 1
                ):  # below the top layer, all tokens are computed for the next one
                    every = attention.groups(
                        torch.arange(len(pack.content), device=place)
                    )
                    x = torch.cat([attention.rows(rows)[0] for rows in every], dim=1)
    return found


def _read(attention: Attention, found: LastTokens, seed: slice, layer: int) -> None:
    """Write the last tokens after one layer to `found`, in groups of lengths."""
    pack, at = attention.pack, slice(0, 0)
    for v, star in zip(
        attention.groups(pack.v), attention.groups(pack.star), strict=True
    ):
        at = slice(at.stop, at.stop + len(v))
        found.v[seed, layer, at], row = attention.rows(v)
        found.star[seed, layer, at], row_star = attention.rows(star)
        padded = functional.pad(row, (0, row_star.shape[-1] - row.shape[-1]))
        found.total_variation[seed, layer, at] = total_variation(padded, row_star).mT
        own = star[:, None].expand(*row_star.shape[:3], 1)
        found.self_weight[seed, layer, at] = row_star.gather(-1, own)[..., 0].mT
