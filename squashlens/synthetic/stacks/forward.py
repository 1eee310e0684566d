"""The last tokens of v = [x, a] and v* = [x, a, a] at every length, after every layer of a random stack."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from squashlens.bars import bar
from squashlens.checks.arguments import validated
from squashlens.engine.memory import device_named
from squashlens.synthetic.stacks.draws import Drawn, chosen_lengths, chosen_seeds, draw
from squashlens.synthetic.stacks.layers import Attention, Pair, blocks, pairs
from squashlens.synthetic.stacks.stack import Stack
from squashlens.theory.distances import total_variation

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
    progress: bool = True,
) -> LastTokens:
    """Representations of the last token of v (n tokens) and v* (n + 1 tokens, the last repeated) at every length n.

    Each seed draws one growing sequence, whose first n tokens are the same at every length. In the top layer only the
    rows of last tokens are computed, so a single layer needs O(n·d) memory. With a causal mask, a window, or a prefix
    no longer than v, one pass gives all lengths.

    Args:
        stack: the stack to run.
        lengths: n, the numbers of tokens of v, at least 1.
        seeds, dtype, device, progress: as in `convergence`; results are returned on the CPU.

    Returns:
        `v` and `star`, of shape (seed, layer, length, d), after layers 1 to depth, for ascending lengths.
        `total_variation`, of shape (seed, layer, length, head), is
        δ(α_n, α*_{n+1}) = Σ_{i ≤ n+1} |α_{n,i} − α*_{n+1,i}| with α_{n,n+1} = 0, between 0 and 2. `self_weight`, of
        the same shape, is α*_{n+1,n+1}, the last summand of δ.

    Raises:
        InputError: if a length exceeds a learned table, or lengths or seeds are not valid.

    Source: Barbero et al. 2024, appendix C.3 and Theorem B.3.

    >>> found = last_tokens(Stack(), [10, 100], seeds=2, progress=False)
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
            for group in bar(groups, desc="seeds", unit="pass", progress=progress)
        ]
    return _joined(found, dim=0)


def _several(drawn: Drawn, lengths: list[int], device: torch.device) -> LastTokens:
    """All lengths for a few seeds. The lengths that need separate passes are the shortest ones, or all."""
    return _joined([_through(drawn, pair) for pair in pairs(drawn.stack, lengths, device)], dim=2)


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
            one = _advanced(plain)
            two = one if pair.shared else _advanced(doubled)
    return _joined(found, dim=1)


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
    return _joined(parts, dim=2)


def _advanced(attention: Attention) -> Float[Tensor, "seed token d"]:
    """All tokens of a pass after one layer."""
    size, seeds = len(attention.pack), len(attention.key)
    rows = torch.arange(size, device=attention.key.device)
    groups = blocks(attention.drawn.stack, rows, size, seeds)
    return torch.cat([attention.rows(group)[0] for group in groups], dim=1)


def _joined(parts: Sequence[LastTokens], dim: int) -> LastTokens:
    """Several results joined along seeds (0), layers (1) or lengths (2)."""
    names = ("v", "star", "total_variation", "self_weight")
    return LastTokens(*(torch.cat([getattr(part, name) for part in parts], dim=dim) for name in names))
