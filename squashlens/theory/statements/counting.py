"""What collapse means for counting: Proposition B.9 and Corollary B.10."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import dtype_name, positive, short_repr
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.theory.distances import distance, identical
from squashlens.theory.statements.statement import Statement, require_shape

ORDERS = 8  # random token orders with which every layer is tested
UNITS = 1000  # tolerance: units in the last place of the largest coordinate, in the dtype that layers return
Layers = Sequence[Callable[[Tensor], Tensor]]


@validated
def proposition_b9(
    layers: Layers,
    symbols: Float[Tensor, "symbol d"],
    sequence: Sequence[int],
    *,
    times: int = 2,
    seed: int = 0,
) -> Statement:
    """Check Proposition B.9 (6.1): if every symbol occurs `times` as often, the representation stays the same.

    For example, 10 and 1100. Without positions and mask, all tokens of a symbol have the same vector in every layer.
    The tokens of symbol s together get the attention n_s e^{q·k_s} / Σ_t n_t e^{q·k_t}, which depends only on ratios of
    counts; functions of single tokens do not change that. The paper's "without positional encodings and a causal
    mechanism" means without both, since its proof permutes tokens. Whether a layer treats all tokens alike is tested
    with eight random orders of the tokens: its output must be in the same order.

    Args:
        layers: functions from tokens to tokens, (position, d). A causal mask or positional encodings in a layer violate
            the premise.
        symbols: the vector of each symbol, (symbol, d).
        sequence: symbols in order, by number; the other sequence repeats each of them `times` in a row.
        times: how often each symbol is repeated, at least 2.
        seed: random seed of the token orders.

    Returns:
        The statement; its left side is the largest distance (L∞), over symbols, of any of their tokens in either
        sequence from the first of them, and its right side is 0.
    """
    positive(times, "times", "a number of repeats")
    known = all(0 <= symbol < len(symbols) for symbol in sequence)
    if times < 2 or not sequence or not known:
        given = f"times={times} of sequence={short_repr(sequence)} gives no second sequence."
        raise InputError(
            given,
            f"Use times= at least 2, and some symbols from 0 to {len(symbols) - 1}.",
        )
    generator = torch.Generator().manual_seed(seed)
    short = torch.tensor(sequence)
    long = short.repeat_interleave(times)
    of_short, short_is_alike = _through(layers, symbols[short], generator)
    of_long, long_is_alike = _through(layers, symbols[long], generator)
    # Every token is compared with the first one of its symbol in the short sequence.
    first_of_symbol = [sequence.index(symbol) for symbol in [*short, *long]]
    outputs = torch.cat([of_short, of_long])
    left = float(distance(outputs, of_short[first_of_symbol], "linf").max())
    shows = (
        f"these layers on one sequence and on the same with each symbol {times} times. Whether they treat tokens alike "
        f"was tested with {ORDERS} orders only"
    )
    premise = f"layers treat tokens alike, without mask and positions ({ORDERS} random orders)"
    return Statement(
        name="Proposition B.9",
        claim="distance of equal symbols in both sequences = 0",
        premises={premise: short_is_alike and long_is_alike},
        left=left,
        relation="=",
        right=0.0,
        holds=left <= _rounding(of_long),
        found={
            "tokens in the first": float(len(short)),
            "tokens in the second": float(len(long)),
        },
        shows=shows,
    )


def _through(
    layers: Layers, tokens: Float[Tensor, "position d"], generator: torch.Generator
) -> tuple[Float[Tensor, "position d"], bool]:
    """The tokens after the last layer, and whether every layer commutes with random orders of them."""
    alike = True
    for layer in layers:
        after = layer(tokens)
        require_shape(after, tokens.shape, "A function in layers")
        for _ in range(ORDERS):
            order = torch.randperm(len(tokens), generator=generator)
            moved = float((layer(tokens[order]) - after[order]).abs().max())
            alike &= moved <= _rounding(after)
        tokens = after
    return tokens, alike


def _rounding(tokens: Float[Tensor, "position d"]) -> float:
    """The largest difference between equal tokens that rounding can explain."""
    return UNITS * torch.finfo(tokens.dtype).eps * float(tokens.abs().max())


@validated
def corollary_b10(
    y: Float[Tensor, " d"],
    y_star: Float[Tensor, " d"],
    count: Callable[[Tensor], int],
    n: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
) -> Statement:
    """Check Corollary B.10 (6.2): if y and y* are equal, every read-out miscounts at least one of n and n + 1 tokens.

    If y = y*, then count(y) = count(y*), but n ≠ n + 1. Attention plays no part; Theorem B.3 and a finite number format
    make y and y* equal. Bits are compared: −0 differs from 0, and equal NaNs agree.

    Args:
        y, y_star: representations of the shorter sequence and of that with one more token, (d).
        count: reads a count from a representation that is stored in `dtype`.
        n: the count of the shorter sequence.
        dtype: number format in which y and y* are stored and compared.

    >>> y = torch.ones(4)
    >>> print(corollary_b10(y, y + 1e-4, lambda rows: 7, 7))
    Corollary B.10: 1 ≤ 1, holds
    """
    counted = count(y.to(dtype))
    counted_star = count(y_star.to(dtype))
    wrong = int(counted != n) + int(counted_star != n + 1)
    same = float(identical(y, y_star, dtype)) == 1
    return Statement(
        name="Corollary B.10",
        claim="1 ≤ wrong counts among n and n + 1",
        premises={f"y and y* are bit-identical in {dtype_name(dtype)}": same},
        left=1.0,
        relation="≤",
        right=float(wrong),
        holds=wrong >= 1,
        found={"count(y)": float(counted), "count(y*)": float(counted_star)},
        shows="the stored bits of y and y*, and one way to read a count",
    )
