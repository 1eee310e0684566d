"""Theorem 5.1 (B.5) for the paper's own model, with the constants of its derivation: path bound and Jacobian.

The paper's block is ``z = Λ v/β₁ + v`` and ``v' = ψ(z/β₂) + z``, and ``y = v⁽ᴸ⁾/β₃``. Attention does not depend on the
tokens, there is no value or output matrix, and norms divide by a constant. Real models are not of this form; for them
use `squashlens.path_bound` with ``constants="measured"``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.theory.bounds.paths import sweep
from squashlens.theory.norms import spectral_norms
from squashlens.theory.statements.statement import Statement, distributions, require_tokens

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
    return Statement(
        "Theorem 5.1",
        "max_i ‖∂y_n/∂v_i‖ ÷ path bound ≤ 1",
        {
            "everything is finite": all(bool(one.isfinite().all()) for one in (v, run.output, jacobian)),
            "attention rows are distributions": run.distributed,
            "attention is causal": not any(bool(pattern.triu(1).any()) for pattern in run.patterns),
            "attention does not depend on the tokens": run.steady,
            "ψ acts on each token by itself": run.local,
            f"‖ψ'‖ ≤ {sigma:g}": max(run.slopes) <= sigma * (1 + ROUNDING),
        },
        worst,
        "≤",
        1.0,
        worst <= 1 + ROUNDING,
        {
            "largest ‖ψ'‖": max(run.slopes),
            "least Jacobian ÷ bound": float(ratio.min()),
            "share of the bound on the first token": float(bound[0] / bound.sum()),
        },
        f"the Jacobian and the bound at all {len(v)} positions of one input; ‖ψ'‖ is measured at the forward pass",
    )


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
