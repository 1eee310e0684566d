"""Attention by fused kernels, with the logsumexp of each row; a row times the pattern, without the pattern.

With ``lse_j = log Σ_k exp s_jk`` of the logits s, which a fused forward pass knows, and a row r ≥ 0,

    log (r A)_k = log Σ_j exp(s_jk + log r_j − lse_j)

is the logsumexp of an attention in which queries and keys have exchanged places. No product with values enters, so that
weights are never rounded to half precision.

PyTorch's flash attention computes blocks without window and cap, and its flex_attention all others and the exchanged
attention; its logsumexp needs PyTorch 2.9. On the CPU flex_attention runs uncompiled, for tests.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

import torch
from einops import reduce, repeat
from jaxtyping import Float
from torch import Tensor

BLOCK = 128  # flex_attention's own block of its mask; others, set by hand, were 20 times slower
FLOOR = 1e-300  # in place of zeros, which have no logarithm
GRAPHS = 64  # compiled at most: two for each number of heads, with and without cap, for one prompt and for several
UNUSED = 16  # columns of the values of an attention of which only the logsumexp is used: the fewest that kernels take


def is_flash(width: int, value_width: int, windowed: bool, cap: float | None) -> bool:
    """Whether PyTorch's flash attention computes heads of this width, with values of `value_width` coordinates."""
    return (
        not windowed
        and cap is None
        and width == value_width
        and width % 8 == 0
        and width <= 256
    )


def attend_with_lse(
    queries: Float[Tensor, "prompt head query dot"],
    keys: Float[Tensor, "prompt group key dot"],
    values: Float[Tensor, "prompt group key value"],
    scale: float,
    window: int | None = None,
    cap: float | None = None,
) -> tuple[
    Float[Tensor, "prompt head query value"], Float[Tensor, "prompt head query"]
]:
    """The outputs ``Σ_k α_jk w_k`` of causal attention, and the logsumexp of each row's logits, at least in float32."""
    n, width = queries.shape[2:]
    if is_flash(width, values.shape[-1], window is not None, cap):
        name = f"_scaled_dot_product_flash_attention{'_for_cpu' if queries.device.type == 'cpu' else ''}"
        spread = _for_each_head(queries, keys, values)
        output, lse, *_ = getattr(torch.ops.aten, name)(
            queries, *spread, 0.0, True, scale=scale
        )
        return output, lse
    mask = _block_mask(n, n, 0, window, False, queries.device)
    return _flex(queries, keys, values, _logits(queries, cap), mask, scale)


def pulled_back(
    queries: Float[Tensor, "prompt head query dot"],
    keys: Float[Tensor, "prompt group key dot"],
    values: Float[Tensor, "prompt group key dot"],
    outputs: Float[Tensor, "prompt head query dot"],
    lse: Float[Tensor, "prompt head query"],
    cotangents: Float[Tensor, "cotangent prompt head query dot"],
    scale: float,
) -> tuple[
    Float[Tensor, "cotangent prompt head query dot"],
    Float[Tensor, "cotangent prompt group key dot"],
    Float[Tensor, "cotangent prompt group key dot"],
]:
    """Cotangents of the outputs pulled back to queries, keys and values, all in one batch of flash attention.

    Its kernels round weights and their derivatives to the dtype of the queries before each product. `outputs` and `lse`
    are those of the forward pass.
    """
    # The batch of the kernel is (cotangent prompt): everything else is repeated for each cotangent.
    many, prompts, n = *cotangents.shape[:2], queries.shape[2]
    parts = (queries, *_for_each_head(queries, keys, values), outputs, lse)
    batch = [
        cotangents.flatten(0, 1),
        *(x.expand(many, *x.shape).flatten(0, 1) for x in parts),
    ]
    if queries.device.type == "cpu":
        pull = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        found = pull(*batch, 0.0, True, scale=scale)
    else:
        pull, unused = (
            torch.ops.aten._scaled_dot_product_flash_attention_backward,
            lse.new_empty(0, dtype=torch.long),
        )
        batch[-1] = batch[-1].contiguous()  # it is read as if it were
        found = pull(*batch, None, None, n, n, 0.0, True, unused, unused, scale=scale)
    # Keys and values were repeated for the heads of their group, so their gradients are summed over these.
    to_queries, *rest = (part.unflatten(0, (many, prompts)) for part in found)
    to_keys, to_values = (
        reduce(x, "g p (c e) k v -> g p c k v", "sum", c=keys.shape[1]) for x in rest
    )
    return to_queries, to_keys, to_values


def row_times_pattern(
    row: Float[Tensor, "prompt query"],
    queries: Float[Tensor, "prompt head query dot"],
    keys: Float[Tensor, "prompt group key dot"],
    lse: Float[Tensor, "prompt head query"],
    scale: float,
    window: int | None = None,
    cap: float | None = None,
    ahead: int = 0,
) -> Float[Tensor, "prompt key"]:
    """``r A`` with A averaged over heads, in float64; NaN if an entry of r is negative.

    Query j is at the position of key ``j + ahead``. In the kernel, queries and keys have exchanged places: for each key
    it computes the logsumexp over queries of the module docstring, with the bias log r_j − lse_j. Of the values, only
    their width matters.
    """
    largest = row.amax(dim=-1, keepdim=True).clamp(
        min=FLOOR
    )  # so that float32 has the digits of the logarithms
    share = (row / largest).double()
    logs = torch.where(share == 0, FLOOR, share).log().to(lse.dtype)
    # (prompt, head, key, dot). Not the heads of a group as further queries of its keys: few blocks would run at once.
    (spread,) = _for_each_head(queries, keys)
    mask = _block_mask(
        keys.shape[2], queries.shape[2], ahead, window, True, keys.device
    )
    logits = _logits(queries, cap, _own(logs[:, None] - lse))
    _, sums = _flex(spread, queries, queries[..., :UNUSED], logits, mask, scale)
    return sums.double().exp().mean(dim=1) * largest


def _for_each_head(queries: Tensor, *parts: Tensor) -> list[Tensor]:
    """Keys or values once for each query head of their group."""
    return [
        repeat(x, "p c k v -> p (c e) k v", e=queries.shape[1] // x.shape[1])
        for x in parts
    ]


@contextmanager
def or_else(failed: Callable[[str], None]) -> Iterator[None]:
    """Run fused kernels in a ``with`` block. If they fail, `failed` is called with the reason, and what follows is run.

    An error of memory is raised.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever compilers raise
        failed(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}")


def _logits(
    queries: Tensor, cap: float | None, bias: Tensor | None = None
) -> Callable[..., Tensor]:
    """The `score_mod` of flex_attention, which changes each scaled product: it caps it, and adds the bias of its key.

    The bias is a tensor (prompt, head, key).
    """
    dtype = torch.promote_types(queries.dtype, torch.float32)
    most = None if cap is None else _number(cap, dtype, queries.device)

    def logit(
        product: Tensor, prompt: Tensor, head: Tensor, query: Tensor, key: Tensor
    ) -> Tensor:
        capped = product if most is None else most * torch.tanh(product / most)
        return capped if bias is None else capped + bias[prompt, head, key]

    return logit


@lru_cache(maxsize=64)
def _number(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as a tensor on the device: PyTorch 2.11 cannot compile one in a closure for a GPU, or does so anew."""
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=dtype, device=device)


@lru_cache(maxsize=64)
def _block_mask(
    length: int,
    others: int,
    ahead: int,
    window: int | None,
    exchanged: bool,
    device: torch.device,
) -> Any:
    """The mask of flex_attention by blocks of `BLOCK`: of `length` queries to `others` keys or, if `exchanged`, of
    `length` keys to `others` queries.

    Query j sees the `window` keys up to number ``j + ahead``, or all up to it. The mask is computed from the first and
    last position of each block: PyTorch's own function writes the whole mask, one gigabyte for 32,768 tokens.
    """
    from torch.nn.attention.flex_attention import BlockMask

    with torch.inference_mode(False), torch.device(device):
        sign, reach = -1 if exchanged else 1, window or ahead + max(length, others)
        direction, shift, seen = (
            torch.tensor(number, dtype=torch.int32) for number in (sign, ahead, reach)
        )

        def visible(prompt: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            behind = direction * (query - key) + shift
            return (behind >= 0) & (behind < seen)

        # (block, other block): the least and most that a key of the pair lies behind its query.
        first, last = _edges(length)
        start, end = _edges(others)
        differences = (
            sign * (first[:, None] - end) + ahead,
            sign * (last[:, None] - start) + ahead,
        )
        least, most = torch.minimum(*differences), torch.maximum(*differences)
        whole = (last - first == BLOCK - 1)[:, None] & (end - start == BLOCK - 1)
        # In a full pair every key is visible; in others the kernel calls `visible` for each.
        full = (least >= 0) & (most < reach) & whole
        partly = (most >= 0) & (least < reach) & ~full
        listed = [x for kind in (partly, full) for x in _listed(kind)]
        return BlockMask.from_kv_blocks(
            *listed, BLOCK_SIZE=BLOCK, mask_mod=visible, seq_lengths=(length, others)
        )


def _edges(length: int) -> tuple[Tensor, Tensor]:
    """The first and last index of each block."""
    first = torch.arange(0, length, BLOCK)
    return first, (first + BLOCK).clamp(max=length) - 1


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of each row are True, and the indices of all blocks of the row, those first."""
    order = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return _own(blocks.sum(dim=-1, dtype=torch.int32)[None, None]), _own(
        order.int()[None, None]
    )


def _flex(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    logits: Callable[..., Tensor],
    mask: Any,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """flex_attention with its logsumexp, compiled once for all lengths and windows where it is not on the CPU.

    `logits` and `mask` are from `_logits` and `_block_mask`.
    """
    from torch.nn.attention.flex_attention import AuxRequest

    flex = _kernel(queries.device.type != "cpu")
    factors, grouped = (
        (_own(x) for x in (queries, keys, values)),
        queries.shape[1] != keys.shape[1],
    )
    limit = torch._dynamo.config.patch(recompile_limit=GRAPHS)  # pyright: ignore[reportAttributeAccessIssue]
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        limit,
    ):  # one mode, since each is compiled for itself
        output, more = flex(
            *factors, logits, mask, scale, grouped, return_aux=AuxRequest(lse=True)
        )
    return output, more.lse


def _own(tensor: Tensor) -> Tensor:
    """The tensor, contiguous and no view of another one: for each other layout everything would be compiled again."""
    fits = tensor._base is None and tensor.is_contiguous()
    return tensor if fits else tensor.clone(memory_format=torch.contiguous_format)


@cache
def _kernel(compiled: bool) -> Callable[..., Any]:
    """flex_attention, compiled or as it is; made once."""
    from torch.nn.attention.flex_attention import flex_attention

    # As one graph, since then a failure to compile is an error: uncompiled it would write all logits.
    return (
        torch.compile(flex_attention, dynamic=True, fullgraph=True)
        if compiled
        else flex_attention
    )
