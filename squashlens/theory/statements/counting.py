"""Proposition B.9: without positions and without a mask, attention knows shares and no counts."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens.errors import InputError
from squashlens.theory.distances import distance
from squashlens.theory.statements.statement import Statement

ROUNDING = 1e-9  # in units of the largest coordinate
Layer = Callable[[Tensor, bool], Tensor]


def proposition_b9(
    layers: Sequence[Layer],
    symbols: Float[Tensor, "symbol d"],
    sequence: Sequence[int],
    *,
    times: int = 2,
    causal: bool = False,
    positions: Callable[[int], Float[Tensor, "position d"]] | None = None,
) -> Statement:
    """A sequence and the same with every symbol `times` as often, as 10 and 1100, get the same representations.

    Without positions and mask a layer treats tokens alike, so all tokens of one symbol stay one vector. Softmax gives a
    symbol's tokens together n_s e^{q·k_s} / Σ_t n_t e^{q·k_t}, in which only ratios of counts are left; what acts on a
    token by itself changes nothing about that, and so layer after layer. The paper's "without positional encodings and
    a causal mechanism" means without both: its proof permutes tokens.

    Args:
        layers: each from tokens (position, d) and whether attention is causal to tokens.
        symbols: the vector of each symbol.
        sequence: symbols in order, by number; the other sequence has each `times` in a row.
        causal, positions: what breaks the premise: a mask, and what is added to token p of n.

    Returns: the largest distance, over symbols, between their last tokens in the two sequences (L∞), against 0.

    Source: Barbero et al. 2024, Proposition B.9 (6.1).
    """
    if times < 2 or not sequence:
        raise InputError(
            f"{times} times {len(sequence)} symbols is no other count.", "Repeat some symbols, twice or more."
        )
    longer = [symbol for symbol in sequence for _ in range(times)]
    ends = []
    for chosen in (list(sequence), longer):
        tokens = symbols.double()[chosen]
        tokens = tokens if positions is None else tokens + positions(len(chosen)).double()
        for layer in layers:
            tokens = layer(tokens, causal)
        last = {symbol: place for place, symbol in enumerate(chosen)}
        ends.append(torch.stack([tokens[last[symbol]] for symbol in sorted(last)]))
    left = float(distance(ends[0], ends[1], "linf").max())
    return Statement(
        "Proposition B.9",
        "distance of as many and of more = 0",
        {"no causal mask": not causal, "no positional encodings": positions is None},
        left,
        "=",
        0.0,
        left <= ROUNDING * float(ends[0].abs().max()),
        {"count in the one": float(len(sequence)), "count in the other": float(len(longer))},
    )
