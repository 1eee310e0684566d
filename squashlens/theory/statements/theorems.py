"""Theorem 5.1 on the paper's own model, Theorem B.3 for one layer, and what follows for counts: B.9 and B.10.

The paper's block is ``z = Λ v/β₁ + v`` and ``v' = ψ(z/β₂) + z``, and ``y = v⁽ᴸ⁾/β₃``. Attention does not depend on the
tokens, there is no value or output matrix, and norms divide by a constant. Real models are not of this form; for them
use `squashlens.certified_bound`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Extended, dtype_name, positive, short_repr
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.theory.bounds.path_sums import sweep
from squashlens.theory.distances import distance, identical, total_variation
from squashlens.theory.norms import spectral_norms
from squashlens.theory.statements.statement import (
    Statement,
    Step,
    check_lengths,
    decays,
    distributions,
    of_a_limit,
    require_tokens,
)

ROUNDING = 1e-9
Attention = Float[Tensor, "query key"] | Callable[[Tensor], Tensor]


@validated
def theorem_51(
    attention: Sequence[Attention],
    tokens: Float[Tensor, "position d"],
    mlp: Callable[[Tensor], Tensor],
    *,
    sigma: float,
    betas: tuple[float, float, float] = (1.0, 1.0, 1.0),
) -> Statement:
    """Check Theorem 5.1: the path bound is an upper bound on the Jacobian norm at every position.

    The claim is ‖∂y_n/∂v⁽⁰⁾_i‖ ≤ (1/β₃) (σ_ψ/β₂ + 1)^L [Π_ℓ (Λ⁽ℓ⁾/β₁ + I)]_{n,i} for every position i. With constant
    attention, block ℓ has ``∂z_j/∂v_i = (α_ji/β₁ + δ_ji) I``, and ``∂v'_j/∂z_j = ψ'/β₂ + I`` has a norm of at most
    σ_ψ/β₂ + 1. The chain rule over L blocks sums over all paths from n down to i, which gives this entry of the matrix
    product. L matrices give L − 1 sums over tokens; the paper prints L. The paper also prints ᾱ = α/β₂ + δ and
    (α + δ)/β elsewhere; the derivation gives α/β₁ + δ, with β₂ and β₃ in the constant.

    Args:
        attention: Λ of each block, from the lowest, averaged over heads, (query, key). A function from the tokens to Λ
            violates the premise if it depends on them, and then also contributes to the Jacobian.
        tokens: v⁽⁰⁾, (position, d).
        mlp: ψ, a function from tokens to tokens that acts on each token separately.
        sigma: σ_ψ, a premise: an upper bound on the spectral norm of ψ', which is measured at the forward pass.
        betas: β₁, β₂, β₃, the constants by which the norms divide.

    Returns:
        The statement; its left side is the largest ratio of Jacobian norm to bound over positions, and its right side
        is 1. A position with bound 0 counts as 0 if its Jacobian is 0, else as infinite. Norms are exact spectral norms
        by automatic differentiation in float64.

    Raises:
        InputError: the shapes do not match, a function returns no tensor, or sigma or betas are not allowed.

    Source: Barbero et al. 2024, Theorem 5.1 (B.5).

    >>> rows = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    >>> theorem_51([rows, rows], torch.rand(2, 3), torch.tanh, sigma=1.0).verdict
    'holds'
    """
    if not tokens.numel() or not attention:
        raise InputError(
            f"There are {len(attention)} blocks, and tokens of shape {tuple(tokens.shape)}.",
            "Give at least one block, and tokens of shape (position, d).",
        )
    if min(betas) <= 0 or sigma < 0:
        raise InputError(f"betas={betas!r} or sigma={sigma!r} is not allowed.", "Give positive betas, and sigma >= 0.")
    v, (first, second, third) = tokens.double(), betas
    require_tokens(mlp(v), v, "mlp")
    run = _forward(attention, v, mlp, first, second)

    def last(start: Tensor) -> Tensor:
        now = start
        for block in attention:
            pattern = block(now) if callable(block) else block
            now = now + pattern.double() @ now / first
            now = now + mlp(now / second)
        return now[-1] / third

    jacobian = _norms(torch.func.jacrev(last)(v).detach().transpose(0, 1))
    row = torch.eye(len(v), dtype=torch.float64)[-1]
    *_, product = sweep(row, reversed(run.patterns), attention_scale=1 / first, gain=sigma / second + 1)
    bound = product / third
    ratio = torch.where(bound > 0, jacobian / bound, torch.where(jacobian > 0, torch.inf, jacobian))
    worst = float(ratio.max())
    premises = {
        "everything is finite": all(bool(one.isfinite().all()) for one in (v, run.output, jacobian)),
        "attention rows are distributions": run.distributed,
        "attention is causal": not any(bool(pattern.triu(1).any()) for pattern in run.patterns),
        "attention does not depend on the tokens": run.steady,
        "ψ acts on each token by itself": run.local,
        f"‖ψ'‖ ≤ {sigma:g}": max(run.slopes) <= sigma * (1 + ROUNDING),
    }
    found = {"largest ‖ψ'‖": max(run.slopes), "least Jacobian ÷ bound": float(ratio.min())}
    found["share of the bound on the first token"] = float(bound[0] / bound.sum())
    claim = "max_i ‖∂y_n/∂v_i‖ ÷ path bound ≤ 1"
    shows = f"the Jacobian and the bound at all {len(v)} positions of one input; ‖ψ'‖ is measured at the forward pass"
    return Statement("Theorem 5.1", claim, premises, worst, "≤", 1.0, worst <= 1 + ROUNDING, found, shows)


@dataclass
class _Forward:
    """A forward pass: the patterns, the largest ‖ψ'‖ of each block, and which premises hold so far."""

    output: Tensor
    patterns: list[Tensor] = field(default_factory=list)
    slopes: list[float] = field(default_factory=list)
    distributed: bool = True
    steady: bool = True
    local: bool = True


def _forward(
    attention: Sequence[Attention], v: Tensor, mlp: Callable[[Tensor], Tensor], first: float, second: float
) -> _Forward:
    """Run the blocks on v, with β₁ = `first` and β₂ = `second`, and check their premises."""
    n, run = len(v), _Forward(v)
    for block in attention:
        now = run.output
        given = block(now) if callable(block) else block
        require_tokens(given, v.new_empty(n, n), "A function in attention")
        given = given.detach()
        run.distributed &= distributions(given)  # in its own dtype, which determines the rounding of row sums
        pattern = given.double()
        if callable(block):
            run.steady &= not bool(torch.func.jacrev(block)(now).any())
        now = now + pattern @ now / first
        slope = torch.func.jacrev(mlp)(now / second).detach()  # token out, coordinate out, token in, coordinate in
        own = slope[range(n), :, range(n)]
        run.local &= bool(slope.abs().sum() <= own.abs().sum() * (1 + ROUNDING))
        run.patterns.append(pattern)
        run.slopes.append(float(_norms(own).max()))
        run.output = (now + mlp(now / second)).detach()
    return run


def _norms(blocks: Float[Tensor, "position out in"]) -> Float[Tensor, " position"]:
    """Spectral norms; NaN for all blocks if any entry is not finite."""
    if not blocks.isfinite().all():
        return torch.full((len(blocks),), torch.nan, dtype=torch.float64)
    return spectral_norms(blocks)


ROUNDING = 1e-9
Rows = tuple[Float[Tensor, " _"], Float[Tensor, " _"]]  # weights over n and over n + 1 tokens


@validated
def theorem_b3(rows: Sequence[Rows], values: Float[Tensor, "position d"], *, bound: Extended) -> Statement:
    """Check Theorem B.3 for one layer: representations of the last token and of its repetition become equal.

    The claim is ‖z_n − z*_{n+1}‖₁ ≤ max_i ‖v_i‖₁ · (δ(α_n, α*_{n+1}) + α*_{n+1,n+1}), where the right side tends to 0
    if positional information decays. With z_n = Σ_i α_ni v_i + v_a and z*_{n+1} = Σ_i α*_{n+1,i} v_i + α*_{n+1,n+1} v_a
    + v_a, the residual v_a cancels, since both sequences end in a. The triangle inequality bounds the difference
    Σ_{i≤n} (α_ni − α*_{n+1,i}) v_i − α*_{n+1,n+1} v_a by the right side. δ is taken over the first n entries; the paper
    pads instead. If positional information decays, δ tends to 0 by Lemma B.2, and the self-weight by Lemma B.1.

    The paper continues by induction over layers: the next layer starts from close representations, and its rows differ
    for that reason too. Only one layer is checked here. `squashlens.collapse` and `squashlens.mechanism` measure every
    layer of a model.

    Args:
        rows: pairs of attention rows, α_n over n tokens and α*_{n+1} over n + 1 tokens, at four or more lengths n that
            increase at least tenfold. The premise that positional information decays is tested by whether
            δ + α*_{n+1,n+1} decreases at every length (`squashlens.theory.statements.statement.decays`).
        values: value vectors of the tokens at the longest length, (position, d). At length n the first n are used, and
            the n-th is repeated.
        bound: upper bound on ‖v_i‖₁, in the units of the values; finite, a premise.

    Raises:
        InputError: shapes that do not match, or lengths that cannot show a decrease.

    Source: Barbero et al. 2024, Theorem B.3 (4.2), first step.

    >>> sizes = (10, 30, 60, 100)
    >>> rows = [(torch.full((n,), 1 / n), torch.full((n + 1,), 1 / (n + 1))) for n in sizes]
    >>> theorem_b3(rows, torch.rand(100, 3), bound=3.0).verdict
    'consistent'
    """
    sizes = check_lengths([len(row) for row, _ in rows])
    shaped = len(values) == sizes[-1] and values.shape[1] > 0
    if not shaped or any(len(star) != len(row) + 1 for row, star in rows):
        raise InputError(
            f"Rows of {sizes} and {[len(star) for _, star in rows]} weights over values of shape {tuple(values.shape)} "
            "do not match.",
            "Give n weights and n + 1 weights at each length, and values (position, d) for the last n.",
        )
    values = values.double()
    norms = values.abs().sum(dim=-1)
    apart = [_apart(row, star) for row, star in rows]
    steps = []
    for n, (row, star), (delta, own) in zip(sizes, rows, apart, strict=True):
        z, z_star = row.double() @ values[:n], star.double() @ torch.cat([values[:n], values[n - 1 : n]])
        left, right = float(distance(z, z_star, "l1")), float(norms[:n].max()) * (delta + own)
        steps.append(Step(n, left, right, left <= right + ROUNDING * max(1.0, right)))
    together = [delta + own for delta, own in apart]
    premises = {
        "attention rows are distributions": all(distributions(one) for pair in rows for one in pair),
        f"‖v_i‖₁ ≤ {bound:g} < ∞": float(norms.max()) <= bound < math.inf,
        "positional information decays (δ + α* decreases from each length to the next)": decays(sizes, together),
    }
    found = {"δ": apart[-1][0], "α*_{n+1,n+1}": apart[-1][1], f"δ + α* at n = {sizes[0]}": together[0]}
    shows = (
        f"the inequality for one layer at {len(sizes)} lengths from {sizes[0]:,} to {sizes[-1]:,}, and whether a side "
        "decreases at each of them. The induction over layers is not checked, and no finite check proves a limit"
    )
    claim = "‖z_n − z*_{n+1}‖₁ ≤ max‖v‖₁ (δ + α*_{n+1,n+1}) → 0"
    return of_a_limit("Theorem B.3", claim, premises, steps, found, shows)


def _apart(row: Float[Tensor, " position"], star: Float[Tensor, " and_one"]) -> tuple[float, float]:
    """δ over the first n entries, and the weight of the last entry."""
    return float(total_variation(row.double(), star[:-1].double())), float(star[-1])


@validated
def corollary_b10(
    y: Float[Tensor, " d"],
    y_star: Float[Tensor, " d"],
    count: Callable[[Tensor], int],
    n: int,
    *,
    dtype: torch.dtype = torch.bfloat16,
) -> Statement:
    """Check Corollary B.10: if y and y* are equal, every read-out miscounts at least one of n and n + 1 tokens.

    If y = y*, then count(y) = count(y*), but n ≠ n + 1. Attention plays no part; Theorem B.3 and a finite number format
    make y and y* equal. Bits are compared: −0 differs from 0, and equal NaNs agree.

    Args:
        y, y_star: representations of the shorter sequence and of that with one more token, (d).
        count: reads a count from a representation that is stored in `dtype`.
        n: the count of the shorter sequence.
        dtype: number format in which y and y* are stored and compared.

    Returns:
        The statement, with the number of wrong counts on the right side.

    Raises:
        InputError: y and y* have different shapes or are empty, or `count` returns something else than a number.

    Source: Barbero et al. 2024, Corollary B.10 (6.2).

    >>> y = torch.ones(4)
    >>> print(corollary_b10(y, y + 1e-4, lambda rows: 7, 7))
    Corollary B.10: 1 ≤ 1, holds
    """
    if y.shape != y_star.shape or not y.numel():
        raise InputError(
            f"y and y_star have shapes {tuple(y.shape)} and {tuple(y_star.shape)}.",
            "Give two tensors of equal shape with at least one number.",
        )
    same = float(identical(y.flatten(), y_star.flatten(), dtype))
    answers = [count(rows.to(dtype)) for rows in (y, y_star)]
    if not all(isinstance(answer, Real) for answer in answers):
        raise InputError(f"count returned {short_repr(answers)}.", "It must return a whole number.")
    wrong = sum(answer != truth for answer, truth in zip(answers, (n, n + 1), strict=True))
    claim = "1 ≤ wrong counts among n and n + 1"
    premises = {f"y and y* are bit-identical in {dtype_name(dtype)}": same == 1}
    found = {"count(y)": float(answers[0]), "count(y*)": float(answers[1])}
    shows = "the stored bits of y and y*, and one way to read a count"
    return Statement("Corollary B.10", claim, premises, 1.0, "≤", float(wrong), wrong >= 1, found, shows)


ORDERS = 8  # random token orders with which every layer is tested
UNITS = 1000  # tolerance: units in the last place of the largest coordinate, in the dtype that layers return
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
    premises = {"no causal mask": not causal, "no positional encodings": positions is None}
    premises[f"layers treat tokens alike ({ORDERS} random orders)"] = fair and fair_longer
    found = {"tokens in the first": float(len(sequence)), "tokens in the second": float(len(longer))}
    shows = (
        f"these layers on one sequence and on the same with each symbol {times} times. Whether they treat tokens alike "
        f"was tested with {ORDERS} orders only"
    )
    claim = "distance of equal symbols in both sequences = 0"
    return Statement("Proposition B.9", claim, premises, left, "=", 0.0, left <= _rounding(many), found, shows)


def _through(
    layers: Sequence[Layer], symbols: Float[Tensor, "symbol d"], chosen: Sequence[int], causal: bool,
    positions: Callable[[int], Float[Tensor, "position d"]] | None, generator: torch.Generator,
) -> tuple[Float[Tensor, "position d"], bool]:  # fmt: skip
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
    return UNITS * torch.finfo(tokens.dtype).eps * float(tokens.abs().max())
