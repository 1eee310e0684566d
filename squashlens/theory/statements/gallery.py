"""Evaluate every statement at inputs that meet its premises, for growing n or depth, and at one input that does not."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from squashlens.checks.arguments import validated
from squashlens.theory.statements.lemmas import lemma_b1, lemma_b2, lemma_b6, lemma_b7, proposition_b4, proposition_b8
from squashlens.theory.statements.statement import Statement, Step
from squashlens.theory.statements.theorems import corollary_b10, proposition_b9, theorem_51, theorem_b3

SIZES = (10, 30, 100, 300, 1000, 3000, 10_000)
SMALL, DEPTHS = (3, 5, 10, 20, 50), (100, 300, 1000, 3000, 10_000)


@dataclass(frozen=True)
class Exhibit:
    """One statement of the paper, evaluated with and without its premises.

    Attributes:
        check: the function that checks the statement.
        axis: the name of what grows.
        at: its values.
        kept: the results where the premises hold: one for each of `at`, or for a limit a single one with a step for
            each.
        broken: the result at an input that violates a premise.
        how: how that input violates the premise.
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
        return tuple(Step(at, one.left, one.right, one.holds) for at, one in zip(self.at, self.kept, strict=True))


@validated
def gallery(seed: int = 0) -> tuple[Exhibit, ...]:  # long because it lists every statement once
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
        return (4 * drawn(n, n)).masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf).softmax(dim=-1)

    def alone(n: int) -> Tensor:
        """A pattern in which one row attends only to itself."""
        a = pattern(n)
        a[n // 2] = torch.eye(n, dtype=torch.float64)[n // 2]
        return a

    long, values = drawn(SIZES[-1]), drawn(SIZES[-1], 3)
    nearer = 0.1 / torch.arange(1, SIZES[-1] + 1, dtype=torch.float64).sqrt()

    def b3(slope: float) -> Statement:
        """Theorem B.3 for attention that is uniform, or decreases with distance."""

        def row(m: int) -> Tensor:
            return (-slope * torch.arange(m - 1.0, -1, -1, dtype=torch.float64)).softmax(0)

        return theorem_b3([(row(n), row(n + 1)) for n in SIZES], values, bound=3.0)

    def b10(n: int, dtype: torch.dtype) -> Statement:
        """Corollary B.10 for representations that differ by about 1/n, and a read-out that is right if they differ."""
        y = (values[:8, 0] + 1).bfloat16().double()  # a bfloat16 number, so that small changes round back to it

        def count(rows: Tensor) -> int:
            return round(n + 1000 * n * float((rows.double() - y).mean()))

        return corollary_b10(y, y + 1e-3 / n, count, n, dtype=dtype)

    chain, sequence = pattern(20), drawn(12, 4) - 0.5

    def path(layers: int, sigma: float) -> Statement:
        return theorem_51(
            [pattern(12) for _ in range(layers)], sequence, torch.tanh, sigma=sigma, betas=(1.0, 2.0, 0.5)
        )

    symbols, mixer = drawn(2, 8) - 0.5, _attention(8, drawn)
    return (
        Exhibit(theorem_51, "layers", (1, 2, 3, 5, 8), tuple(path(layers, 1.0) for layers in (1, 2, 3, 5, 8)),
            theorem_51([_softmax], 3 * sequence, torch.tanh, sigma=1.0), "attention is a softmax of the tokens"),
        Exhibit(lemma_b1, "n", SIZES, (lemma_b1(long[:-1], 0.5, 0.5, bound=1.0, lengths=SIZES),),
            lemma_b1(0 * long[:-1], 0.0, math.log(SIZES[-1]), bound=1.0, lengths=SIZES),
            "the last entry grows as log n, and keeps half of the weight at the longest length"),
        Exhibit(lemma_b2, "n", SIZES, (lemma_b2(long, long + nearer, bound=1.1, lengths=SIZES),),
            lemma_b2(long.round(), 1 - long.round(), bound=1.0, lengths=SIZES), "the two sequences differ by 1"),
        Exhibit(theorem_b3, "n", SIZES, (b3(0.0),), b3(2**-8),
            "attention decreases with distance (ALiBi, slope 2⁻⁸), so the last token keeps its weight at every n"),
        Exhibit(proposition_b4, "n", SIZES, tuple(map(proposition_b4, SIZES)), proposition_b4(11), "n is odd"),
        Exhibit(lemma_b6, "n", SMALL, tuple(lemma_b6(pattern(n)) for n in SMALL), lemma_b6(alone(10)),
            "one row attends only to itself"),
        Exhibit(lemma_b7, "n", SMALL, tuple(lemma_b7(pattern(n), pattern(n)) for n in SMALL),
            lemma_b7(pattern(10), 1.5 * pattern(10)), "the rows of one matrix sum to 1.5"),
        Exhibit(proposition_b8, "layers", DEPTHS, tuple(proposition_b8(chain, depth=depth) for depth in DEPTHS),
            proposition_b8(alone(20)), "one row attends only to itself, and keeps its mass"),
        Exhibit(proposition_b9, "times", (2, 3, 5, 10, 30), tuple(
            proposition_b9([mixer, mixer], symbols, [1, 0], times=k) for k in (2, 3, 5, 10, 30)),
            proposition_b9([mixer, mixer], symbols, [1, 0], causal=True), "a causal mask"),
        Exhibit(corollary_b10, "n", SIZES, tuple(b10(n, torch.bfloat16) for n in SIZES), b10(10, torch.float64),
            "y and y* are stored in float64, where they still differ"),
    )  # fmt: skip


def _softmax(tokens: Tensor) -> Tensor:
    """A causal attention pattern with the tokens as queries and keys."""
    later = torch.ones(len(tokens), len(tokens)).triu(1).bool()
    return (tokens @ tokens.T).masked_fill(later, -math.inf).softmax(dim=-1)


def _attention(d: int, drawn: Callable[..., Tensor]) -> Callable[[Tensor, bool], Tensor]:
    """A layer with one head of softmax attention, random matrices and a residual connection."""
    w_q, w_k, w_v = (3 * (drawn(d, d) - 0.5) for _ in range(3))

    def layer(tokens: Tensor, causal: bool) -> Tensor:
        scores = (tokens @ w_q) @ (tokens @ w_k).T / d**0.5
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
        return tokens + scores.softmax(dim=-1) @ (tokens @ w_v)

    return layer
