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
from squashlens.statements import (
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
from tests.references import raw

SEEDS = st.integers(0, 10_000)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.rand(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def pattern(seed: int, n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """A causal pattern of random scores."""
    scores = 4 * drawn(seed, n, n)
    return (
        scores.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
        .softmax(dim=-1)
        .to(dtype)
    )


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


def test_b1_with_a_last_entry_that_grows_keeps_its_weight() -> None:
    n = 1000
    found = lemma_b1(torch.zeros(n, dtype=torch.float64), 0.0, math.log(n), bound=1.0)
    assert found.verdict == "premise violated"
    assert found.found["softmax(x)_n"] == pytest.approx(0.5)


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


def test_b2_needs_differences_that_tend_to_0_and_entries_that_are_bounded() -> None:
    x = torch.arange(1000, dtype=torch.float64) % 2
    found = lemma_b2(x, 1 - x, bound=1.0)
    assert (found.verdict, found.left) == (
        "premise violated",
        pytest.approx(proposition_b4(1000).right),
    )
    assert (
        lemma_b2(x / 1000, (1 - x) / 1000, bound=1.0).verdict == "premise violated"
    ), "however small, it stays"
    steep = torch.arange(400, dtype=torch.float64)
    other = steep.clone()
    other[0] += 0.5
    assert lemma_b2(steep, other, bound=1.0).verdict == "premise violated"
    assert "entries" in str(lemma_b2(steep, other, bound=1.0))


@given(st.integers(1, 500))
def test_b4_is_its_limit_at_every_even_n(n: int) -> None:
    found = proposition_b4(2 * n)
    assert found.left == pytest.approx(2 * (math.e - 1) / (math.e + 1), abs=1e-12)
    assert found.verdict == "holds"
    assert found.right == pytest.approx(0.9242, abs=1e-4)


def test_b4_at_an_odd_n() -> None:
    assert (proposition_b4(3).verdict, proposition_b4(3).holds) == (
        "premise violated",
        False,
    )


# Collapse.


def attention(seed: int, n: int, d: int) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Rows of the last token over v and over v*, at four lengths up to n, and values; without positions.

    The last token has the same score at each length, or its weight would follow its score.
    """
    scores, values = drawn(seed, n), drawn(seed + 1, n, d) - 0.5
    sizes = [n // 10, n // 4, n // 2, n]
    scores[[m - 1 for m in sizes]] = 0.5
    ends = [scores[:m] for m in sizes]
    return [
        (s.softmax(dim=0), torch.cat([s, s[-1:]]).softmax(dim=0)) for s in ends
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
        return (
            (-slope * behind)
            .masked_fill(behind >= (window or n), -math.inf)
            .softmax(dim=0)
        )

    return [(row(n), row(n + 1)) for n in sizes]


def test_b3_gets_small_with_n_where_nothing_fades() -> None:
    found = theorem_b3(fading(0.0, *GROWING), drawn(1, GROWING[-1], 3), bound=3.0)
    assert found.verdict == "consistent"
    rights = [step.right for step in found.steps]
    assert rights == sorted(rights, reverse=True)
    assert rights[-1] < 0.01
    assert "induction over layers is not checked" in found.shows


def test_b3_looks_at_every_length_between_the_first_and_the_last() -> None:
    """From 10 to 10,000 the weight falls a hundredfold, but it stops falling at 100."""
    rows = fading(0.0, 10, 30, 100) + fading(0.0, 300, 1000, 3000, 10_000, window=100)
    found = theorem_b3(rows, drawn(1, 10_000, 3), bound=3.0)
    assert found.found["δ + α* at n = 10"] > 5 * (
        found.found["δ"] + found.found["α*_{n+1,n+1}"]
    )
    assert found.verdict == "premise violated"


@pytest.mark.parametrize(
    ("slope", "window"), [(1.0, None), (2**-4, None), (2**-8, None), (0.0, 64)]
)
def test_b3_is_not_said_of_what_keeps_its_weight_at_every_n(
    slope: float, window: int | None
) -> None:
    """A slope by distance, or a window. However small δ is by then: at slope 2⁻⁸ it is 0.004 at every n."""
    rows = fading(slope, 1000, 3000, 10_000, 30_000, window=window)
    found = theorem_b3(rows, drawn(1, 30_000, 3), bound=3.0)
    assert (found.verdict, found.holds) == ("premise violated", True)
    assert "positional information decays" in str(found)


@pytest.mark.parametrize("broken", ["row", "negative", "bound"])
def test_b3_needs_distributions_and_bounded_values(broken: str) -> None:
    rows, values = attention(3, 60, 2)
    assert theorem_b3(rows, values, bound=9.0).verdict == "consistent"
    row, star = rows[-1]
    if broken == "row":
        row = 2 * row
    if broken == "negative":
        star = torch.cat([star[:1] + star[1:2] + 0.5, torch.tensor([-0.5]), star[2:]])
    found = theorem_b3(
        [*rows[:-1], (row, star)], values, bound=0.01 if broken == "bound" else 9.0
    )
    assert found.verdict == "premise violated"
    assert {"row": "distributions", "negative": "distributions", "bound": "‖v_i‖₁"}[
        broken
    ] in str(found)


@pytest.mark.parametrize("says", [0, 6, 7, 8])
def test_b10_whatever_is_said(says: int) -> None:
    y = drawn(0, 16)
    found = corollary_b10(y, y + 1e-6, lambda _: says, 6)
    assert found.verdict == "holds"
    assert found.right == (1 if says in (6, 7) else 2)


def test_b10_needs_the_same_bits() -> None:
    y = drawn(0, 16)
    found = corollary_b10(
        y,
        y + 1e-6,
        lambda rows: 6 + int(not torch.equal(rows, y)),
        6,
        dtype=torch.float64,
    )
    assert (found.verdict, found.right) == ("premise violated", 0)


def test_b10_compares_bits() -> None:
    """−0 equals 0 and has other bits; a NaN equals nothing and may have the same."""
    y = drawn(0, 16)
    y[0] = 0.0
    other = y.clone()
    other[0] = -0.0
    assert (
        corollary_b10(y, other, lambda rows: 6 + int(rows[0].signbit()), 6).verdict
        == "premise violated"
    )
    y[1] = other[1] = math.nan
    assert corollary_b10(y, y.clone(), lambda _: 6, 6).verdict == "holds"


# Theorem 5.1.


@settings(max_examples=15)
@given(
    SEEDS,
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from([(1.0, 1.0, 1.0), (2.0, 0.5, 3.0), (0.3, 4.0, 0.7)]),
)
def test_51_bounds_the_papers_model(
    seed: int, layers: int, n: int, betas: tuple[float, float, float]
) -> None:
    rows, weight = (
        [pattern(seed + k, n) for k in range(layers)],
        drawn(seed, 3, 3) - 0.5,
    )
    sigma = float(torch.linalg.matrix_norm(weight, 2))
    found = theorem_51(
        rows,
        drawn(seed, n, 3),
        lambda v: torch.tanh(v) @ weight,
        sigma=sigma,
        betas=betas,
    )
    assert found.verdict == "holds"
    assert 0 < found.left <= 1


@pytest.mark.parametrize("betas", [(1.0, 1.0, 1.0), (2.0, 0.5, 3.0), (0.3, 4.0, 0.7)])
def test_51_is_attained_where_psi_is_a_multiple(
    betas: tuple[float, float, float],
) -> None:
    """ψ = σ v makes every step an equality, so each constant is where it belongs."""
    rows = [pattern(k, 6) for k in range(3)]
    found = theorem_51(rows, drawn(0, 6, 3), lambda v: 1.5 * v, sigma=1.5, betas=betas)
    assert (found.left, found.found["least Jacobian ÷ bound"]) == (
        pytest.approx(1),
        pytest.approx(1),
    )
    assert found.verdict == "holds"


def test_51_needs_its_premises() -> None:
    tokens, rows = 3 * drawn(0, 5, 3), [pattern(0, 5), pattern(1, 5)]

    def softmax(v: Tensor) -> Tensor:
        return (
            (9 * v @ v.T)
            .masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
            .softmax(dim=-1)
        )

    broken: list[tuple[Any, Any, str]] = [
        (rows, lambda v: 3 * torch.sin(v), "‖ψ'‖ ≤ 1"),
        (rows, lambda v: torch.tanh(v - v.mean(dim=0)), "by itself"),
        ([softmax, rows[0]], torch.tanh, "does not depend"),
        ([2 * rows[0]], torch.tanh, "distributions"),
        ([rows[0].T], torch.tanh, "causal"),
        (rows, lambda v: v / 0, "finite"),
    ]
    for attention, mlp, premise in broken:
        found = theorem_51(attention, tokens, mlp, sigma=1.0)
        assert found.verdict == "premise violated", premise
        assert premise in str(found)
    assert (
        theorem_51([lambda _: rows[0]], tokens, torch.tanh, sigma=1.0).verdict
        == "holds"
    )
    assert (
        theorem_51([rows[0].float()], tokens.bfloat16(), torch.tanh, sigma=1.0).verdict
        == "holds"
    )
    tokens[2, 1] = math.nan
    assert theorem_51(rows, tokens, torch.tanh, sigma=1.0).verdict == "premise violated"


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


def test_b6_needs_two_entries_in_a_row() -> None:
    a = pattern(1, 6)
    a[3] = torch.tensor([0, 0, 0, 1, 0, 0])
    found = lemma_b6(a)
    assert (found.verdict, found.holds, found.left) == ("premise violated", False, 2)
    a[3] = torch.tensor(
        [1, 0, 0, 0, 0, 0]
    )  # one entry elsewhere: no premise, and yet the conclusion
    lucky = lemma_b6(a)
    assert (lucky.verdict, lucky.holds) == ("premise violated", True)


@pytest.mark.parametrize(
    ("spoil", "premise"),
    [
        (lambda a: a.T, "triangular"),
        (lambda a: 0.5 * a, "distributions"),
        (lambda a: a - 0.01 * torch.eye(6), "distributions"),
        (lambda a: -3 * a, "distributions"),
    ],
)
def test_b6_and_b8_need_causal_patterns(
    spoil: Callable[[Tensor], Tensor], premise: str
) -> None:
    for found in (lemma_b6(spoil(pattern(2, 6))), proposition_b8(spoil(pattern(2, 6)))):
        assert found.verdict == "premise violated"
        assert premise in str(found)


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


def test_b8_needs_more_than_the_token_itself() -> None:
    a = pattern(4, 5)
    a[2] = torch.eye(5)[2]
    found = proposition_b8(a)
    assert (found.verdict, found.holds, found.left) == (
        "premise violated",
        False,
        pytest.approx(1),
    )
    assert found.found["λ"] == 1


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
def test_b9_10_and_1100_part_with_a_mask_or_with_positions(
    layers: list[Callable[[Tensor], Tensor]],
) -> None:
    """The last tokens are one behind a single causal layer, and the first zero of 1100 is not the zero of 10."""
    symbols = drawn(7, 2, 8) - 0.5
    assert proposition_b9([block(1), block(2)], symbols, [1, 0]).verdict == "holds"
    found = proposition_b9(layers, symbols, [1, 0])
    assert found.verdict == "premise violated"
    assert "treat tokens alike" in str(found)
    assert found.left > 1e-3, "and they stop being one"


X = drawn(0, 1000)
ROWS, VALUES = attention(5, 30, 2)
REFUSED: dict[str, Callable[[], Any]] = {
    "few lengths": lambda: lemma_b1(X, 0.1, 0.1, bound=1.0, lengths=[100, 1000]),
    "near lengths": lambda: lemma_b2(X, X, bound=1.0, lengths=[50, 60, 80, 100]),
    "equal lengths": lambda: lemma_b2(X, X, bound=1.0, lengths=[10, 30, 30, 100]),
    "long lengths": lambda: lemma_b2(X, X, bound=1.0, lengths=[1, 10, 50, 1001]),
    "no length": lambda: lemma_b1(X, 0.1, 0.1, bound=1.0, lengths=[0, 10, 50, 100]),
    "two sizes": lambda: raw(lemma_b2)(X, X[:9], bound=1.0),
    "no entries": lambda: proposition_b4(0),
    "few rows": lambda: theorem_b3(ROWS[1:], VALUES, bound=2.0),
    "equal rows": lambda: theorem_b3(
        [*ROWS[:-1], (ROWS[-1][0], ROWS[-1][0])], VALUES, bound=2.0
    ),
    "two vectors": lambda: raw(corollary_b10)(X, X[:5], lambda _: 6, 6),
    "no block": lambda: theorem_51([], VALUES, torch.tanh, sigma=1.0),
    "other tokens": lambda: theorem_51([pattern(0, 5)], VALUES, torch.tanh, sigma=1.0),
    "no beta": lambda: theorem_51(
        [pattern(0, 30)], VALUES, torch.tanh, sigma=1.0, betas=(1.0, 0.0, 1.0)
    ),
    "no square": lambda: lemma_b6(torch.ones(2, 3)),
    "two squares": lambda: raw(lemma_b7)(pattern(0, 4), pattern(0, 5)),
    "one token": lambda: proposition_b8(torch.ones(1, 1)),
    "one sequence": lambda: proposition_b9([block(1)], drawn(7, 2, 8), [1, 0], times=1),
}


@pytest.mark.parametrize("what", REFUSED)
def test_inputs_that_no_statement_is_about_are_refused(what: str) -> None:
    with pytest.raises(InputError):
        REFUSED[what]()


def test_entries_that_are_not_finite_violate_a_premise() -> None:
    for entry in (math.inf, math.nan):
        assert lemma_b1(X[:99], entry, 0.2, bound=1.0).verdict == "premise violated"
        assert (
            lemma_b2(
                X[:100], torch.cat([X[:99], torch.tensor([entry])]), bound=1.0
            ).verdict
            == "premise violated"
        )
    assert lemma_b1(X[:99], 0.1, 0.2, bound=math.inf).verdict == "premise violated"


def test_one_entry_that_outweighs_all_others_leaves_a_limit_undecided() -> None:
    heavy = torch.cat([torch.tensor([30.0]), torch.zeros(99)]).double()
    assert lemma_b1(heavy, 0.0, 0.0, bound=30.0).verdict == "undecided"


def test_a_statement_that_fails_says_so() -> None:
    """None of the paper's does where its premises hold, so here is one that is not the paper's."""
    found = Statement("Lemma 0", "1 = 2", {"nothing": True}, 1.0, "=", 2.0, False)
    assert (found.verdict, str(found)) == ("fails", "Lemma 0: 1 = 2, fails")
