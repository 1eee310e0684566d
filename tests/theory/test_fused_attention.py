"""Fused attention, uncompiled on the CPU, against patterns written out; its block masks; how often it compiles."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from squashlens.run.fused import Kind, _why_wrong
from squashlens.theory import attention as module
from squashlens.theory.attention import Attention
from squashlens.theory.fused_attention import _block_mask, attend_with_lse, is_flash
from tests.theory.test_attention import drawn, written

CASES: list[dict[str, Any]] = [
    {"n": 1, "heads": 1, "groups": 1},
    {"n": 37, "window": 2},
    {"n": 150, "groups": 1, "window": 60, "cap": 1.3},
    {"n": 20, "groups": 4, "cap": 0.5, "prompts": 1},
    {
        "n": 130,
        "groups": 1,
        "value_width": 8,
    },  # such heads PyTorch's flash attention takes
]


def fused(case: dict[str, Any], dtype: torch.dtype) -> tuple[Attention, Tensor, Tensor]:
    """Attention with its logsumexp, its outputs, and those of the pattern written out in float64."""
    attention, values = drawn(**case)
    parts = queries, keys, values = [
        x.detach().to(dtype) for x in (attention.queries, attention.keys, values)
    ]
    outputs, lse = attend_with_lse(
        queries, keys, values, attention.scale, attention.window, attention.cap
    )
    wide = replace(attention, queries=parts[0].double(), keys=parts[1].double())
    values = (
        parts[2]
        .double()
        .repeat_interleave(parts[0].shape[1] // parts[1].shape[1], dim=1)
    )
    return (
        replace(wide, queries=parts[0], keys=parts[1], lse=lse),
        outputs,
        written(wide) @ values,
    )


@pytest.mark.parametrize(
    ("dtype", "rows"), [(torch.float64, 1e-13), (torch.bfloat16, 5e-5)], ids=str
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_and_rows_equal_the_written_pattern(
    case: dict[str, Any],
    dtype: torch.dtype,
    rows: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        module, "LONGEST", 0
    )  # rows are multiplied by fused attention, however few they are
    attention, outputs, expected = fused(case, dtype)
    rounding = 1e-12 if dtype == torch.float64 else 0.02
    torch.testing.assert_close(outputs.double(), expected, rtol=rounding, atol=rounding)
    wide = replace(
        attention, queries=attention.queries.double(), keys=attention.keys.double()
    )
    pattern, n = written(wide).mean(dim=1), case["n"]
    row = 1e200 * torch.rand(3, len(pattern), n, dtype=torch.float64) ** 4
    for zero in (
        slice(0, 0),
        slice(0, n // 3),
        slice(n // 2 + 1, n),
    ):  # which keys the others see is known exactly
        row[..., zero] = 0
        product = torch.einsum("rpj,pji->rpi", row, pattern)
        torch.testing.assert_close(attention.pushed(row), product, rtol=rows, atol=0)
    assert attention.pushed(-row).isnan().any(), "a negative entry has no logarithm"


@pytest.mark.parametrize("window", [None, 200])
@pytest.mark.parametrize(
    ("keys", "queries", "ahead", "exchanged"),
    [
        (512, 512, 0, False),
        (300, 300, 0, False),
        (512, 512, 0, True),
        (500, 320, 180, True),
    ],
)
def test_blocks_are_those_of_the_whole_mask(
    keys: int, queries: int, ahead: int, exchanged: bool, window: int | None
) -> None:
    """PyTorch writes the mask out."""
    mask = _block_mask(keys, queries, ahead, window, exchanged, torch.device("cpu"))
    behind = torch.arange(keys)[:, None] - torch.arange(queries) - ahead
    visible = (-behind if exchanged else behind) >= 0
    visible &= behind.abs() < (window or keys)
    whole = flex.create_mask(mask.mask_mod, None, None, *mask.shape[-2:], device="cpu")[
        0, 0
    ]
    assert (whole == visible).all()
    truth = flex.create_block_mask(
        mask.mask_mod, None, None, *mask.shape[-2:], device="cpu"
    )
    assert mask.to_dense().equal(truth.to_dense())
    assert mask.full_kv_num_blocks.equal(truth.full_kv_num_blocks)


@pytest.mark.cuda
@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("cap", [None, 50.0])
@pytest.mark.parametrize(
    ("heads", "groups", "width", "dtype"),
    [
        (8, 1, 256, torch.bfloat16),
        (8, 1, 256, torch.float16),
        (8, 4, 256, torch.bfloat16),
        (16, 16, 256, torch.bfloat16),
        (32, 16, 128, torch.bfloat16),
    ],
)
def test_kernels_of_this_gpu_give_the_numbers(
    heads: int,
    groups: int,
    width: int,
    dtype: torch.dtype,
    cap: float | None,
    windowed: bool,
) -> None:
    """Heads of Gemma-2B, Gemma-3-4B, Gemma-7B and Gemma-3-27B; where one fails, blocks of rows are used.

    A dtype, heads and a cap take two graphs, whatever the window: compiling them is most of the time.
    """
    kind = Kind(
        torch.device("cuda:0"),
        dtype,
        heads,
        groups,
        width,
        width,
        width**-0.5,
        cap,
        windowed,
        True,
    )
    assert _why_wrong(kind) is None
    if is_flash(width, width, windowed, cap):
        assert _why_wrong(replace(kind, differentiated=True)) is None
