"""The last tokens of v = [x, a] and of v* = [x, a, a] at every length, through every layer of a random stack."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from squashlens.arguments import validated
from squashlens.bars import bar
from squashlens.model.memory import device_named
from squashlens.synthetic.draws import Drawn, chosen_lengths, chosen_seeds, draw
from squashlens.synthetic.layers import Attention, blocks
from squashlens.synthetic.packing import Pair, pairs
from squashlens.synthetic.stack import Stack
from squashlens.theory.distances import total_variation

NUMBERS = 2**24  # coordinates of all tokens of the seeds that are run together


@dataclass(frozen=True)
class LastTokens:
    """The last token of v and of v* behind each layer, and how their attention rows differ there."""

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
    """Representations of the last token of v (n tokens) and of v* (n + 1, the last repeated), for every length n.

    A seed draws one growing sequence: its first n tokens are the same at every length, and whatever the longest is.
    In the top layer only the rows that are read are computed, so one layer costs O(n·d) memory; deeper stacks attend
    by blocks of rows. Under a causal mask, a window, or a prefix that v has behind it, one pass gives all lengths.

    Args:
        stack: what is run.
        lengths: n of v, in tokens, from 1.
        seeds: how many draws, counted from 0, or the seeds themselves.
        dtype: what the stack computes in; everything is drawn in float64 and then rounded.
        device: where it computes; results come back to the CPU.

    Returns:
        `v` and `star`, behind layers 1 to depth, lengths ascending. `total_variation`, by head,
        δ(α_n, α*_{n+1}) = Σ_{i ≤ n+1} |α_{n,i} − α*_{n+1,i}| with α_{n,n+1} = 0, between 0 and 2; `self_weight`,
        α*_{n+1,n+1}, which is its last summand.

    Refused: lengths beyond a learned table; what is no length, and no seed.

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
    """All lengths of a few seeds. Lengths that need passes of their own are the shortest ones, or all."""
    return _joined([_through(drawn, pair) for pair in pairs(drawn.stack, lengths, device)], dim=2)


def _through(drawn: Drawn, pair: Pair) -> LastTokens:
    """Layer by layer: read the last tokens, then, but for the top, bring every token one layer up."""
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
    """The last tokens behind one layer, by groups of lengths."""
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
    """All tokens of a pass behind one layer."""
    size, seeds = len(attention.pack), len(attention.key)
    rows = torch.arange(size, device=attention.key.device)
    groups = blocks(attention.drawn.stack, rows, size, seeds)
    return torch.cat([attention.rows(group)[0] for group in groups], dim=1)


def _joined(parts: Sequence[LastTokens], dim: int) -> LastTokens:
    """Several side by side: seeds (0), layers (1) or lengths (2)."""
    names = ("v", "star", "total_variation", "self_weight")
    return LastTokens(*(torch.cat([getattr(part, name) for part in parts], dim=dim) for name in names))
