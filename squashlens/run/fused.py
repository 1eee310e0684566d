"""Whether attention runs in fused kernels: in half precision on a GPU, once they gave the right numbers there.

PyTorch compiles the kernels on the machine, and has had faulty ones. So each kind is tested at its first use on random
queries and keys: outputs, and a row times the pattern, must be those of the pattern written out in float64. A kind that
fails then or later runs in blocks of rows, with a warning. A prompt of at most one block of rows is not worth compiling
for.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from squashlens.model.agreement import agree
from squashlens.remarks import remark
from squashlens.theory import attention as theory
from squashlens.theory.attention import (
    Attention,
    attention_output,
    differentiable_attention,
    gradients,
)
from squashlens.theory.fused_attention import (
    attend_with_lse,
    is_flash,
    or_else,
    pulled_back,
    row_times_pattern,
)

# Tokens and the window of the test, and where its row begins: 7 blocks of queries and 5 of the row, the last ones
# ragged. No model has as many heads, so that what is compiled serves every number of blocks.
TESTED, REACH, START = 830, 300, 260
SPREAD = 2.0  # standard deviation of its logits
ROWS = 2e-4  # by which an entry of a row may differ, of itself: a hundred times what float32 makes of such logits

DEVICES, DTYPES = (
    {"cuda"},
    {torch.float16, torch.bfloat16},
)  # where fused kernels are faster
_reasons: "dict[Kind, str | None]" = {}  # why kinds that were tested must not be used; `None` if they may


@dataclass(frozen=True)
class Kind:
    """What a kernel depends on."""

    device: torch.device
    dtype: torch.dtype
    heads: int
    groups: int
    width: int
    value_width: int
    scale: float
    cap: float | None
    windowed: bool
    understood: bool
    differentiated: bool = False

    @classmethod
    def of(cls, attention: Attention, values: Tensor) -> "Kind":
        (_, heads, n, width), groups = attention.queries.shape, attention.keys.shape[1]
        understood = (
            attention.mask is None
            and attention.sinks is None
            and n == attention.keys.shape[2]
        )
        return cls(
            attention.queries.device,
            attention.queries.dtype,
            heads,
            groups,
            width,
            values.shape[-1],
            attention.scale,
            attention.cap,
            attention.window is not None,
            understood,
        )


def is_fused(kind: Kind, n: int) -> bool:
    """Whether attention of this kind runs in fused kernels for n tokens; derivatives only run in flash attention."""
    if kind.differentiated and not is_flash(
        kind.width, kind.value_width, kind.windowed, kind.cap
    ):
        return False
    if (
        not kind.understood
        or n <= theory.LONGEST
        or kind.device.type not in DEVICES
        or kind.dtype not in DTYPES
    ):
        return False
    if kind not in _reasons:
        _judge(kind, _why_wrong(kind))
    return _reasons[kind] is None


def differentiable(
    attention: Attention, values: Tensor, frozen: bool, reached: slice | None
) -> Tensor:
    """The outputs with their derivative."""
    kind = replace(Kind.of(attention, values), differentiated=True)
    attention = replace(attention, failed=partial(_judge, kind))
    return differentiable_attention(
        attention, values, frozen, reached, is_fused(kind, attention.queries.shape[2])
    )


def attend(attention: Attention, values: Tensor) -> tuple[Tensor, Attention]:
    """The outputs, and the attention with its logsumexp if fused kernels computed it."""
    kind = Kind.of(attention, values)
    if is_fused(kind, attention.queries.shape[2]):
        failed, parts = (
            partial(_judge, kind),
            (attention.queries, attention.keys, values),
        )
        with or_else(failed):
            found, lse = attend_with_lse(
                *parts, attention.scale, attention.window, attention.cap
            )
            return found, replace(attention, lse=lse, failed=failed)
    return attention_output(attention, values), attention


def _judge(kind: Kind, reason: str | None) -> None:
    _reasons[kind] = reason
    if reason is not None:
        remark(
            f"Fused attention is not used on {kind.device} for {'derivatives of ' if kind.differentiated else ''}"
            f"heads of {kind.width} in {kind.dtype}, but blocks of rows, which are slower and give the same numbers: "
            f"{reason}."
        )


def _why_wrong(kind: Kind) -> str | None:
    """Why fused kernels must not be used; `None` if they gave the right numbers."""
    generator, everything = torch.Generator().manual_seed(0), slice(0, TESTED)

    def drawn(heads: int, width: int) -> Tensor:
        numbers = torch.randn(
            1, heads, TESTED, width, generator=generator, dtype=torch.float64
        )
        return numbers.to(kind.device, kind.dtype)

    queries = drawn(kind.heads, kind.width) * (
        SPREAD / (abs(kind.scale) * kind.width**0.5)
    )
    keys, values = drawn(kind.groups, kind.width), drawn(kind.groups, kind.value_width)
    row = torch.rand(1, TESTED, generator=generator, dtype=torch.float64).to(
        kind.device
    )
    row[:, :START] = 0
    late = slice(START, None)
    fused = Attention(
        queries, keys, kind.scale, kind.cap, REACH if kind.windowed else None
    )
    written = replace(fused, queries=queries.double(), keys=keys.double())
    cotangents, errors = drawn(kind.heads, kind.value_width)[None], list[str]()
    with torch.no_grad(), or_else(errors.append):
        outputs, lse = attend_with_lse(
            queries, keys, values, kind.scale, fused.window, kind.cap
        )
        if kind.differentiated:
            pulled = pulled_back(
                queries, keys, values, outputs, lse, cotangents, kind.scale
            )
            truth = gradients(written, values.double(), cotangents)
            right = all(
                agree(x, y, kind.dtype)
                for x, y in zip(pulled, truth, strict=True)
                if y is not None
            )
            return None if right else "its derivatives are wrong"
        parts = row[:, late], queries[:, :, late], keys, lse[:, :, late]
        product = row_times_pattern(*parts, kind.scale, fused.window, kind.cap, START)
        weights, _ = written.weights(everything, everything)
        off = (product / (row @ weights.mean(dim=(1, 2))[0]) - 1).abs().max().item()
        if not off <= ROWS:  # NaN is wrong
            return f"the product of a row differs by {off:.1e}"
        right = agree(
            outputs, (weights @ values.double()[:, :, None]).flatten(1, 2), kind.dtype
        )
        return None if right else "its outputs are wrong"
    return errors[0]
