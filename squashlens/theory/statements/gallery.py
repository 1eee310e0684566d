"""Evaluate every statement at inputs that meet its premises, for growing n or depth, and at one input that does not."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from squashlens.checks.arguments import validated
from squashlens.theory.statements.counting import corollary_b10, proposition_b9
from squashlens.theory.statements.limits import (
    lemma_b1,
    lemma_b2,
    proposition_b4,
    theorem_b3,
)
from squashlens.theory.statements.squashing import (
    lemma_b6,
    lemma_b7,
    proposition_b8,
    theorem_51,
)
from squashlens.theory.statements.statement import Statement, Step

SIZES = (10, 30, 100, 300, 1000, 3000, 10_000)
LONGEST = SIZES[-1]
SMALL = (3, 5, 10, 20, 50)
LAYERS = (1, 2, 3, 5, 8)
DEPTHS = (100, 300, 1000, 3000, 10_000)
REPEATS = (2, 3, 5, 10, 30)


@dataclass(frozen=True)
class Exhibit:
    """One statement of the paper, evaluated with and without its premises.

    Attributes:
        check: the function that checks the statement.
        axis, at: the name of what grows, and its values.
        kept: the results where the premises hold: one for each of `at`, or for a limit a single one with a step for
            each.
        broken, how: the result at an input that violates a premise, and how that input violates it.
    """

    check: Callable[..., Statement]
    axis: str
    at: tuple[int, ...]
    kept: tuple[Statement, ...]
    broken: Statement
    how: str

    @property
    def rows(self) -> tuple[Step, ...]:
        """Both sides of the statement at each of `at`."""
        if self.kept[0].steps:
            return self.kept[0].steps
        both = zip(self.at, self.kept, strict=True)
        return tuple(
            Step(at, statement.left, statement.right, statement.holds)
            for at, statement in both
        )


@validated
def gallery(seed: int = 0) -> tuple[Exhibit, ...]:
    """Evaluate all statements in the paper's order, on random inputs drawn with `seed`, in float64.

    Args:
        seed: random seed of the inputs.

    Returns:
        One `Exhibit` for each statement.
    """
    draw = _Draw(seed)
    # In this order, since each draw goes on where the one before it ended.
    long = draw.uniform(LONGEST)
    values = draw.uniform(LONGEST, 3)
    chain = draw.pattern(20)
    tokens = draw.uniform(12, 4) - 0.5
    symbols = draw.uniform(2, 8) - 0.5
    weights = 3 * (draw.uniform(3, 8, 8) - 0.5)
    # a bfloat16 number, so that small changes round back to it
    y = (values[:8, 0] + 1).bfloat16().double()
    return (
        _of_path_bound(draw, tokens),
        *_of_limits(long, values),
        *_of_stochastic_matrices(draw, chain),
        *_of_counting(symbols, weights, y),
    )


def _of_path_bound(draw: "_Draw", tokens: Tensor) -> Exhibit:
    """Theorem 5.1, with constant patterns and with a pattern that depends on the tokens."""
    return Exhibit(
        check=theorem_51,
        axis="layers",
        at=LAYERS,
        kept=tuple(_path(draw, tokens, many) for many in LAYERS),
        broken=theorem_51([_of_tokens], 3 * tokens, torch.tanh, sigma=1.0),
        how="attention is a softmax of the tokens",
    )


def _of_limits(long: Tensor, values: Tensor) -> tuple[Exhibit, ...]:
    """Lemmas B.1 and B.2, Theorem B.3 and Proposition B.4, for growing n.

    `long` are logits (token) between 0 and 1, and `values` value vectors (token, coordinate), of the longest sequence.
    """
    # A difference that falls with n, to logits of at most 1.1.
    nearer = 0.1 / torch.arange(1, LONGEST + 1, dtype=torch.float64).sqrt()
    return (
        Exhibit(
            check=lemma_b1,
            axis="n",
            at=SIZES,
            kept=(lemma_b1(long[:-1], 0.5, 0.5, bound=1.0, lengths=SIZES),),
            broken=lemma_b1(
                0 * long[:-1], 0.0, math.log(LONGEST), bound=1.0, lengths=SIZES
            ),
            how="the last entry is the logarithm of the longest length, at which it keeps half of the weight",
        ),
        Exhibit(
            check=lemma_b2,
            axis="n",
            at=SIZES,
            kept=(lemma_b2(long, long + nearer, bound=1.1, lengths=SIZES),),
            broken=lemma_b2(long.round(), 1 - long.round(), bound=1.0, lengths=SIZES),
            how="the two sequences differ by 1",
        ),
        Exhibit(
            check=theorem_b3,
            axis="n",
            at=SIZES,
            kept=(_b3(values, 0.0),),
            broken=_b3(values, 2**-8),
            how="attention decreases with distance (ALiBi, slope 2⁻⁸), so the last token keeps its weight at every n",
        ),
        Exhibit(
            check=proposition_b4,
            axis="n",
            at=SIZES,
            kept=tuple(proposition_b4(n) for n in SIZES),
            broken=proposition_b4(11),
            how="n is odd",
        ),
    )


def _of_stochastic_matrices(draw: "_Draw", chain: Tensor) -> tuple[Exhibit, ...]:
    """Lemmas B.6 and B.7 and Proposition B.8, for attention as a triangular row-stochastic matrix."""
    return (
        Exhibit(
            check=lemma_b6,
            axis="n",
            at=SMALL,
            kept=tuple(lemma_b6(draw.pattern(n)) for n in SMALL),
            broken=lemma_b6(draw.alone(10)),
            how="one row attends only to itself",
        ),
        Exhibit(
            check=lemma_b7,
            axis="n",
            at=SMALL,
            kept=tuple(lemma_b7(draw.pattern(n), draw.pattern(n)) for n in SMALL),
            broken=lemma_b7(draw.pattern(10), 1.5 * draw.pattern(10)),
            how="the rows of one matrix sum to 1.5",
        ),
        Exhibit(
            check=proposition_b8,
            axis="layers",
            at=DEPTHS,
            kept=tuple(proposition_b8(chain, depth=depth) for depth in DEPTHS),
            broken=proposition_b8(draw.alone(20)),
            how="one row attends only to itself, and keeps its mass",
        ),
    )


def _of_counting(symbols: Tensor, weights: Tensor, y: Tensor) -> tuple[Exhibit, ...]:
    """Proposition B.9 and Corollary B.10."""
    return (
        Exhibit(
            check=proposition_b9,
            axis="times",
            at=REPEATS,
            kept=tuple(_b9(symbols, weights, times) for times in REPEATS),
            broken=_b9(symbols, weights, 2, _causal),
            how="a causal mask",
        ),
        Exhibit(
            check=corollary_b10,
            axis="n",
            at=SIZES,
            kept=tuple(_b10(y, n) for n in SIZES),
            broken=_b10(y, 10, torch.float64),
            how="y and y* are stored in float64, where they still differ",
        ),
    )


@dataclass
class _Draw:
    """Random inputs, one after the other."""

    seed: int

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator, dtype=torch.float64)

    def pattern(self, n: int) -> Tensor:
        return _causal(4 * self.uniform(n, n)).softmax(dim=-1)

    def alone(self, n: int) -> Tensor:
        """A pattern in which one row attends only to itself."""
        pattern = self.pattern(n)
        pattern[n // 2] = torch.eye(n, dtype=torch.float64)[n // 2]
        return pattern


def _path(draw: _Draw, sequence: Tensor, layers: int) -> Statement:
    """Theorem 5.1 with constant patterns."""
    patterns = [draw.pattern(len(sequence)) for _ in range(layers)]
    betas = (1.0, 2.0, 0.5)
    return theorem_51(patterns, sequence, torch.tanh, sigma=1.0, betas=betas)


def _of_tokens(x: Tensor) -> Tensor:
    """A pattern that depends on the tokens."""
    return _causal(x @ x.T).softmax(dim=-1)


def _b3(values: Tensor, slope: float) -> Statement:
    """Theorem B.3 for attention that is uniform, or decreases with distance."""
    # Rows of any length end in the same logits: those of the nearest tokens.
    scores = -slope * torch.arange(LONGEST, -1, -1, dtype=torch.float64)
    rows = [(scores[-n:].softmax(0), scores[-n - 1 :].softmax(0)) for n in SIZES]
    return theorem_b3(rows, values, bound=3.0)


def _b9(
    symbols: Tensor,
    weights: Tensor,
    times: int,
    mask: Callable[[Tensor], Tensor] = Tensor.clone,
) -> Statement:
    """Proposition B.9 for two layers of one head of softmax attention with a residual connection."""
    w_q, w_k, w_v = weights

    def layer(tokens: Tensor) -> Tensor:
        scores = mask((tokens @ w_q) @ (tokens @ w_k).T / 8**0.5)
        return tokens + scores.softmax(dim=-1) @ (tokens @ w_v)

    return proposition_b9([layer, layer], symbols, [1, 0], times=times)


def _b10(y: Tensor, n: int, dtype: torch.dtype = torch.bfloat16) -> Statement:
    """Corollary B.10 for representations that differ by about 1/n, and a read-out that is right if they differ."""

    def count(rows: Tensor) -> int:
        # 1e-3/n, by which y* is larger in each coordinate, makes it n + 1
        return round(n + 1000 * n * float((rows.double() - y).mean()))

    return corollary_b10(y, y + 1e-3 / n, count, n, dtype=dtype)


def _causal(scores: Tensor) -> Tensor:
    """Scores without those of later tokens."""
    return scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
