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
SMALL, DEPTHS = (3, 5, 10, 20, 50), (100, 300, 1000, 3000, 10_000)


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
        each = zip(self.at, self.kept, strict=False)
        return self.kept[0].steps or tuple(
            Step(at, one.left, one.right, one.holds) for at, one in each
        )


@validated
def gallery(
    seed: int = 0,
) -> tuple[Exhibit, ...]:  # long because it lists every statement once
    """Evaluate all statements in the paper's order, on random inputs drawn with `seed`, in float64.

    Args:
        seed: random seed of the inputs.

    Returns:
        One `Exhibit` for each statement.
    """
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    def pattern(n: int) -> Tensor:
        return _causal(4 * drawn(n, n)).softmax(dim=-1)

    def alone(n: int) -> Tensor:
        """A pattern in which one row attends only to itself."""
        a = pattern(n)
        a[n // 2] = torch.eye(n, dtype=torch.float64)[n // 2]
        return a

    long, values = drawn(SIZES[-1]), drawn(SIZES[-1], 3)
    nearer = 0.1 / torch.arange(1, SIZES[-1] + 1, dtype=torch.float64).sqrt()

    def b3(slope: float) -> Statement:
        """Theorem B.3 for attention that is uniform, or decreases with distance."""
        scores = -slope * torch.arange(SIZES[-1], -1, -1, dtype=torch.float64)
        rows = [(scores[-n:].softmax(0), scores[-n - 1 :].softmax(0)) for n in SIZES]
        return theorem_b3(rows, values, bound=3.0)

    def b10(n: int, dtype: torch.dtype = torch.bfloat16) -> Statement:
        """Corollary B.10 for representations that differ by about 1/n, and a read-out that is right if they differ."""
        y = (
            (values[:8, 0] + 1).bfloat16().double()
        )  # a bfloat16 number, so that small changes round back to it

        def count(rows: Tensor) -> int:
            return round(n + 1000 * n * float((rows.double() - y).mean()))

        return corollary_b10(y, y + 1e-3 / n, count, n, dtype=dtype)

    chain, sequence, layers = pattern(20), drawn(12, 4) - 0.5, (1, 2, 3, 5, 8)

    def path(many: int) -> Statement:
        return theorem_51(
            [pattern(12) for _ in range(many)],
            sequence,
            torch.tanh,
            sigma=1.0,
            betas=(1.0, 2.0, 0.5),
        )

    symbols, (w_q, w_k, w_v) = drawn(2, 8) - 0.5, 3 * (drawn(3, 8, 8) - 0.5)

    def b9(times: int, mask: Callable[[Tensor], Tensor] = Tensor.clone) -> Statement:
        """Proposition B.9 for two layers of one head of softmax attention with a residual connection."""

        def layer(tokens: Tensor) -> Tensor:
            scores = mask((tokens @ w_q) @ (tokens @ w_k).T / 8**0.5)
            return tokens + scores.softmax(dim=-1) @ (tokens @ w_v)

        return proposition_b9([layer, layer], symbols, [1, 0], times=times)

    return (
        Exhibit(
            theorem_51,
            "layers",
            layers,
            tuple(map(path, layers)),
            theorem_51(
                [lambda x: _causal(x @ x.T).softmax(dim=-1)],
                3 * sequence,
                torch.tanh,
                sigma=1.0,
            ),
            "attention is a softmax of the tokens",
        ),
        Exhibit(
            lemma_b1,
            "n",
            SIZES,
            (lemma_b1(long[:-1], 0.5, 0.5, bound=1.0, lengths=SIZES),),
            lemma_b1(0 * long[:-1], 0.0, math.log(SIZES[-1]), bound=1.0, lengths=SIZES),
            "the last entry grows as log n, and keeps half of the weight at the longest length",
        ),
        Exhibit(
            lemma_b2,
            "n",
            SIZES,
            (lemma_b2(long, long + nearer, bound=1.1, lengths=SIZES),),
            lemma_b2(long.round(), 1 - long.round(), bound=1.0, lengths=SIZES),
            "the two sequences differ by 1",
        ),
        Exhibit(
            theorem_b3,
            "n",
            SIZES,
            (b3(0.0),),
            b3(2**-8),
            "attention decreases with distance (ALiBi, slope 2⁻⁸), so the last token keeps its weight at every n",
        ),
        Exhibit(
            proposition_b4,
            "n",
            SIZES,
            tuple(map(proposition_b4, SIZES)),
            proposition_b4(11),
            "n is odd",
        ),
        Exhibit(
            lemma_b6,
            "n",
            SMALL,
            tuple(lemma_b6(pattern(n)) for n in SMALL),
            lemma_b6(alone(10)),
            "one row attends only to itself",
        ),
        Exhibit(
            lemma_b7,
            "n",
            SMALL,
            tuple(lemma_b7(pattern(n), pattern(n)) for n in SMALL),
            lemma_b7(pattern(10), 1.5 * pattern(10)),
            "the rows of one matrix sum to 1.5",
        ),
        Exhibit(
            proposition_b8,
            "layers",
            DEPTHS,
            tuple(proposition_b8(chain, depth=depth) for depth in DEPTHS),
            proposition_b8(alone(20)),
            "one row attends only to itself, and keeps its mass",
        ),
        Exhibit(
            proposition_b9,
            "times",
            (2, 3, 5, 10, 30),
            tuple(map(b9, (2, 3, 5, 10, 30))),
            b9(2, _causal),
            "a causal mask",
        ),
        Exhibit(
            corollary_b10,
            "n",
            SIZES,
            tuple(map(b10, SIZES)),
            b10(10, torch.float64),
            "y and y* are stored in float64, where they still differ",
        ),
    )


def _causal(scores: Tensor) -> Tensor:
    """Scores without those of later tokens."""
    return scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
