"""Proposition B.9: without positions and without a mask, attention knows shares and no counts."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import positive, shown
from squashlens.arguments import validated
from squashlens.errors import InputError
from squashlens.theory.distances import distance
from squashlens.theory.statements.statement import Statement

ORDERS = 8  # random orders of the tokens that every layer is tried with
ROUNDING = 1000  # units in the last place of the largest coordinate, of the dtype that layers return
Layer = Callable[[Tensor, bool], Tensor]


@validated
def proposition_b9(
    layers: Sequence[Layer],
    symbols: Float[Tensor, "symbol d"],
    sequence: Sequence[int],
    *,
    times: int = 2,
    causal: bool = False,
    positions: Callable[[int], Float[Tensor, "position d"]] | None = None,
    seed: int = 0,
) -> Statement:
    """A sequence and the same with every symbol `times` as often, as 10 and 1100, get the same representations.

    Without positions and mask a layer treats tokens alike, so all tokens of one symbol stay one vector. Softmax gives a
    symbol's tokens together n_s e^{q·k_s} / Σ_t n_t e^{q·k_t}, in which only ratios of counts are left; what acts on a
    token by itself changes nothing about that, and so layer after layer. The paper's "without positional encodings and
    a causal mechanism" means without both: its proof permutes tokens. That a layer treats tokens alike is tried with
    eight random orders of the tokens: what it gives for them has to be in the same order.

    Args:
        layers: each from tokens (position, d) and whether attention is causal to tokens.
        symbols: the vector of each symbol.
        sequence: symbols in order, by number; the other sequence has each `times` in a row.
        causal, positions: what breaks the premise: a mask, and what is added to token p of n.
        seed: of the random orders.

    Returns: the largest distance (L∞), over symbols, of any of their tokens in either sequence from the first of them,
    against 0.

    Source: Barbero et al. 2024, Proposition B.9 (6.1).
    """
    if times < 2 or not sequence:
        raise InputError(
            f"{times} times {len(sequence)} symbols is no other count.", "Repeat some symbols, twice or more."
        )
    positive(times, "times", "a number of repeats")
    if not all(0 <= symbol < len(symbols) for symbol in sequence):
        raise InputError(
            f"sequence={shown(sequence)} has symbols that are not there.", f"Use numbers from 0 to {len(symbols) - 1}."
        )
    longer = [symbol for symbol in sequence for _ in range(times)]
    generator = torch.Generator().manual_seed(seed)
    (few, fair), (many, fair_longer) = (
        _through(layers, symbols, one, causal, positions, generator) for one in (sequence, longer)
    )
    of_kind = torch.stack([few[list(sequence).index(symbol)] for symbol in (*sequence, *longer)])
    left = float(distance(torch.cat([few, many]), of_kind, "linf").max())
    return Statement(
        "Proposition B.9",
        "distance of as many and of more = 0",
        {
            "no causal mask": not causal,
            "no positional encodings": positions is None,
            f"layers treat tokens alike ({ORDERS} random orders)": fair and fair_longer,
        },
        left,
        "=",
        0.0,
        left <= _rounding(many),
        {"count in the one": float(len(sequence)), "count in the other": float(len(longer))},
        f"these layers on this sequence and {times} times as much of it. That they treat tokens alike is tried with "
        f"{ORDERS} orders, and not shown for all",
    )


def _through(
    layers: Sequence[Layer],
    symbols: Float[Tensor, "symbol d"],
    chosen: Sequence[int],
    causal: bool,
    positions: Callable[[int], Float[Tensor, "position d"]] | None,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "position d"], bool]:
    """Tokens behind the last layer, and whether every layer gave the tokens in other orders what it gave them."""
    tokens, fair = symbols[list(chosen)], True
    if positions is not None:
        added = positions(len(chosen))
        if not isinstance(added, Tensor) or added.shape != tokens.shape:
            raise InputError(f"positions({len(chosen)}) gave {shown(added)}.", "Let it give a tensor (position, d).")
        tokens = tokens + added.to(tokens)
    for layer in layers:
        entered, tokens = tokens, layer(tokens, causal)
        if not isinstance(tokens, Tensor) or tokens.shape != entered.shape:
            raise InputError(f"A layer gave {shown(tokens)}.", "Let each of layers give a tensor (position, d).")
        for _ in range(ORDERS):
            order = torch.randperm(len(entered), generator=generator)
            off = float((layer(entered[order], causal) - tokens[order]).abs().max())
            fair &= off <= _rounding(tokens)
    return tokens, fair


def _rounding(tokens: Float[Tensor, "position d"]) -> float:
    """How far apart rounding may put what is the same."""
    return ROUNDING * torch.finfo(tokens.dtype).eps * float(tokens.abs().max())
