"""The paper's statements: both sides by other means, limits against closed forms, and a counter-example to each
premise."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from squashlens.errors import InputError
from squashlens.theorems import (
    Statement,
    corollary_b10,
    lemma_b1,
    lemma_b2,
    lemma_b6,
    lemma_b7,
    proposition_b4,
    proposition_b8,
    proposition_b9,
    theorem_51,
    theorem_b3,
)

SEEDS = st.integers(0, 10_000)
BETAS = [(1.0, 1.0, 1.0), (2.0, 0.5, 3.0), (0.3, 4.0, 0.7)]


def drawn(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def causal_softmax(scores: Tensor) -> Tensor:
    later = torch.ones_like(scores).triu(1).bool()
    return scores.masked_fill(later, -math.inf).softmax(dim=-1)


def pattern(seed: int, n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """A causal pattern of random scores."""
    return causal_softmax(4 * drawn(seed, n, n)).to(dtype)


# Softmax.


GROWING = (10, 30, 100, 300, 1000, 3000, 10_000)


@given(SEEDS, st.integers(9, 300))
def test_b1_is_the_difference_of_two_softmaxes(seed: int, n: int) -> None:
    a = 2 * drawn(seed, n) - 1
    found = lemma_b1(a, 0.3, -0.7, bound=1.0)
    more = np.zeros(1)
    for step in found.steps:
        x = scipy.special.softmax([*a.numpy()[: step.at - 1], -0.7])
        more = scipy.special.softmax([*a.numpy()[: step.at - 1], 0.3, -0.7])
        assert step.left == pytest.approx(x[-1] - more[-1], rel=1e-9, abs=1e-15)
        assert step.right == pytest.approx(math.exp(2) / step.at)
    assert (found.left, found.right) == found.steps[-1][1:3]
    assert found.found["softmax(x*)_{n+1}"] == pytest.approx(more[-1], rel=1e-12)
    assert found.verdict == "consistent"
    assert [step.at for step in found.steps][-1] == n + 1


def test_b1_where_no_float64_can_hold_the_weights() -> None:
    found = lemma_b1(torch.full((9,), 200.0).double(), -200.0, -200.0, bound=200.0)
    assert (found.left, found.verdict) == (0.0, "consistent")
    assert lemma_b1(torch.zeros(9).double(), 0.0, 0.0, bound=400.0).right == math.inf


N = torch.arange(1, 10_001, dtype=torch.float64)


DECAYS = {
    "1/√n": N.rsqrt(),
    "1/log n": 1 / (N + 1).log(),
    "1/n": 1 / N,
    "e^−n/9": torch.exp(-N / 9),
    "0": 0 * N,
    "a step to 0": (N <= 10).double(),
    "a wave over n": N.sin().abs() / N,
}


STAYS = {
    "a constant": 0 * N + 1,
    "a step": 0.005 + (N < 100).double(),
    "a wave": N.sin().abs(),
    "log n": N.log() / 10,
    "1 + 1/n": 1 + 1 / N,
    "levels off": 0.02 + 1 / N,
    "rises at the end": 1 / N + (N > 9000) * 0.5,
    "a rare one": 1 / N + (N % 997 == 0),
    "NaN": 1 / N + torch.where(N == 50, torch.nan, 0),
}


@pytest.mark.parametrize("name", [*DECAYS, *STAYS])
def test_decay_over_all_lengths(name: str) -> None:
    """1/√n and 1/log n tend to 0; a step to another constant does not, however small."""
    differences = (DECAYS | STAYS)[name]
    x = drawn(3, len(N))
    found = lemma_b2(x, x + 0.02 * differences, bound=1.1, lengths=GROWING)
    assert found.verdict == ("premise violated" if name in STAYS else "consistent")


@given(SEEDS, st.integers(10, 200), st.floats(0.01, 3))
def test_b2_holds_wherever_its_premises_do(seed: int, n: int, size: float) -> None:
    x = size * (2 * drawn(seed, n) - 1)
    other = x + size * (drawn(seed + 1, n) - 0.5) / torch.arange(1, n + 1) ** 2
    found = lemma_b2(x, other, bound=2 * size)
    for step in found.steps:
        one, two = (scipy.special.softmax(row.numpy()[: step.at]) for row in (x, other))
        assert step.left == pytest.approx(np.abs(one - two).sum(), abs=1e-12)
        expected = (
            2 * math.exp(4 * size) * np.abs((x - other).numpy()[: step.at]).mean()
        )
        assert step.right == pytest.approx(expected)
    assert found.holds
    assert lemma_b2(x, x, bound=2 * size).verdict == "consistent"


@given(st.integers(1, 500))
def test_b4_is_its_limit_at_every_even_n(n: int) -> None:
    found = proposition_b4(2 * n)
    assert found.verdict == "holds"
    assert found.left == pytest.approx(2 * (math.e - 1) / (math.e + 1), abs=1e-12)


# Collapse.


def attention(seed: int, n: int, d: int) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Rows of the last token over v and over v*, at four lengths up to n, and values.

    The last token has the same score at each length, or its weight would follow its score. Its repetition has another
    one, as with positions.
    """
    scores, values = drawn(seed, n), drawn(seed + 1, n, d) - 0.5
    sizes = [n // 10, n // 4, n // 2, n]
    scores[[m - 1 for m in sizes]] = 0.5
    ends = [scores[:m] for m in sizes]
    return [
        (s.softmax(dim=0), torch.cat([s, s[-1:] - 0.2]).softmax(dim=0)) for s in ends
    ], values


@given(SEEDS, st.integers(20, 60), st.integers(1, 6))
def test_b3_holds_for_rows_of_attention(seed: int, n: int, d: int) -> None:
    rows, values = attention(seed, n, d)
    (row, star), found = rows[-1], theorem_b3(rows, values, bound=float(d))
    z = sum(float(w) * v for w, v in zip(row, values.numpy(), strict=True))
    z_star = sum(
        float(w) * v
        for w, v in zip(star, [*values.numpy(), values.numpy()[-1]], strict=True)
    )
    assert found.left == pytest.approx(np.abs(z - z_star).sum(), abs=1e-12)
    assert found.holds
    assert found.found["δ"] == pytest.approx(
        np.abs(row.numpy() - star.numpy()[:-1]).sum()
    )
    assert found.right == pytest.approx(
        np.abs(values.numpy()).sum(axis=1).max() * (found.found["δ"] + float(star[-1]))
    )


def fading(
    slope: float, *sizes: int, window: int | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Rows whose scores fall with distance, of the last `window` tokens."""

    def row(n: int) -> Tensor:
        behind = torch.arange(n - 1, -1, -1.0, dtype=torch.float64)
        hidden = behind >= (window or n)
        return (-slope * behind).masked_fill(hidden, -math.inf).softmax(dim=0)

    return [(row(n), row(n + 1)) for n in sizes]


def test_b3_gets_small_with_n_where_nothing_fades() -> None:
    found = theorem_b3(fading(0.0, *GROWING), drawn(1, GROWING[-1], 3), bound=3.0)
    assert found.verdict == "consistent"
    rights = [step.right for step in found.steps]
    assert rights == sorted(rights, reverse=True)
    assert rights[-1] < 0.01


FAR = (1000, 3000, 10_000, 30_000)


@pytest.mark.parametrize(
    "rows",
    [
        fading(1.0, *FAR),
        fading(2**-4, *FAR),
        fading(2**-8, *FAR),
        fading(0.0, *FAR, window=64),
        fading(0.0, 10, 30, 100) + fading(0.0, 300, 1000, 3000, 10_000, window=100),
    ],
    ids=["slope 1", "slope 2⁻⁴", "slope 2⁻⁸", "window", "a fall that stops at 100"],
)
def test_b3_is_not_said_of_what_keeps_its_weight(rows: Any) -> None:
    """However small δ is by then: at slope 2⁻⁸ it is 0.004 at every n."""
    found = theorem_b3(rows, drawn(1, len(rows[-1][0]), 3), bound=3.0)
    assert (found.verdict, found.holds) == ("premise violated", True)


@pytest.mark.parametrize("says", [0, 6, 7, 8])
def test_b10_whatever_is_said(says: int) -> None:
    y = drawn(0, 16)
    found = corollary_b10(y, y + 1e-6, lambda _: says, 6)
    assert found.verdict == "holds"
    assert found.right == (1 if says in (6, 7) else 2)


def test_b10_compares_bits() -> None:
    """−0 equals 0 and has other bits; a NaN equals nothing and may have the same."""
    y = drawn(0, 16)
    y[0] = 0.0
    other = y.clone()
    other[0] = -0.0
    found = corollary_b10(y, other, lambda rows: 6 + int(rows[0].signbit()), 6)
    assert found.verdict == "premise violated"
    y[1] = math.nan
    assert corollary_b10(y, y.clone(), lambda _: 6, 6).verdict == "holds"


# Theorem 5.1.


@settings(max_examples=15)
@given(SEEDS, st.integers(1, 4), st.integers(1, 5), st.sampled_from(BETAS))
def test_51_bounds_the_papers_model(
    seed: int, layers: int, n: int, betas: tuple[float, float, float]
) -> None:
    rows = [pattern(seed + k, n) for k in range(layers)]
    weight = drawn(seed, 3, 3) - 0.5
    sigma = float(torch.linalg.matrix_norm(weight, 2))

    def mlp(v: Tensor) -> Tensor:
        return torch.tanh(v) @ weight

    found = theorem_51(rows, drawn(seed, n, 3), mlp, sigma=sigma, betas=betas)
    assert found.verdict == "holds"
    assert 0 < found.left <= 1


@pytest.mark.parametrize("betas", BETAS)
def test_51_is_attained_where_psi_is_a_multiple(betas: Any) -> None:
    """ψ = σ v makes every step an equality, so each constant is where it belongs."""
    rows = [pattern(k, 6) for k in range(3)]
    found = theorem_51(rows, drawn(0, 6, 3), lambda v: 1.5 * v, sigma=1.5, betas=betas)
    assert found.verdict == "holds"
    assert found.left == pytest.approx(1)
    assert found.found["least Jacobian ÷ bound"] == pytest.approx(1)


def test_51_measures_the_slope_where_the_mlp_is_evaluated() -> None:
    """One token: z = v/β₁ + v, and the slope of tanh at z/β₂ is 1 − tanh²."""
    v = drawn(0, 1, 3)
    betas = (2.0, 4.0, 1.0)
    found = theorem_51([torch.ones(1, 1)], v, torch.tanh, sigma=1.0, betas=betas)
    slope = 1 - np.tanh((v.numpy() / 2 + v.numpy()) / 4) ** 2
    assert found.found["largest ‖ψ'‖"] == pytest.approx(slope.max(), rel=1e-12)


# Markov chains.


@given(SEEDS, st.integers(2, 30))
def test_b6_counts_the_eigenvalue_1(seed: int, n: int) -> None:
    a = pattern(seed, n)
    found = lemma_b6(a)
    values = np.linalg.eigvals(a.numpy())
    assert found.verdict == "holds"
    assert found.found["largest eigenvalue"] == pytest.approx(
        np.abs(values).max(), abs=1e-6
    )
    assert (np.abs(values - 1) < 1e-6).sum() == found.left == 1


def test_b6_and_b8_of_a_row_that_all_but_attends_to_itself() -> None:
    """A share of 1 − 2·10⁻⁹ is 1 in float32; what is left of the row says that it is none."""
    a = torch.tensor([[1.0, 0.0], [2e-9, 1.0]])
    assert [found.verdict for found in (lemma_b6(a), proposition_b8(a))] == [
        "holds",
        "holds",
    ]
    assert proposition_b8(a).found["log of the mass elsewhere"] == pytest.approx(
        -1000 * 1e-9, rel=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("n", [3, 128, 300])
def test_markov_statements_in_the_dtype_a_pattern_has(
    dtype: torch.dtype, n: int
) -> None:
    a = pattern(0, n, dtype)
    assert [
        found.verdict for found in (lemma_b6(a), lemma_b7(a, a), proposition_b8(a))
    ] == ["holds"] * 3
    for spoilt in (1.9 * a, a / 2):
        assert lemma_b7(a, spoilt).verdict == "premise violated"


def test_b6_can_hold_without_its_premise() -> None:
    a = pattern(1, 6)
    a[3] = torch.eye(6)[3]
    found = lemma_b6(a)
    assert (found.verdict, found.holds, found.left) == ("premise violated", False, 2)
    a[3] = torch.eye(6)[0]  # one entry elsewhere
    lucky = lemma_b6(a)
    assert (lucky.verdict, lucky.holds) == ("premise violated", True)


@given(SEEDS, st.integers(1, 40))
def test_b7_products_of_patterns_are_patterns(seed: int, n: int) -> None:
    a, b = pattern(seed, n), pattern(seed + 1, n)
    assert lemma_b7(a, b).verdict == "holds"
    assert lemma_b7(a.float(), b.float()).verdict == "holds"
    worse = lemma_b7(a, 1.5 * b)
    assert (worse.verdict, worse.left) == ("premise violated", pytest.approx(0.5))


@given(SEEDS, st.integers(3, 12), st.integers(2, 400))
def test_b8s_rate_is_the_second_eigenvalue(seed: int, n: int, depth: int) -> None:
    """The mass lies between λ^L and the bound at every L, and the bound is a sum of powers of λI + N by hand."""
    a = pattern(seed, n)
    half = ((a + torch.eye(n)) / 2).numpy()
    found = proposition_b8(a, depth=depth)
    assert found.verdict == "holds"
    assert found.found["λ"] == pytest.approx(
        np.sort(np.abs(np.linalg.eigvals(half)))[-2], abs=1e-6
    )
    assert found.found["λ"] == pytest.approx((1 + a.diagonal()[1:].max().item()) / 2)
    mass = np.linalg.matrix_power(half, depth)[:, 1:].sum(axis=1).max()
    assert found.left == pytest.approx(mass ** (1 / depth), rel=1e-9)
    assert found.found["log of the mass elsewhere"] == pytest.approx(
        math.log(mass), abs=1e-9
    )
    nu = np.tril(half[1:, 1:], -1).sum(axis=1).max()
    terms = [
        math.comb(depth, k) * found.found["λ"] ** (depth - k) * nu**k
        for k in range(min(n - 1, depth + 1))
    ]
    assert found.right == pytest.approx(
        min(1.0, math.fsum(terms) ** (1 / depth)), rel=1e-9
    )


@pytest.mark.parametrize("n", [100, 300, 600])
def test_b8_does_not_take_a_limit_for_reached(n: int) -> None:
    """A head that looks one token back: the mass is a tail of the binomial distribution, far above λ^L."""
    a = 0.1 * torch.eye(n, dtype=torch.float64) + 0.9 * torch.eye(
        n, dtype=torch.float64
    ).roll(-1, dims=1)
    a[0] = torch.eye(n)[0]
    a = torch.where(torch.ones(n, n).tril().bool(), a, 0)
    found = proposition_b8(a)
    tail = scipy.stats.binom.logcdf(n - 2, 1000, 0.45)
    assert found.verdict == "holds"
    assert found.found["λ"] == pytest.approx(0.55)
    assert found.left == pytest.approx(math.exp(tail / 1000), abs=1e-6)
    assert found.left > 0.6


# Counting.


def block(
    seed: int, d: int = 8, heads: int = 2, causal: bool = False
) -> Callable[[Tensor], Tensor]:
    """Real attention with a residual, a norm and an MLP, from torch's own modules."""
    torch.manual_seed(seed)
    mixer = torch.nn.MultiheadAttention(
        d, heads, batch_first=True, dtype=torch.float64
    ).eval()
    mlp = torch.nn.Sequential(
        torch.nn.LayerNorm(d, dtype=torch.float64),
        torch.nn.Linear(d, d, dtype=torch.float64),
        torch.nn.GELU(),
    )

    def run(tokens: Tensor) -> Tensor:
        mask = torch.ones(len(tokens), len(tokens)).triu(1).bool() if causal else None
        with torch.no_grad():
            mixed, _ = mixer(
                tokens[None],
                tokens[None],
                tokens[None],
                attn_mask=mask,
                need_weights=False,
            )
            tokens = tokens + mixed[0]
            return tokens + mlp(tokens)

    return run


@settings(max_examples=20)
@given(SEEDS, st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(2, 4))
def test_b9_as_many_and_more_are_one(
    seed: int, sequence: list[int], times: int
) -> None:
    layers = [block(seed), block(seed + 1), block(seed + 2)]
    found = proposition_b9(layers, drawn(seed, 3, 8) - 0.5, sequence, times=times)
    assert found.verdict == "holds"
    assert found.left < 1e-12
    assert found.found == {
        "tokens in the first": len(sequence),
        "tokens in the second": times * len(sequence),
    }


def placed(tokens: Tensor) -> Tensor:
    """A layer that adds positional encodings."""
    places = torch.arange(len(tokens), dtype=torch.float64)[
        :, None
    ] / 10 ** torch.linspace(0, 2, tokens.shape[1])
    return tokens + torch.sin(places)


@pytest.mark.parametrize(
    "layers",
    [
        [block(1, causal=True)],
        [block(1, causal=True), block(2, causal=True)],
        [placed, block(1), block(2)],
    ],
    ids=["a causal layer", "two causal layers", "positions"],
)
def test_b9_10_and_1100_part_with_a_mask_or_with_positions(layers: Any) -> None:
    """The last tokens are one behind a single causal layer, and the first zero of 1100 is not the zero of 10."""
    symbols = drawn(7, 2, 8) - 0.5
    assert proposition_b9([block(1), block(2)], symbols, [1, 0]).verdict == "holds"
    found = proposition_b9(layers, symbols, [1, 0])
    assert found.verdict == "premise violated"
    assert found.left > 1e-3, "and they stop being one"


# Premises and refusals.


X = drawn(0, 1000)
ONES = torch.arange(1000, dtype=torch.float64) % 2
STEEP = torch.arange(400, dtype=torch.float64)
ROWS, VALUES = attention(5, 30, 2)
LONG_ROWS, LONG_VALUES = attention(3, 60, 2)
TOKENS = 3 * drawn(0, 5, 3)
PATTERNS = [pattern(0, 5), pattern(1, 5)]
WITH_NAN = torch.where(torch.arange(15).view(5, 3) == 7, math.nan, TOKENS)


def with_last(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Any:
    """The rows of Theorem B.3 with another last pair."""
    return [*LONG_ROWS[:-1], change(*LONG_ROWS[-1])]


def moved_below_0(row: Tensor, star: Tensor) -> tuple[Tensor, Tensor]:
    ends = torch.tensor([star[0] + star[1] + 0.5, -0.5], dtype=torch.float64)
    return row, torch.cat([ends, star[2:]])


def of_tokens(v: Tensor) -> Tensor:
    return causal_softmax(9 * v @ v.T)


VIOLATED: dict[str, Callable[[], Statement]] = {
    "B.1, a last entry that grows": lambda: lemma_b1(
        0 * X, 0.0, math.log(1000), bound=1.0
    ),
    "B.1, infinite": lambda: lemma_b1(X[:99], math.inf, 0.2, bound=1.0),
    "B.1, NaN": lambda: lemma_b1(X[:99], math.nan, 0.2, bound=1.0),
    "B.1, no bound": lambda: lemma_b1(X[:99], 0.1, 0.2, bound=math.inf),
    "B.2, a difference that stays": lambda: lemma_b2(ONES, 1 - ONES, bound=1.0),
    "B.2, however small": lambda: lemma_b2(ONES / 1e3, (1 - ONES) / 1e3, bound=1.0),
    "B.2, no bound": lambda: lemma_b2(STEEP, STEEP, bound=1.0),
    "B.2, NaN": lambda: lemma_b2(X, X + 0 * WITH_NAN.sum(), bound=1.0),
    "B.3, no distribution": lambda: theorem_b3(
        with_last(lambda row, star: (2 * row, star)), LONG_VALUES, bound=9.0
    ),
    "B.3, a negative weight": lambda: theorem_b3(
        with_last(moved_below_0), LONG_VALUES, bound=9.0
    ),
    "B.3, large values": lambda: theorem_b3(LONG_ROWS, LONG_VALUES, bound=0.01),
    "B.4, odd": lambda: proposition_b4(3),
    "5.1, slope": lambda: theorem_51(
        PATTERNS, TOKENS, lambda v: 3 * torch.sin(v), sigma=1.0
    ),
    "5.1, tokens together": lambda: theorem_51(
        PATTERNS, TOKENS, lambda v: torch.tanh(v - v.mean(dim=0)), sigma=1.0
    ),
    "5.1, of tokens": lambda: theorem_51([of_tokens], TOKENS, torch.tanh, sigma=1.0),
    "5.1, weights": lambda: theorem_51(
        [2 * PATTERNS[0]], TOKENS, torch.tanh, sigma=1.0
    ),
    "5.1, later": lambda: theorem_51([PATTERNS[0].T], TOKENS, torch.tanh, sigma=1.0),
    "5.1, infinite": lambda: theorem_51(PATTERNS, TOKENS, lambda v: v / 0, sigma=1.0),
    "5.1, NaN": lambda: theorem_51(PATTERNS, WITH_NAN, torch.tanh, sigma=1.0),
    "B.6, later": lambda: lemma_b6(PATTERNS[0].T),
    "B.6, halved": lambda: lemma_b6(PATTERNS[0] / 2),
    "B.6, off": lambda: lemma_b6(PATTERNS[0] - 0.01 * torch.eye(5)),
    "B.6, negative": lambda: lemma_b6(-3 * PATTERNS[0]),
    "B.8, later": lambda: proposition_b8(PATTERNS[0].T),
    "B.8, halved": lambda: proposition_b8(PATTERNS[0] / 2),
    "B.8, alone": lambda: proposition_b8(torch.eye(5)),
    "B.10, other bits": lambda: corollary_b10(
        X, X + 1e-6, lambda _: 6, 6, dtype=torch.float64
    ),
}


@pytest.mark.parametrize("what", VIOLATED)
def test_a_violated_premise_is_said(what: str) -> None:
    assert VIOLATED[what]().verdict == "premise violated"


def test_inputs_near_them_violate_nothing() -> None:
    assert theorem_b3(LONG_ROWS, LONG_VALUES, bound=9.0).verdict == "consistent"
    constant = theorem_51([lambda _: PATTERNS[0]], TOKENS, torch.tanh, sigma=1.0)
    narrow = theorem_51([PATTERNS[0].float()], TOKENS.bfloat16(), torch.tanh, sigma=1.0)
    assert (constant.verdict, narrow.verdict) == ("holds", "holds")


REFUSED: dict[str, Callable[[], Any]] = {
    "few lengths": lambda: lemma_b1(X, 0.1, 0.1, bound=1.0, lengths=[100, 1000]),
    "near lengths": lambda: lemma_b2(X, X, bound=1.0, lengths=[50, 60, 80, 100]),
    "equal lengths": lambda: lemma_b2(X, X, bound=1.0, lengths=[10, 30, 30, 100]),
    "long lengths": lambda: lemma_b2(X, X, bound=1.0, lengths=[1, 10, 50, 1001]),
    "no length": lambda: lemma_b1(X, 0.1, 0.1, bound=1.0, lengths=[0, 10, 50, 100]),
    "no entries": lambda: proposition_b4(0),
    "few rows": lambda: theorem_b3(ROWS[1:], VALUES, bound=2.0),
    "equal rows": lambda: theorem_b3(
        [*ROWS[:-1], (ROWS[-1][0], ROWS[-1][0])], VALUES, bound=2.0
    ),
    "no block": lambda: theorem_51([], VALUES, torch.tanh, sigma=1.0),
    "other tokens": lambda: theorem_51([pattern(0, 5)], VALUES, torch.tanh, sigma=1.0),
    "no beta": lambda: theorem_51(
        [pattern(0, 30)], VALUES, torch.tanh, sigma=1.0, betas=(1.0, 0.0, 1.0)
    ),
    "no square": lambda: lemma_b6(torch.ones(2, 3)),
    "one token": lambda: proposition_b8(torch.ones(1, 1)),
    "one sequence": lambda: proposition_b9([block(1)], drawn(7, 2, 8), [1, 0], times=1),
}


@pytest.mark.parametrize("what", REFUSED)
def test_inputs_that_no_statement_is_about_are_refused(what: str) -> None:
    with pytest.raises(InputError):
        REFUSED[what]()


def test_one_entry_that_outweighs_all_others_leaves_a_limit_undecided() -> None:
    heavy = torch.cat([torch.tensor([30.0]), torch.zeros(99)]).double()
    assert lemma_b1(heavy, 0.0, 0.0, bound=30.0).verdict == "undecided"


def test_a_statement_that_fails_says_so() -> None:
    """None of the paper's does where its premises hold, so here is one that is not the paper's."""
    found = Statement("Lemma 0", "1 = 2", {"nothing": True}, 1.0, "=", 2.0, False)
    assert (found.verdict, str(found)) == ("fails", "Lemma 0: 1 = 2, fails")
