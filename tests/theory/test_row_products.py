"""When the kernel for row products is used: where it supports the attention and was found right on the device."""

import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from squashlens.theory import row_products
from squashlens.theory.attention import Attention
from squashlens.theory.row_products import LENGTH, kernel_of

N = 11


def forget() -> None:
    row_products._imported.cache_clear()
    row_products._agrees.cache_clear()


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    forget()
    yield
    forget()


class Fake:
    """A kernel that multiplies by blocks of rows, and remembers for how many tokens; wrong where it is told to be."""

    def __init__(self, wrong: Any = lambda attention, found: found) -> None:
        self.wrong, self.lengths = wrong, list[int]()

    def __call__(self, attention: Attention, rows: Tensor, within: slice) -> Tensor:
        self.lengths.append(attention.queries.shape[2])
        return self.wrong(attention, attention.pushed_in_blocks(rows, within))


def on_the_cpu(monkeypatch: pytest.MonkeyPatch, kernel: Any) -> None:
    """Take the CPU for a device with this kernel."""
    monkeypatch.setattr(row_products, "DEVICES", ("cpu",))
    monkeypatch.setattr(row_products, "_imported", lambda: kernel)


def attention(seed: int = 0, **options: Any) -> Attention:
    generator = torch.Generator().manual_seed(seed)
    return Attention(
        torch.randn(1, 4, N, 8, generator=generator), torch.randn(1, 2, N, 8, generator=generator), 0.3, **options
    )


def rows() -> Tensor:
    return torch.rand(1, 1, N, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_a_kernel_is_tested_once_for_each_kind_and_then_used(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Fake()
    on_the_cpu(monkeypatch, kernel)
    kinds = [attention(), attention(window=3), attention(cap=2.0), attention(sinks=torch.ones(4))]
    for each in (*kinds, replace(kinds[0], queries=kinds[0].queries.half(), keys=kinds[0].keys.half())):
        kernel.lengths.clear()
        plain = each.pushed_in_blocks(rows().expand(1, 1, 4, N), slice(0, N)).mean(dim=2)
        torch.testing.assert_close(each.pushed(rows(), slice(0, N)), plain, rtol=0, atol=0)
        assert kernel.lengths == [LENGTH, LENGTH, N]  # one row and several
        each.pushed(rows())
        assert kernel.lengths[3:] == [N]


def test_what_a_kernel_does_not_support_is_left_to_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    one, kernel = attention(), Fake()
    monkeypatch.setattr(row_products, "_imported", lambda: kernel)
    assert kernel_of(one) is None  # on the CPU
    on_the_cpu(monkeypatch, kernel)
    assert kernel_of(one) is not None
    assert kernel_of(one.double()) is None
    assert kernel_of(replace(one, mask=torch.zeros(1, 1, N, N))) is None
    assert kernel_of(replace(one, queries=one.queries[:, :, 1:])) is None
    assert kernel_of(replace(one, keys=one.keys.half())) is None
    graph = replace(one, queries=one.queries.clone().requires_grad_())
    assert kernel_of(graph) is None
    with torch.no_grad():
        assert kernel_of(graph) is not None
    differentiated = rows().requires_grad_()
    one.pushed(differentiated, slice(0, N)).sum().backward()
    assert differentiated.grad is not None
    assert N not in kernel.lengths


def nan(attention: Attention, found: Tensor) -> Tensor:
    return torch.where(torch.arange(found.shape[-1]) == 8, torch.nan, found)


def raises(attention: Attention, found: Tensor) -> Tensor:
    raise RuntimeError("out of resource: shared memory\nand more")


def several_wrong(attention: Attention, found: Tensor) -> Tensor:
    return found if len(found) == 1 else found.flip(0)


WRONG: dict[str, tuple[Any, str]] = {
    "a little": (lambda attention, found: found * (1 + 5e-5), "differs by"),
    "in its smallest entry": (lambda attention, found: found + 1e-3 * (found == found[found > 0].min()), "differs by"),
    "where rows reach nothing": (lambda attention, found: found + 1e-9 * (found == 0), "differs by"),
    "for several rows": (several_wrong, "differs by"),
    "nan": (nan, "differs by nan"),
    "an error": (raises, "RuntimeError: out of resource: shared memory. "),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_kernel_is_not_used_and_a_warning_says_so_once(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, told = WRONG[fault]
    kernel = Fake(wrong)
    on_the_cpu(monkeypatch, kernel)
    one = attention()
    with pytest.warns(UserWarning, match=told) as found:
        pushed = one.pushed(rows(), slice(0, N))
    assert "cpu (float32, head size 8)" in str(found[0].message)
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = one.pushed(rows(), slice(0, N))
    plain = one.pushed_in_blocks(rows().expand(1, 1, 4, N), slice(0, N)).mean(dim=2)
    assert torch.equal(pushed, plain)
    assert torch.equal(again, plain)
    assert N not in kernel.lengths


def test_without_triton_blocks_are_used_and_a_warning_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_products, "DEVICES", ("cpu",))
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "squashlens.theory.row_kernel", raising=False)
    with pytest.warns(UserWarning, match=r"Triton cannot be imported \(import of triton halted") as found:
        assert [kernel_of(attention(window=window)) for window in (None, 3)] == [None, None]
    assert len(found) == 1


def test_a_device_without_memory_is_not_taken_for_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(attention: Attention, found: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("full")

    on_the_cpu(monkeypatch, Fake(full))
    with pytest.raises(torch.OutOfMemoryError):
        kernel_of(attention())


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("dtype", "size", "options"),
    [(torch.bfloat16, 256, {}), (torch.bfloat16, 128, {"window": 1024}), (torch.float32, 64, {}),
     (torch.float16, 80, {"window": 1024, "cap": 5.0, "sinks": torch.linspace(-2, 5, 8)})], ids=str,
)  # fmt: skip
def test_the_kernel_on_a_gpu(dtype: torch.dtype, size: int, options: dict[str, Any]) -> None:
    """It compiles there, passes its probe, and is used; 3,001 tokens, and positions laid out before heads."""
    torch.manual_seed(0)
    on = {name: value.cuda() if isinstance(value, Tensor) else value for name, value in options.items()}
    queries, keys = (torch.randn(1, 3001, heads, size).cuda().to(dtype).transpose(1, 2) for heads in (8, 4))
    one = Attention(queries, keys, 2 * size**-0.5, **on)
    kernel = kernel_of(one)
    assert kernel is not None
    for count in (1, 20):
        rows = torch.rand(count, 1, 8, 3001, dtype=torch.float64).cuda()
        found, expected = kernel(one, rows, slice(5, 2999)), one.double().pushed_in_blocks(rows, slice(5, 2999))
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=0)
        assert torch.equal(found, kernel(one, rows, slice(5, 2999)))  # the order of every sum is fixed


@pytest.mark.cuda
def test_the_kernel_on_a_gpu_at_32768_tokens() -> None:
    """The product of the last block's rows is that of blocks of rows, and each row's weights sum to 1."""
    n = 32_768
    queries, keys = (torch.randn(1, heads, n, 256, device="cuda", dtype=torch.bfloat16) for heads in (16, 16))
    one = Attention(queries, keys, 1 / 16)
    row = torch.zeros(1, 1, 16, n, dtype=torch.float64, device="cuda")
    row[..., n - 300 :] = 1.0
    kernel = kernel_of(one)
    assert kernel is not None
    found = kernel(one, row, slice(n - 300, n))
    torch.testing.assert_close(found, one.pushed_in_blocks(row, slice(n - 300, n)), rtol=1e-4, atol=1e-9)
    everywhere = kernel(one, torch.ones_like(row), slice(0, n))
    torch.testing.assert_close(
        everywhere.sum(dim=-1), torch.full((1, 1, 16), float(n)).double().cuda(), rtol=1e-5, atol=0
    )
