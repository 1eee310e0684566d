"""Synthetic stacks against a slow twin, PyTorch's own attention, closed forms and properties."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from squashlens.errors import InputError
from squashlens.synthetic import (
    PAPER,
    Stack,
    convergence,
    last_tokens,
    softmax_total_variation,
    stack_passes,
)
from squashlens.synthetic.stack import alibi, draw, t5_bucket
from tests.synthetic import twin

CPU, F64 = torch.device("cpu"), torch.float64
SMALL = {"width": 8, "base": 20.0}
WINDOWS = [{}, {"window": 3}, {"window": 1}]
ENCODINGS = ["none", "sinusoidal", "sinusoidal_qk", "rope", "alibi", "t5", "learned"]


def check(
    stack: Stack, lengths: list[int], seeds: list[int], apart: float = 1e-9
) -> None:
    """v, v*, δ and the self-weight against whole sequences, one by one."""
    found = last_tokens(stack, lengths, seeds=seeds)
    drawn = draw(stack, max(lengths), seeds, F64, CPU)
    for s in range(len(seeds)):
        for place, n in enumerate(sorted(set(lengths))):
            plain, rows = twin.run(stack, drawn, s, list(range(n)))
            doubled, star_rows = twin.run(stack, drawn, s, [*range(n), n - 1])
            for layer in range(stack.depth):
                for one, truth in ((found.v, plain), (found.star, doubled)):
                    np.testing.assert_allclose(
                        one[s, layer, place], truth[layer][-1], rtol=1e-10, atol=1e-10
                    )
                alpha = np.pad(rows[layer][:, -1], ((0, 0), (0, 1)))
                delta = np.abs(alpha - star_rows[layer][:, -1]).sum(-1)
                np.testing.assert_allclose(
                    found.total_variation[s, layer, place], delta, rtol=0, atol=1e-10
                )
                own = star_rows[layer][:, -1, -1]
                np.testing.assert_allclose(
                    found.self_weight[s, layer, place], own, rtol=1e-10
                )
            if n > 1 and stack.window != 1:
                assert (
                    np.abs(plain[0][-1] - doubled[0][-1]).max() >= apart
                )  # else v would do for v*


@pytest.mark.few(4)
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_every_encoding_under_every_window(encoding: Any, window: Any) -> None:
    stack = Stack(
        depth=2,
        heads=2,
        encoding=encoding,
        residual=True,
        norm="rms",
        mlp=1,
        **window,
        **SMALL,
    )
    check(stack, [2, 3, 4, 5, 9], [0, 3])


ANY = st.fixed_dictionaries(
    {
        "encoding": st.sampled_from(ENCODINGS),
        "residual": st.booleans(),
        "norm": st.sampled_from(["none", "rms", "layer"]),
        "mlp": st.integers(0, 2),
        "depth": st.integers(1, 3),
        "heads": st.sampled_from([1, 2, 4]),
        "scale": st.floats(0.3, 3),
    }
)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    ANY, st.sampled_from(WINDOWS), st.lists(st.integers(1, 11), min_size=1, max_size=4)
)
def test_any_stack_against_the_twin(
    options: Any, window: Any, lengths: list[int]
) -> None:
    check(Stack(**options, **window, **SMALL), lengths, [1], apart=0)


@pytest.mark.parametrize("encoding", ["none", "sinusoidal_qk", "rope", "alibi", "t5"])
@pytest.mark.parametrize("window", WINDOWS[:2], ids=str)
def test_direct_draws_against_the_twin(encoding: Any, window: Any) -> None:
    check(
        Stack(encoding=encoding, projections="direct", heads=2, **window, **SMALL),
        [1, 2, 6, 10],
        [0, 7],
    )


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_stack_against_the_twin(name: str) -> None:
    assert (PAPER[name].width, PAPER[name].depth, PAPER[name].heads) == (64, 1, 1)
    check(PAPER[name], [1, 3, 20], [0])


def test_a_stack_against_pytorchs_attention() -> None:
    stack, n = Stack(heads=4), 50
    drawn = draw(stack, n, [0, 1], F64, CPU)
    x, w = drawn.tokens, drawn.layers[0]
    q, k, v = (
        (x @ m).unflatten(-1, (4, 16)).transpose(1, 2)
        for m in (w["query"], w["key"], w["value"])
    )  # (seed, head, token, dot)
    expected = (
        scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        @ w["output"]
    )
    found = last_tokens(stack, range(1, n + 1), seeds=2)
    torch.testing.assert_close(found.v[:, 0], expected, rtol=1e-11, atol=1e-12)


def test_groups_of_seeds_and_rows_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stack = Stack(depth=2, encoding="rope", residual=True)
    together = last_tokens(stack, range(5, 45, 5), seeds=6)
    monkeypatch.setattr(stack_passes, "NUMBERS", 2**13)  # three seeds
    monkeypatch.setattr(stack_passes, "CELLS", 2**10)  # a few rows
    apart = last_tokens(stack, range(5, 45, 5), seeds=6)
    for name, values in vars(apart).items():
        torch.testing.assert_close(
            values, getattr(together, name), rtol=1e-9, atol=1e-11
        )


def test_a_longer_sequence_begins_with_the_shorter_one() -> None:
    stack = Stack(depth=2, encoding="t5", residual=True)
    short, long = (last_tokens(stack, n, seeds=[4]) for n in ([5, 17], [5, 17, 333]))
    torch.testing.assert_close(long.v[:, :, :2], short.v, rtol=1e-12, atol=1e-14)
    deeper = last_tokens(
        Stack(depth=3, encoding="t5", residual=True, mlp=1), [5], seeds=[4]
    )
    shallow = last_tokens(
        Stack(depth=1, encoding="t5", residual=True, mlp=1), [5], seeds=[4]
    )
    torch.testing.assert_close(deeper.v[:, :1], shallow.v, rtol=1e-12, atol=1e-14)


def test_alibi_against_its_closed_form() -> None:
    """With values and keys of no account, weights are a geometric series of ratio e^(−slope)."""
    slopes = [-alibi(torch.tensor([[1]]), heads)[-1].item() for heads in (1, 2, 8)]
    assert slopes == [2**-8, 2**-8, 2**-8]
    assert (-alibi(torch.tensor([[1, -3]]), 8)[:, 0, 0]).tolist() == [
        2.0**-h for h in range(1, 9)
    ]
    stack = Stack(heads=8, encoding="alibi", scale=1e-9)
    n = 700
    own = last_tokens(stack, [n], seeds=1).self_weight[0, 0, 0]
    ratio = np.exp(-(2.0 ** -np.arange(1, 9)))
    np.testing.assert_allclose(own, (1 - ratio) / (1 - ratio ** (n + 1)), rtol=1e-9)


def test_t5_ranges_are_those_of_the_published_code() -> None:
    distance = torch.arange(-300, 300)
    expected = [twin.t5_bucket(int(d)) for d in distance]
    assert t5_bucket(distance[None])[0].tolist() == expected
    assert len(set(expected)) == 32


REFUSED: list[Callable[[], Any]] = [
    lambda: Stack(window=0),
    lambda: Stack(heads=3),
    lambda: Stack(encoding="rope", width=12, heads=4),
    lambda: Stack(encoding="sinusoidal", width=9),
    lambda: Stack(depth=0),
    lambda: Stack(scale=0.0),
    lambda: Stack(projections="direct", depth=2),
    lambda: Stack(projections="direct", residual=True, norm="rms"),
    lambda: Stack(projections="direct", encoding="learned"),
    lambda: last_tokens(Stack(), []),
    lambda: last_tokens(Stack(), [0, 3]),
    lambda: last_tokens(Stack(), [3], seeds=[]),
    lambda: last_tokens(Stack(), [3], seeds=[-1]),
    lambda: last_tokens(Stack(), [3], seeds=[1, 1]),
    # Too few lengths for a fit, or lengths at which δ does not yet fall as 1/n; a noise without a finite exponential.
    lambda: convergence(Stack(), [1, 10, 100]),
    lambda: softmax_total_variation([10, 100, 500, 1000, 3000]),
    lambda: softmax_total_variation([10, 3000, 10_000, 30_000, 100_000], noise=10.0),
    lambda: softmax_total_variation([10, 2000, 3000, 4000], noise=800.0),
    lambda: softmax_total_variation([10, 2000, 3000, 4000], noise=0.0),
]


@pytest.mark.parametrize("call", REFUSED, ids=range(len(REFUSED)))
def test_wrong_requests_are_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(InputError):
        call()


def test_a_long_row_needs_no_square() -> None:
    """At n = 60,000 a pattern of n × n would be 29 GB."""
    found = last_tokens(Stack(width=8, encoding="rope"), [60_000], seeds=1)
    assert found.self_weight.item() < 1e-2
    assert found.v.isfinite().all()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_cuda_equals_cpu(encoding: Any) -> None:
    stack = Stack(depth=2, heads=2, encoding=encoding, residual=True, norm="rms", mlp=2)
    cpu, gpu = (last_tokens(stack, [3, 40, 500], device=d) for d in ("cpu", "cuda"))
    for name in vars(cpu):
        torch.testing.assert_close(
            getattr(gpu, name), getattr(cpu, name), rtol=1e-10, atol=1e-12
        )
