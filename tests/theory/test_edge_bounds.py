"""Edges of a block against torch.func.jacrev through a toy block that is written down here, at all scales."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from squashlens.theory.bounds.edge_bounds import (
    Maps,
    analytic_edges,
    attention_edges,
    deviations,
    exact_edges,
    key_norms,
    value_norms,
    with_rounding,
)  # fmt: skip
from squashlens.theory.norms import spectral_norms

N, D, HEADS, WIDTH = 5, 6, 3, 2


def toy(seed: int, scale: float, sink: bool = False) -> tuple[Maps, Tensor, Tensor, Tensor]:
    """A block with every nonlinearity a real one has, its maps by jacrev, and its Jacobian: whole, frozen, and through
    the keys alone. Off the diagonal the last is the difference of the others, without the digits that this loses.
    """
    torch.manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64)  # noqa: E731
    v = draw(N, D)
    q, k, w = (draw(HEADS, WIDTH, D) / D**0.5 for _ in range(3))
    out, mlp = draw(D, HEADS * WIDTH), draw(D, D) / D**0.5
    causal = torch.ones(N, N).tril().bool()

    def norm(x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    def project(matrix: Tensor, x: Tensor) -> Tensor:
        return torch.einsum("hcd,nd->nhc", matrix, norm(x))

    def logits(queries: Tensor, keys: Tensor) -> Tensor:
        return 30 * torch.tanh(scale * torch.einsum("jhc,ihc->hji", queries, keys) / 30)

    def mix(weights: Tensor, values: Tensor) -> Tensor:
        return torch.einsum("hji,ihc->jhc", weights, values)

    def close(x: Tensor, z: Tensor) -> Tensor:
        mid = x + z.flatten(1) @ out.T
        return mid + torch.tanh(norm(mid) @ mlp.T)

    def attend(scores: Tensor) -> Tensor:
        masked = scores.masked_fill(~causal, -torch.inf)
        beside = torch.cat([masked, torch.full_like(masked[..., :1], 0.5)], dim=-1)
        return beside.softmax(-1)[..., :-1] if sink else masked.softmax(-1)

    pattern, values = attend(logits(project(q, v), project(k, v))), project(w, v)
    z = mix(pattern, values)

    def block(x: Tensor, frozen: bool = False) -> Tensor:
        weights = pattern if frozen else attend(logits(project(q, x), project(k, x)))
        return close(x, mix(weights, project(w, x)))

    def by_keys(x: Tensor) -> Tensor:
        """With x in the keys only. Without a sink weights add up to 1, so the values may be relative to that of the
        largest weight; otherwise its derivative would be a small difference of large numbers.
        """
        largest = torch.stack([values[pattern[head].argmax(-1), head] for head in range(HEADS)])  # (h, j, c)
        beyond = values.transpose(0, 1)[:, None] - largest[:, :, None]
        weights = attend(logits(project(q, v), project(k, x)))
        return close(v, (largest + torch.einsum("hji,hjic->hjc", weights, beyond)).transpose(0, 1))

    jac = torch.func.jacrev
    here = torch.arange(N)
    direct = jac(lambda x: close(x, z))(v)[here, :, here]
    closing = jac(lambda u: close(v, u))(z)[here, :, here]
    value_map = jac(lambda x: project(w, x))(v)[here, :, :, here]
    by_key = jac(lambda x: logits(project(q, v), project(k, x)))(v)  # (h, j, i, i', d)
    by_query = jac(lambda x: logits(project(q, x), project(k, v)))(v)  # (h, j, k, j', d)
    to_key = by_key[:, :, here, here]  # (h, j, i, d)
    to_query = by_query[:, here, :, here]  # (j, h, k, d)
    away = deviations(pattern, values)
    query_rows = torch.einsum("hjk,hjkc,jhkd->jhcd", pattern, away, to_query)
    maps = Maps(direct, closing, value_map, pattern, values, lambda j: to_key[:, j], query_rows)
    whole = jac(block)(v).permute(0, 2, 1, 3)  # (j, i, out, in)
    without, keys = (jac(of)(v).permute(0, 2, 1, 3) for of in (lambda x: block(x, frozen=True), by_keys))
    return maps, whole, without, keys


def frozen(maps: Maps) -> Maps:
    return Maps(maps.direct, maps.closing, maps.value_map, maps.pattern, maps.values)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.1, 1.0, 10.0, 100.0]), st.booleans())
def test_blocks_equal_jacrev_and_edges_hold(seed: int, scale: float, sink: bool) -> None:
    maps, whole, without, _ = toy(seed, scale, sink)
    for held, truth in ((maps, whole), (frozen(maps), without)):
        analytic = analytic_edges(held, range(N), spectral_norms)
        for j in range(N):
            size = truth[j].norm()
            # What goes to a sink counts as rounding up to a millionth of a row.
            slack = 2e-6 * (1 + scale) if sink and held is maps else 1e-9
            torch.testing.assert_close(held.blocks(j, slice(0, j + 1)), truth[j, : j + 1], rtol=1e-8, atol=slack * size)
            norms = torch.linalg.svdvals(truth[j, : j + 1])[:, 0]
            exact = exact_edges(held, j, spectral_norms)
            torch.testing.assert_close(exact, norms, rtol=1e-6, atol=10 * slack * size)
            for looser in (attention_edges(held, j, spectral_norms), analytic[j, : j + 1]):
                assert (looser >= exact * (1 - 1e-9) - 1e-12 * size).all()
                torch.testing.assert_close(looser[j], exact[j])


@pytest.mark.parametrize("queries", [range(N), range(2, N)])
def test_pulled_back_is_the_sum_of_rows_of_the_jacobian(queries: range) -> None:
    maps, whole, without, _ = toy(0, 1.0)
    directions = torch.randn(4, len(queries), D, dtype=torch.float64)
    for held, truth in ((maps, whole), (frozen(maps), without)):
        found = held.pulled(queries, directions)
        torch.testing.assert_close(found, torch.einsum("ujo,jiod->uid", directions, truth[list(queries)]))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.1, 1.0, 10.0]))
def test_each_term_bounds_its_part(seed: int, scale: float) -> None:
    """Off the diagonal the whole block is the frozen one plus the key's share, and the key term is its exact norm."""
    maps, whole, without, keys = toy(seed, scale)
    value = value_norms(maps)
    assert maps.key_rows is not None
    for j in range(1, N):
        torch.testing.assert_close(
            (whole - without)[j, :j], keys[j, :j], rtol=1e-6, atol=1e-13 * whole[j].norm().item()
        )
        share = torch.linalg.svdvals(keys[j, :j])[:, 0]
        torch.testing.assert_close(
            key_norms(maps, j, maps.key_rows(j))[:j], share, rtol=1e-6, atol=1e-9 * share.max().item()
        )
        held = torch.linalg.svdvals(without[j, :j])[:, 0]
        assert (value[j, :j] >= held * (1 - 1e-9)).all()
        assert scale > 1 or share.min() > 1e-6


def test_one_head_that_ends_alike_for_all_tokens_is_exact() -> None:
    """With ∂F/∂z the same everywhere, neither the value term nor the attention edge loses anything."""
    torch.manual_seed(0)
    maps, *_ = toy(0, 1.0)
    closing = maps.closing[:1, :, :1].expand(N, D, 1, WIDTH)
    one = Maps(maps.direct, closing, maps.value_map[:, :1], maps.pattern[:1], maps.values[:, :1])
    value = value_norms(one)
    for j in range(1, N):
        truth = torch.linalg.svdvals(one.blocks(j, slice(0, j)))[:, 0]
        np.testing.assert_allclose(value[j, :j], truth, rtol=1e-9)
        np.testing.assert_allclose(attention_edges(one, j, spectral_norms)[:j], truth, rtol=1e-9)


def test_the_value_term_is_the_least_of_three() -> None:
    """Heads with orthogonal outputs: their sum is far less than the sum of their norms."""
    alpha = torch.full((3, 2, 2), 0.5, dtype=torch.float64)
    eye = torch.eye(6, dtype=torch.float64)
    closing = eye.reshape(1, 6, 3, 2).expand(2, 6, 3, 2)
    value_map = eye.reshape(3, 2, 6).expand(2, 3, 2, 6)
    maps = Maps(torch.zeros(2, 6, 6, dtype=torch.float64), closing, value_map, alpha, torch.zeros(2, 3, 2).double())
    np.testing.assert_allclose(value_norms(maps), 0.5 * 3**0.5, rtol=1e-6)  # √Σα²; the truth is ½, Σα 1.5


@pytest.mark.parametrize("seen", [1.0, 1 - 1e-12])
def test_a_saturated_softmax_keeps_its_digits(seen: float) -> None:
    """Against exact rational arithmetic: w_i − z_j for the key that takes all."""
    from fractions import Fraction

    rest = 1e-13
    alpha = torch.tensor([[[seen, rest]]], dtype=torch.float64)
    w = torch.tensor([[[1e6]], [[1e6 + 1]]], dtype=torch.float64)
    found = deviations(alpha, w)[0, 0, :, 0]
    exact = -Fraction(rest)  # relative to the top key: (w_0 − w_0) − rest · (w_1 − w_0)
    assert found[0].item() == pytest.approx(float(exact), rel=1e-12)
    assert found[1].item() == pytest.approx(1.0, rel=1e-12)


def test_rounding_is_by_the_row() -> None:
    """An edge of 0 takes its share of the row's largest where a path leads, and stays 0 where none does."""
    edges = torch.tensor([[0.0, 0.0, 8.0], [1e-9, 0.0, 0.0]], dtype=torch.float64)
    led = torch.tensor([[False, True, True], [False, False, True]])
    found = with_rounding(edges, led, 0.25)
    assert found.tolist() == [[0.0, 2.0, 12.0], [1.5e-9, 0.0, 0.25e-9]]
