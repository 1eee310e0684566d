"""Theorem 5.1 on the paper's own model, and attention as a triangular row-stochastic matrix: B.6 to B.8.

The paper's block is ``z = Λ v/β₁ + v`` and ``v' = ψ(z/β₂) + z``, and ``y = v⁽ᴸ⁾/β₃``. Attention does not depend on the
tokens, there is no value or output matrix, and norms divide by a constant. Real models are not of this form; for them
use `squashlens.certified_bound`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import positive
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.theory.norms import spectral_norms
from squashlens.theory.path_sums import sweep
from squashlens.theory.statements.statement import (
    Statement,
    distributions,
    require_shape,
    rounding,
)

ROUNDING = 1e-9
Attention = Float[Tensor, "query key"] | Callable[[Tensor], Tensor]
Betas = tuple[float, float, float]


@validated
def theorem_51(
    attention: Sequence[Attention],
    tokens: Float[Tensor, "position d"],
    mlp: Callable[[Tensor], Tensor],
    *,
    sigma: float,
    betas: Betas = (1.0, 1.0, 1.0),
) -> Statement:
    """Check Theorem 5.1 (B.5): the path bound is an upper bound on the Jacobian norm at every position.

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

    >>> rows = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    >>> theorem_51([rows, rows], torch.rand(2, 3), torch.tanh, sigma=1.0).verdict
    'holds'
    """
    if not tokens.numel() or not attention:
        given = f"The number of blocks is {len(attention)}, and tokens have shape {tuple(tokens.shape)}."
        raise InputError(
            given, "Give at least one block, and tokens of shape (position, d)."
        )
    if min(betas) <= 0 or sigma < 0:
        raise InputError(
            f"betas={betas!r} or sigma={sigma!r} is not allowed.",
            "Give positive betas, and sigma >= 0.",
        )
    v = tokens.double()
    require_shape(mlp(v), v.shape, "mlp")
    blocks: list[_Block] = []
    stream = v
    for given in attention:
        blocks.append(_Block.at(stream, given, mlp, betas))
        stream = blocks[-1].output
    jacobian = _jacobian_norms(v, attention, mlp, betas)
    bound = _path_bound(blocks, sigma, betas)
    without_bound = torch.where(jacobian > 0, torch.inf, jacobian)
    ratio = torch.where(bound > 0, jacobian / bound, without_bound)
    worst = float(ratio.max())
    slope = max(block.slope for block in blocks)
    finite = [v.isfinite().all(), stream.isfinite().all(), jacobian.isfinite().all()]
    premises = {
        "everything is finite": all(map(bool, finite)),
        **_of_blocks(blocks),
        f"‖ψ'‖ ≤ {sigma:g}": slope <= sigma * (1 + ROUNDING),
    }
    found = {
        "largest ‖ψ'‖": slope,
        "least Jacobian ÷ bound": float(ratio.min()),
        "share of the bound on the first token": float(bound[0] / bound.sum()),
    }
    shows = f"the Jacobian and the bound at all {len(v)} positions of one input; ‖ψ'‖ is measured at the forward pass"
    return Statement(
        name="Theorem 5.1",
        claim="max_i ‖∂y_n/∂v_i‖ ÷ path bound ≤ 1",
        premises=premises,
        left=worst,
        relation="≤",
        right=1.0,
        holds=worst <= 1 + ROUNDING,
        found=found,
        shows=shows,
    )


def _jacobian_norms(
    v: Float[Tensor, "position d"],
    attention: Sequence[Attention],
    mlp: Callable[[Tensor], Tensor],
    betas: Betas,
) -> Float[Tensor, " position"]:
    """‖∂y_n/∂v⁽⁰⁾_i‖ for each token i, by automatic differentiation of the whole model."""
    beta1, beta2, beta3 = betas

    def last_token(stream: Tensor) -> Tensor:
        """y_n, the last token after all blocks and the final norm."""
        for block in attention:
            pattern = block(stream) if callable(block) else block
            stream = stream + pattern.double() @ stream / beta1
            stream = stream + mlp(stream / beta2)
        return stream[-1] / beta3

    # (coordinate out, token in, coordinate in) → one block of the Jacobian for each token
    return _norms(torch.func.jacrev(last_token)(v).detach().transpose(0, 1))


def _path_bound(
    blocks: Sequence["_Block"], sigma: float, betas: Betas
) -> Float[Tensor, " position"]:
    """(1/β₃) (σ_ψ/β₂ + 1)^L [Π_ℓ (Λ⁽ℓ⁾/β₁ + I)]_{n,i} for each token i."""
    beta1, beta2, beta3 = betas
    top_down = [block.pattern for block in reversed(blocks)]
    last_row = torch.eye(len(top_down[0]), dtype=torch.float64)[-1]
    gain = sigma / beta2 + 1
    *_, product = sweep(last_row, top_down, attention_scale=1 / beta1, gain=gain)
    return product / beta3


@dataclass(frozen=True)
class _Block:
    """One block of the paper's model at one input: what it computes there, and what the theorem assumes of it."""

    pattern: Float[Tensor, "query key"]
    output: Float[Tensor, "position d"]
    slope: float  # the largest ‖ψ'‖ of a token
    stochastic: bool
    causal: bool
    constant: bool
    local: bool

    @classmethod
    def at(
        cls,
        v: Float[Tensor, "position d"],
        attention: Attention,
        mlp: Callable[[Tensor], Tensor],
        betas: Betas,
    ) -> "_Block":
        """The block ``z = Λ v/β₁ + v`` and ``v' = ψ(z/β₂) + z``, with ψ' at z/β₂."""
        beta1, beta2, _ = betas
        n = len(v)
        given = attention(v) if callable(attention) else attention
        require_shape(given, (n, n), "A function in attention")
        pattern = given.detach().double()
        z = v + pattern @ v / beta1
        # (token out, coordinate out, token in, coordinate in)
        derivative = torch.func.jacrev(mlp)(z / beta2).detach()
        of_own_token = derivative[range(n), :, range(n)]  # (token, out, in)
        of_all_tokens = derivative.abs().sum()
        depends = callable(attention) and bool(torch.func.jacrev(attention)(v).any())
        return cls(
            pattern=pattern,
            output=(z + mlp(z / beta2)).detach(),
            slope=float(_norms(of_own_token).max()),
            # in its own dtype, which determines the rounding of row sums
            stochastic=distributions(given.detach()),
            causal=not bool(pattern.triu(1).any()),
            constant=not depends,
            local=bool(of_all_tokens <= of_own_token.abs().sum() * (1 + ROUNDING)),
        )


def _of_blocks(blocks: Sequence[_Block]) -> dict[str, bool]:
    """What the theorem assumes of every block."""
    return {
        "attention rows are distributions": all(block.stochastic for block in blocks),
        "attention is causal": all(block.causal for block in blocks),
        "attention does not depend on the tokens": all(b.constant for b in blocks),
        "ψ acts on each token by itself": all(block.local for block in blocks),
    }


def _norms(blocks: Float[Tensor, "position out in"]) -> Float[Tensor, " position"]:
    """Spectral norms; NaN for all blocks if any entry is not finite."""
    if not bool(blocks.isfinite().all()):
        return torch.full((len(blocks),), torch.nan, dtype=torch.float64)
    return spectral_norms(blocks)


@validated
def lemma_b6(pattern: Float[Tensor, "query key"]) -> Statement:
    """Check Lemma B.6: the largest eigenvalue is 1 with multiplicity 1, if each later row has two non-zero entries.

    The eigenvalues of a triangular matrix are its diagonal entries. Rows sum to 1, so none exceeds 1, and the only
    entry of the first row is 1. Another diagonal entry of 1 would leave 0 for the rest of its row, which the premise
    excludes. The multiplicity is the number of diagonal entries equal to 1.

    Args:
        pattern: attention pattern (query, key).

    >>> print(lemma_b6(torch.tensor([[1.0, 0.0], [0.5, 0.5]])))
    Lemma B.6: 1 = 1, holds
    """
    a = _square(pattern)
    slack = rounding(pattern)
    premises = _of_a_chain(pattern)
    # A weight of 0.999999997 is 1 in float32, but the rest of its row shows that it is less than 1.
    ones = (a.diagonal() >= 1 - slack) & (_off_diagonal(a) == 0)
    multiplicity = math.nan
    largest = math.nan
    if premises["triangular"]:
        multiplicity = float(ones.sum())
        largest = float(a.diagonal().max())
    holds = multiplicity == 1 and abs(largest - 1) <= slack
    claim = "multiplicity of the eigenvalue 1 = 1"
    found = {"largest eigenvalue": largest}
    return Statement("Lemma B.6", claim, premises, multiplicity, "=", 1.0, holds, found)


@validated
def lemma_b7(
    first: Float[Tensor, "query key"], second: Float[Tensor, "query key"]
) -> Statement:
    """Check Lemma B.7: a product of triangular row-stochastic matrices is triangular and row-stochastic.

    Σ_j (AB)_ij = Σ_k A_ik Σ_j B_kj = Σ_k A_ik = 1. The sum (AB)_ij = Σ_{j≤k≤i} A_ik B_kj is empty for j > i, and
    non-negative entries have non-negative products and sums.

    Args:
        first, second: the matrices A and B, (query, key).

    Returns:
        The statement; its left side is the largest error of a row sum, of an entry above the diagonal, or of a negative
        entry, and its right side the allowance for rounding.

    >>> a = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
    >>> lemma_b7(a, a).verdict
    'holds'
    """
    product = _square(first) @ _square(second)
    row_sums_off = (product.sum(dim=-1) - 1).abs().max()
    above_diagonal = product.triu(1).abs().max()
    most_negative = -product.min()
    off = float(torch.stack([row_sums_off, above_diagonal, most_negative]).max())
    allowed = rounding(first) + rounding(second)
    premises: dict[str, bool] = {}
    for name, matrix in (("A", first), ("B", second)):
        for premise, is_true in _stochastic(matrix).items():
            premises[f"{name}: {premise}"] = is_true
    claim = "AB is triangular and row-stochastic"
    holds = off <= allowed * (1 + allowed)
    return Statement("Lemma B.7", claim, premises, off, "≤", allowed, holds)


@validated
def proposition_b8(
    pattern: Float[Tensor, "query key"], *, depth: int = 1000
) -> Statement:
    """Check Proposition B.8 (5.2): with depth, the path bound concentrates on the first token.

    The claim is shown for L-th roots of both sides, which are mean factors of one layer: (mass elsewhere)^{1/L} ≤ (Σ_k
    C(L, k) λ^{L−k} ν^k)^{1/L}. (½(Λ + I))^L tends to the first column. The mass elsewhere is at most the sum, over
    k < n − 1, and decreases by a factor λ in each layer in the limit; λ = max_{i>1} (1 + α_ii)/2 is the second-largest
    eigenvalue.

    ½(Λ + I) is triangular and row-stochastic, and only the first token has eigenvalue 1 (Lemma B.6). Let B be the
    matrix without its first row and column, which moves the mass that is not on the first token, and N the part of B
    below its diagonal, with row sums of at most ν. Then B ≤ λI + N entry by entry and N^{n−1} = 0. So B^L 1 is at most
    the sum above, λ^L times a polynomial in L, and at least λ^L, the L-th power of B's largest diagonal entry. The
    L-th roots of both tend to λ. The derivative itself need not concentrate on the first token.

    Args:
        pattern: attention pattern Λ, (query, key).
        depth: number of layers L.

    Returns:
        The statement. Its sides are the L-th roots of the mass elsewhere and of its bound: mean factors of decrease in
        one layer. `holds` also requires that λ^L is at most the mass, and that λ is less than 1.

    >>> found = proposition_b8(torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.5, 0.3]]))
    >>> found.verdict, round(found.found["factor of the last layer"], 6), found.found["λ"]
    ('holds', 0.75, 0.75)
    """
    a = _square(pattern)
    positive(depth, "depth", "a number of layers")
    if depth < 2 or len(a) < 2:
        raise InputError(
            f"size {len(a)} and depth={depth} show no rate.",
            "Give at least two tokens and two layers.",
        )
    # log of (1 + α_ii)/2 for i > 1, accurate for α_ii near 1
    log_stays = torch.log1p(-_off_diagonal(a)[1:] / 2)
    log_rate = float(log_stays.max())
    below = a[1:, 1:].tril(-1) / 2  # N
    nu = float(below.sum(dim=-1).max())
    log_mass, last_factor = _log_mass(below + log_stays.exp().diag(), depth)
    log_left = log_mass / depth
    log_right = min(0.0, _log_bound(log_rate, nu, len(below), depth))
    # for each layer, since rows sum to 1 only up to rounding
    slack = ROUNDING + rounding(pattern)
    holds = log_rate < 0 and log_rate - slack <= log_left <= log_right + slack
    found = {
        "λ": math.exp(log_rate),
        "factor of the last layer": last_factor,
        "log of the mass elsewhere": log_mass,
        "rows that share λ": float((log_stays >= log_rate - ROUNDING).sum()),
    }
    return Statement(
        name="Proposition B.8",
        claim="mass^{1/L} ≤ (Σ_k C(L, k) λ^{L−k} ν^k)^{1/L} → λ",
        premises=_of_a_chain(pattern),
        left=math.exp(log_left),
        relation="≤",
        right=math.exp(log_right),
        holds=holds,
        found=found,
    )


def _log_mass(block: Float[Tensor, "query key"], depth: int) -> tuple[float, float]:
    """The logarithm of the largest row sum of ``block^depth``, and the factor of the last multiplication."""
    mass = torch.ones(len(block), dtype=torch.float64)
    sizes = torch.zeros(depth, dtype=torch.float64)
    for layer in range(depth):  # rescaled to size 1: 0.75³⁰⁰⁰ underflows in float64
        mass = block @ mass
        sizes[layer] = mass.max()
        mass = mass / sizes[layer]
    return float(sizes.log().sum()), float(sizes[-1])


def _log_bound(log_rate: float, nu: float, tokens: int, depth: int) -> float:
    """The logarithm of Σ_{k<tokens} C(L, k) λ^{L−k} ν^k, divided by L."""
    k = torch.arange(min(tokens, depth + 1), dtype=torch.float64)
    log_choose = math.lgamma(depth + 1) - (k + 1).lgamma() - (depth - k + 1).lgamma()
    log_nu = torch.special.xlogy(k, torch.tensor(nu, dtype=torch.float64))
    terms = log_choose + (depth - k) * log_rate + log_nu
    return float(terms.logsumexp(dim=0)) / depth


def _square(pattern: Tensor) -> Float[Tensor, "query key"]:
    """A pattern in float64; raises unless it is square."""
    if pattern.shape[0] != pattern.shape[1] or not len(pattern):
        raise InputError(
            f"The pattern has shape {tuple(pattern.shape)}.",
            "Give a square one, with a row per token.",
        )
    return pattern.double()


def _off_diagonal(a: Float[Tensor, "query key"]) -> Float[Tensor, " query"]:
    """1 − α_ii, computed as the sum of the rest of the row."""
    return a.tril(-1).sum(dim=-1)


def _stochastic(pattern: Tensor) -> dict[str, bool]:
    """The premises that a pattern is triangular, and its rows distributions."""
    return {
        "triangular": not bool(pattern.triu(1).any()),
        "rows are distributions": distributions(pattern),
    }


def _of_a_chain(pattern: Tensor) -> dict[str, bool]:
    """The premises of `_stochastic`, and that no row after the first attends to a single token."""
    two = bool(((pattern != 0).sum(dim=-1)[1:] >= 2).all())
    return {
        **_stochastic(pattern),
        "each row after the first has at least two entries": two,
    }
