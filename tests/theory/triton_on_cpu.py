"""A stand-in for Triton that runs a kernel's programs one after the other with PyTorch on the CPU.

It has what `squashlens.theory.row_kernel` uses and nothing else. A load or a store outside a tensor raises an error,
and so does a second store to a place. Triton's own interpreter does neither, and multiplies bfloat16 as integers.
"""

import importlib
import importlib.util
import itertools
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from squashlens.theory import row_products
from squashlens.theory.attention import Attention

NEEDS_TRITON = "Triton is not installed, or TRITON_INTERPRET=1 is not set: make kernel"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton") is not None
WAYS = ["stand-in", pytest.param("Triton", marks=pytest.mark.skipif(not INTERPRETED, reason=NEEDS_TRITON))]


class Pointer:
    """A place in a contiguous tensor, or many."""

    def __init__(self, data: Tensor, at: Tensor, written: set[int]) -> None:
        self.data, self.at, self.written = data, at, written

    def __add__(self, offset: Any) -> "Pointer":
        return Pointer(self.data, self.at + offset, self.written)

    __radd__ = __add__


class Language:
    """`triton.language`. A number in a program is a tensor too, so that it has Triton's methods."""

    constexpr, int64, float32, float64 = Any, torch.int64, torch.float32, torch.float64
    exp, exp2, abs, where = torch.exp, torch.exp2, torch.abs, torch.where
    place: tuple[int, ...] = ()
    grid: tuple[int, ...] = ()

    def program_id(self, axis: int) -> Tensor:
        return torch.tensor(self.place[axis])

    def num_programs(self, axis: int) -> Tensor:
        return torch.tensor(self.grid[axis])

    def arange(self, start: int, end: int) -> Tensor:
        assert (end - start).bit_count() == 1, "Triton's blocks have a power of two as their size"
        return torch.arange(start, end)

    def load(self, pointer: Pointer, mask: Tensor | None = None, other: float = 0.0) -> Tensor:
        seen = torch.ones_like(pointer.at, dtype=torch.bool) if mask is None else mask.expand(pointer.at.shape)
        found = torch.full(pointer.at.shape, other, dtype=pointer.data.dtype)
        found[seen] = pointer.data[self.inside(pointer, seen)]
        return found

    def store(self, pointer: Pointer, value: Tensor, mask: Tensor) -> None:
        seen = mask.expand(pointer.at.shape)
        at = self.inside(pointer, seen)
        assert pointer.written.isdisjoint(at.tolist()), "two programs write to one place"
        pointer.written.update(at.tolist())
        pointer.data[at] = value.expand(pointer.at.shape)[seen].to(pointer.data.dtype)

    def inside(self, pointer: Pointer, seen: Tensor) -> Tensor:
        at = pointer.at[seen]
        assert ((at >= 0) & (at < len(pointer.data))).all(), "a place outside the tensor"
        return at

    def dot(self, left: Tensor, right: Tensor, input_precision: str) -> Tensor:
        assert min(*left.shape, *right.shape) >= 16, "Triton multiplies blocks of at least 16"
        assert left.dtype == right.dtype
        assert input_precision == "ieee", "tensor cores would round float32"
        return left.float() @ right.float()

    def sum(self, block: Tensor, axis: int) -> Tensor:
        return block.sum(axis)

    def max(self, block: Tensor, axis: int) -> Tensor:
        return block.amax(axis)

    def zeros(self, shape: list[int], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def full(self, shape: list[int], value: float, dtype: torch.dtype) -> Tensor:
        return torch.full(shape, value, dtype=dtype)

    def minimum(self, left: Any, right: Any) -> Tensor:
        return torch.minimum(torch.as_tensor(left), torch.as_tensor(right))

    def maximum(self, left: Any, right: Any) -> Tensor:
        return torch.maximum(torch.as_tensor(left), torch.as_tensor(right))

    def cast(self, value: Any, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(value, dtype=dtype)

    def range(self, start: Any, end: Any, step: int) -> range:
        return range(int(start), int(end), step)

    def static_range(self, end: int) -> range:
        return range(end)


class Kernel:
    """A function under `triton.jit`: called by another one, or started on a grid of programs."""

    def __init__(self, function: Callable[..., Any], language: Language) -> None:
        self.function, self.language = function, language

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def start(*args: Any, num_warps: int, num_stages: int, **kwargs: Any) -> None:
            given = [
                Pointer(a.view(-1), torch.tensor(0), set()) if isinstance(a, Tensor) else a for a in args
            ]  # a view, so that a tensor that is not contiguous raises an error
            self.language.grid = grid
            for place in itertools.product(*map(range, grid)):
                self.language.place = place
                self.function(*given, **kwargs)

        return start


def imported() -> ModuleType:
    """`squashlens.theory.row_kernel` with this module in place of Triton, which others that look for it do not see."""
    language = Language()

    def jit(function: Any = None, **_: Any) -> Any:
        return jit_with(function) if function is not None else jit_with

    def jit_with(function: Any) -> Kernel:
        return Kernel(function, language)

    triton: Any = ModuleType("triton")
    triton.jit, triton.language = jit, language
    triton.cdiv = lambda a, b: -(-a // b)
    triton.next_power_of_2 = lambda number: 1 << (number - 1).bit_length()
    assert row_products.__file__ is not None
    file = row_products.__file__.replace("row_products", "row_kernel")
    spec = importlib.util.spec_from_file_location("row_kernel_on_cpu", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setitem(sys.modules, "triton", triton)
        monkeypatch.setitem(sys.modules, "triton.language", language)
        spec.loader.exec_module(module)
    return module


def kernel(way: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`squashlens.theory.row_kernel`, run by the stand-in or by Triton's own interpreter."""
    if way == "stand-in":
        return imported()
    from triton.runtime import interpreter  # pyright: ignore[reportMissingImports]

    builder = interpreter.InterpreterBuilder
    multiply, kinds = builder.create_dot, (interpreter.tl.bfloat16, interpreter.tl.float32)

    def widened(part: Any) -> Any:
        wide = interpreter._convert_float(part.data, *kinds, None).view(np.float32)
        return interpreter.TensorHandle(wide, kinds[1])

    def dot(self: Any, left: Any, right: Any, *others: Any) -> Any:
        """The interpreter multiplies the bits of bfloat16 as integers."""
        left, right = (widened(part) if part.dtype.scalar == kinds[0] else part for part in (left, right))
        return multiply(self, left, right, *others)

    monkeypatch.setattr(builder, "create_dot", dot)
    return importlib.import_module("squashlens.theory.row_kernel")


def compared(kernel: Any, one: Attention, count: int, within: slice, seed: int = 0) -> None:
    """The kernel's products of several rows equal those of blocks of rows in float64, entry by entry."""
    prompts, heads, n, _ = one.queries.shape
    rows = torch.zeros(count, prompts, heads, n, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    rows[..., within] = torch.rand(rows[..., within].shape, generator=generator, dtype=torch.float64)
    expected = one.double().pushed_in_blocks(rows, within)
    found = kernel.pushed_by_head(one, rows, within)
    assert (found.dtype, found.shape) == (torch.float64, rows.shape)
    # A logit is rounded in proportion to the products that it is the sum of, and a weight by as much.
    torch.testing.assert_close(found, expected, rtol=2e-6 * (1 + one.largest_product()), atol=1e-30)
