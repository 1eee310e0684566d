"""The Triton kernel for row products against blocks of rows in float64, run on the CPU.

A stand-in for Triton runs it always, and Triton's own interpreter where `make kernel` installed Triton and set
TRITON_INTERPRET=1. What only a GPU shows is in the tests of `test_row_products.py` that are marked `cuda`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from squashlens.theory import row_products
from squashlens.theory.attention import Attention
from squashlens.theory.bounds.paths import Uniform
from tests.theory import triton_on_cpu

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=triton_on_cpu.WAYS)
def kernel(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The module of the kernel, run by the stand-in or by Triton's interpreter."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield triton_on_cpu.kernel(request.param, monkeypatch)


def attention(
    n: int, size: int, dtype: torch.dtype = torch.float32, *, heads: int = 4, groups: int = 2, prompts: int = 1,
    strength: float = 1.0, seed: int = 0, **options: Any,
) -> Attention:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)

    def drawn(heads: int) -> Tensor:  # laid out as models give them: the position before the head
        return torch.randn(prompts, n, heads, size, generator=generator).to(dtype).transpose(1, 2)

    return Attention(drawn(heads), drawn(groups), strength * size**-0.5, **options)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {}, "window": {"window": 70}, "cap": {"cap": 2.0}, "sinks": {"sinks": torch.tensor([-1.0, 6.0])},
    "everything": {"window": 33, "cap": 0.7, "sinks": torch.tensor([-1.0, 6.0])},
}  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_products_of_several_blocks(kind: str, dtype: torch.dtype, kernel: Any) -> None:
    """More than two blocks of keys and queries, the last of each ragged; rows begin and end within a block."""
    for count in (1, 3):
        triton_on_cpu.compared(
            kernel, attention(300, 16, dtype, heads=2, groups=1, **KINDS[kind]), count, slice(37, 290)
        )


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    n=st.integers(1, 150), size=st.sampled_from([8, 16, 24, 80, 256]), heads=st.sampled_from([1, 2, 6]),
    each=st.sampled_from([1, 2]), prompts=st.integers(1, 2), count=st.sampled_from([1, 2, 17]),
    window=st.one_of(st.none(), st.integers(1, 200)), cap=st.sampled_from([None, 1e-3, 0.3, 30.0, 1e6]),
    sunk=st.booleans(), ends=st.tuples(st.floats(0, 1), st.floats(0, 1)), strength=st.sampled_from([0.1, 1.0, 4.0]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]), seed=st.integers(0, 99),
)  # fmt: skip
@example(1, 8, 1, 1, 1, 1, 1, None, True, (0, 1), 1.0, torch.float32, 0)
@example(128, 8, 2, 2, 1, 17, 128, None, False, (0, 1), 1.0, torch.bfloat16, 0)
@example(129, 8, 2, 1, 2, 1, 200, 1e6, False, (0.99, 1), 1.0, torch.bfloat16, 0)
@example(20, 8, 6, 2, 1, 1, None, None, False, (0, 1), 1.0, torch.float32, 0)
def test_products_of_any_shape(
    kernel: Any, n: int, size: int, heads: int, each: int, prompts: int, count: int, window: int | None,
    cap: float | None, sunk: bool, ends: tuple[float, float], strength: float, dtype: torch.dtype, seed: int,
) -> None:  # fmt: skip
    assume(heads % each == 0)
    sinks = torch.randn(heads, generator=torch.Generator().manual_seed(seed)) if sunk else None
    one = attention(
        n, size, dtype, heads=heads, groups=heads // each, prompts=prompts, strength=strength, seed=seed,
        window=window, cap=cap, sinks=sinks,
    )  # fmt: skip
    start, stop = sorted(round(n * end) for end in ends)
    triton_on_cpu.compared(kernel, one, count, slice(start, stop), seed)


@pytest.mark.parametrize("window", [None, 1, 40])
def test_equal_keys_get_equal_weights(window: int | None, kernel: Any) -> None:
    """The closed form 1 / min(j + 1, w), here through sums of rows that share nothing with the kernel."""
    one = attention(200, 16, window=window)
    one = replace(one, keys=one.keys[:, :, :1].expand(-1, -1, 200, -1))
    row = torch.rand(1, 1, 1, 200, dtype=torch.float64)
    found = kernel.pushed_by_head(one, row.expand(1, 1, 4, 200), slice(0, 200))
    torch.testing.assert_close(found, Uniform(window).pushed(row).expand(1, 1, 4, 200), rtol=1e-6, atol=0)


def test_sums_of_many_blocks_keep_their_digits(kernel: Any) -> None:
    """A large number and many small ones, each of which float32 would drop; queries of zero see all keys alike."""
    n = 1200
    one = Attention(torch.zeros(1, 1, n, 16), torch.zeros(1, 1, n, 16), 1.0)
    row = torch.full((1, 1, 1, n), 1e-3, dtype=torch.float64)
    row[..., 0], row[..., 1:128] = 3e4, 0.0  # within a block, sums are in float32
    found = kernel.pushed_by_head(one, row, slice(0, n))[0, 0, 0, 0]
    expected = (row[0, 0, 0] / torch.arange(1, n + 1)).sum()
    torch.testing.assert_close(found - 3e4, expected - 3e4, rtol=1e-4, atol=0)


def test_a_row_outside_its_slice_is_not_read(kernel: Any) -> None:
    one, rows = attention(90, 16), torch.full((1, 1, 4, 90), torch.nan, dtype=torch.float64)
    assert not kernel.pushed_by_head(one, rows, slice(0, 0)).any()
    rows[..., 40:50] = 1.0
    found = kernel.pushed_by_head(one, rows, slice(40, 50))
    torch.testing.assert_close(found.sum(dim=-1), torch.full((1, 1, 4), 10.0, dtype=torch.float64), rtol=1e-6, atol=0)


def test_the_cap_keeps_the_digits_of_small_logits() -> None:
    """1 − 2/(e²ˣ + 1) alone loses all digits of a logit that is 1e-7 of its cap."""
    scores = triton_on_cpu.imported()._scores
    x = torch.cat([torch.logspace(-12, 2, 4097), torch.linspace(0.2, 0.3, 4095)]).view(-1, 16)
    x = torch.cat([x, -x])
    query, key = torch.zeros(len(x), 1), torch.zeros(1, 16)
    unit = torch.eye(16)
    found = scores(x, unit, query, key, 1, 1.0, 1.0, True, False)
    torch.testing.assert_close(found.double(), x.double().tanh(), rtol=5e-7, atol=0)
    ends = scores(torch.full((16, 16), 1e30), unit, query[:16], key, 1, 1.0, 1.0, True, False)
    assert torch.equal(ends, torch.ones(16, 16))


def test_the_probe_finds_the_kernel_right(kernel: Any) -> None:
    probe = partial(row_products._agrees, kernel.pushed_by_head, torch.device("cpu"), torch.bfloat16, 16)
    assert all(probe(*kind) for kind in ((False, False, False), (True, True, True)))


MOST_SHARED = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}  # KiB of a block of threads: CUDA programming guide


@pytest.mark.skipif(not triton_on_cpu.INTERPRETED, reason=triton_on_cpu.NEEDS_TRITON)
@pytest.mark.parametrize("capability", MOST_SHARED)
def test_it_compiles_for_gpus_without_spilling(capability: int) -> None:
    """For the shapes of Gemma-2B, -7B and -3-4B (head size 256), of other 7B models (128), and float32 (64)."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment.pop("TRITON_INTERPRET")
    command = [sys.executable, "-m", "tests.theory.compiled", str(capability)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    programs = json.loads(done.stdout.splitlines()[-1])
    assert len(programs) == 18  # two kernels, one of them for one row and for several
    for program in programs:
        assert program["programs"] == 1, "the program that is probed has to be the one that is used"
        assert program["stack"] == 0, program
        assert program["shared"] <= MOST_SHARED[capability] * 1024, program
        assert program["tensor cores"] == (program["dtype"] != "float32"), program
