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
TESTED = 830
REACH = 300
START = 260
SPREAD = 2.0  # standard deviation of its logits
# By how much an entry of a row may differ, of itself: a hundred times what float32 makes of such logits.
ROWS = 2e-4
# Where fused kernels are faster.
DEVICES = {"cuda"}
DTYPES = {torch.float16, torch.bfloat16}


@dataclass(frozen=True)
class Kind:
    """What a kernel depends on; one is understood that has no mask of its own, no sinks and no cached keys."""

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
    differentiated: bool

    @classmethod
    def of(
        cls, attention: Attention, values: Tensor, differentiated: bool = False
    ) -> "Kind":
        """What a kernel for this attention and these values depends on; `differentiated` if derivatives are needed."""
        _, heads, n, width = attention.queries.shape
        _, groups, n_keys, _ = attention.keys.shape
        # A cache has more keys than queries.
        is_plain = n == n_keys and attention.mask is None and attention.sinks is None
        return cls(
            device=attention.queries.device,
            dtype=attention.queries.dtype,
            heads=heads,
            groups=groups,
            width=width,
            value_width=values.shape[-1],
            scale=attention.scale,
            cap=attention.cap,
            windowed=attention.window is not None,
            understood=is_plain,
            differentiated=differentiated,
        )


_reasons: dict[Kind, str | None] = {}  # why tested kinds are not used; None if they are


def is_fused(kind: Kind, n: int) -> bool:
    """Whether attention of this kind runs in fused kernels for n tokens; derivatives only run in flash attention."""
    if not kind.understood or n <= theory.LONGEST:
        return False
    if kind.device.type not in DEVICES or kind.dtype not in DTYPES:
        return False
    if kind.differentiated and not is_flash(
        kind.width, kind.value_width, kind.windowed, kind.cap
    ):
        return False
    if kind not in _reasons:
        _judge(kind, _why_wrong(kind))
    return _reasons[kind] is None


def attend(
    attention: Attention,
    values: Tensor,
    *,
    differentiated: bool = False,
    frozen: bool = False,
    reached: slice | None = None,
) -> tuple[Tensor, Attention]:
    """The one place where it is chosen how to attend: in fused kernels, or in blocks of rows.

    It gives the outputs, with a derivative if `differentiated`, and the attention, with its logsumexp if it is at hand.
    `frozen` and `reached` are as in `streamed`.
    """
    kind = Kind.of(attention, values, differentiated)
    # Called with the reason if a fused kernel fails later.
    attention = replace(attention, failed=partial(_judge, kind))
    fused = is_fused(kind, attention.queries.shape[2])
    if differentiated:
        outputs = differentiable_attention(attention, values, frozen, reached, fused)
        return outputs, attention
    if fused:
        with or_else(attention.failed):
            outputs, lse = attend_with_lse(
                attention.queries,
                attention.keys,
                values,
                attention.scale,
                attention.window,
                attention.cap,
            )
            return outputs, replace(attention, lse=lse)
        # The kernel failed: blocks of rows take its place.
    return attention_output(attention, values), attention


def _judge(kind: Kind, reason: str | None) -> None:
    """Note why this kind is not used (None if it is), and tell the user of it."""
    _reasons[kind] = reason
    if reason is not None:
        what = "derivatives of heads" if kind.differentiated else "heads"
        remark(
            f"Fused attention is not used on {kind.device} for {what} of {kind.width} in {kind.dtype}, but blocks of "
            f"rows, which are slower and give the same numbers: {reason}."
        )


def _why_wrong(kind: Kind) -> str | None:
    """Why fused kernels must not be used; None if they gave the right numbers on random queries, keys and values."""
    generator = torch.Generator().manual_seed(0)

    def drawn(heads: int, width: int) -> Tensor:
        """Standard normal numbers (1, head, token, width)."""
        shape = 1, heads, TESTED, width
        numbers = torch.randn(shape, generator=generator, dtype=torch.float64)
        return numbers.to(kind.device, kind.dtype)

    queries = drawn(kind.heads, kind.width)
    queries = queries * (SPREAD / (abs(kind.scale) * kind.width**0.5))
    keys = drawn(kind.groups, kind.width)
    values = drawn(kind.groups, kind.value_width)
    # A factor for each query, zero before `START`; their products with the pattern's rows are summed.
    row = torch.rand(1, TESTED, generator=generator, dtype=torch.float64)
    row[:, :START] = 0
    cotangents = drawn(kind.heads, kind.value_width)[None]
    window = REACH if kind.windowed else None
    truth = Attention(queries.double(), keys.double(), kind.scale, kind.cap, window)
    errors: list[str] = []
    with torch.no_grad(), or_else(errors.append):
        outputs, lse = attend_with_lse(
            queries, keys, values, kind.scale, window, kind.cap
        )
        if kind.differentiated:
            pulled = pulled_back(
                queries, keys, values, outputs, lse, cotangents, kind.scale
            )
            expected = gradients(truth, values.double(), cotangents)
            for ours, theirs in zip(pulled, expected, strict=True):
                if theirs is None or not agree(ours, theirs, kind.dtype):
                    return "its derivatives are wrong"
            return None
        late = slice(START, None)
        row = row.to(kind.device)
        product = row_times_pattern(
            row[:, late],
            queries[:, :, late],
            keys,
            lse[:, :, late],
            kind.scale,
            window,
            kind.cap,
            START,
        )
        everything = slice(0, TESTED)
        # (prompt, group, head in group, query, key)
        weights, _ = truth.weights(everything, everything)
        expected_product = row @ weights.mean(dim=(1, 2))[0]
        off = (product / expected_product - 1).abs().max().item()
        if not off <= ROWS:  # NaN is wrong
            return f"the product of a row differs by {off:.1e}"
        expected = (weights @ values.double()[:, :, None]).flatten(1, 2)
        return None if agree(outputs, expected, kind.dtype) else "its outputs are wrong"
    return errors[0]  # the kernel raised an error, which `or_else` took
