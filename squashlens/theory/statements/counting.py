"""Proposition B.9: without positions and without a mask, attention represents proportions, not counts."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import positive, short_repr
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.theory.distances import distance
from squashlens.theory.statements.statement import Statement, require_tokens

ORDERS = 8  # random token orders with which every layer is tested
ROUNDING = 1000  # tolerance: units in the last place of the largest coordinate, in the dtype that layers return
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
    """Check Proposition B.9: if every symbol occurs `times` as often, the representation stays the same.

    For example, 10 and 1100. Without positions and mask, all tokens of a symbol have the same vector in every layer.
    The tokens of symbol s together get the attention n_s e^{q·k_s} / Σ_t n_t e^{q·k_t}, which depends only on ratios of
    counts; functions of single tokens do not change that. The paper's "without positional encodings and a causal
    mechanism" means without both, since its proof permutes tokens. Whether a layer treats all tokens alike is tested
    with eight random orders of the tokens: its output must be in the same order.

    Args:
        layers: functions of tokens (position, d) and of `causal` that return tokens (position, d).
        symbols: the vector of each symbol, (symbol, d).
        sequence: symbols in order, by number; the other sequence repeats each of them `times` in a row.
        times: how often each symbol is repeated, at least 2.
        causal: True adds a causal mask, which violates the premise.
        positions: function of n that returns positional encodings (position, d), which violate the premise.
        seed: random seed of the token orders.

    Returns:
        The statement; its left side is the largest distance (L∞), over symbols, of any of their tokens in either
        sequence from the first of them, and its right side is 0.

    Raises:
        InputError: no other sequence results, a symbol does not exist, or a function returns tokens of another shape.

    Source: Barbero et al. 2024, Proposition B.9 (6.1).
    """
    positive(times, "times", "a number of repeats")
    if times < 2 or not sequence or not all(0 <= symbol < len(symbols) for symbol in sequence):
        raise InputError(
            f"times={times} of sequence={short_repr(sequence)} gives no second sequence.",
            f"Use times= at least 2, and some symbols from 0 to {len(symbols) - 1}.",
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
        "distance of equal symbols in both sequences = 0",
        {
            "no causal mask": not causal,
            "no positional encodings": positions is None,
            f"layers treat tokens alike ({ORDERS} random orders)": fair and fair_longer,
        },
        left,
        "=",
        0.0,
        left <= _rounding(many),
        {"tokens in the first": float(len(sequence)), "tokens in the second": float(len(longer))},
        f"these layers on one sequence and on the same with each symbol {times} times. Whether they treat tokens alike "
        f"was tested with {ORDERS} orders only",
    )


def _through(
    layers: Sequence[Layer],
    symbols: Float[Tensor, "symbol d"],
    chosen: Sequence[int],
    causal: bool,
    positions: Callable[[int], Float[Tensor, "position d"]] | None,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "position d"], bool]:
    """The tokens after the last layer, and whether every layer commutes with the random orders."""
    tokens, fair = symbols[list(chosen)], True
    if positions is not None:
        added = positions(len(chosen))
        require_tokens(added, tokens, f"positions({len(chosen)})")
        tokens = tokens + added.to(tokens)
    for layer in layers:
        entered, tokens = tokens, layer(tokens, causal)
        require_tokens(tokens, entered, "A function in layers")
        for _ in range(ORDERS):
            order = torch.randperm(len(entered), generator=generator)
            off = float((layer(entered[order], causal) - tokens[order]).abs().max())
            fair &= off <= _rounding(tokens)
    return tokens, fair


def _rounding(tokens: Float[Tensor, "position d"]) -> float:
    """The largest difference between equal tokens that rounding can explain."""
    return ROUNDING * torch.finfo(tokens.dtype).eps * float(tokens.abs().max())
