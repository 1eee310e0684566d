"""Run a model without computing whole attention patterns.

The bridge computes every pattern, so that hooks can act on it. If no hook does, its blocks pass queries, keys and
values to the plain model's attention modules instead, and these to a function of ours, which uses a fused kernel or
blocks of rows. Everything else is unchanged, including the hook points outside attention.

This is tested at the first use of a model, on a short prompt: logits, residual streams and patterns must equal those of
the bridge. Each hook point must take effect, which is tested at its first use. The mask is the one that the plain model
requests for the length of the pass.
"""

import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.errors import SquashlensError, UnsoundModelError
from squashlens.model.agreement import agree
from squashlens.model.anatomy import (
    dtype_of,
    last_logits,
    n_blocks,
    pattern_site,
    residual_sites,
)
from squashlens.model.applied import ineffective_points, probe_ids
from squashlens.model.hooking.attached import attached
from squashlens.model.hooking.hook import Hook
from squashlens.model.hooking.standing import standing, without_ambient
from squashlens.model.layout import layout_of
from squashlens.model.native import is_native
from squashlens.model.proof import opened, proof_of
from squashlens.run.fused import Kind, attend, differentiable, is_fused
from squashlens.theory.attention import Attention

NAME = "squashlens"  # under which the attention function is registered
SHAKEN = 2.0  # of the difference that one unit in the last place makes: the most by which two ways to attend may differ
FAILURES = (
    RuntimeError,
    TypeError,
    ValueError,
    AttributeError,
    KeyError,
    NotImplementedError,
)
AttentionObserver = Callable[[int, Attention], None]


@dataclass(frozen=True)
class _Stream:
    """What the attention function needs to know about the current run."""

    block_of: dict[int, int]
    on_attention: AttentionObserver | None
    frozen: bool
    reached: slice | None
    kinds: set[tuple[Kind, int | None]] = field(default_factory=set)


_stream: "ContextVar[_Stream | None]" = ContextVar("stream", default=None)


@dataclass(frozen=True)
class _Window:
    """The mask of a run: every query sees itself and earlier keys, within the window; `native` for a longer prompt."""

    size: int | None
    native: int | None = None


@dataclass(frozen=True)
class _Proof:
    """Why a model cannot be run without patterns, or which points fire then, and, where asked, take effect."""

    reason: str | None = None
    fires: frozenset[str] = frozenset()
    effective: dict[str, bool] = field(default_factory=dict)
    kinds: Iterable[tuple[Kind, int | None]] = ()


_written: "ContextVar[str | None]" = ContextVar("written", default=None)


def why_not_streamed(model: Bridge, sites: Iterable[str] = ()) -> str | None:
    """Why the model cannot be run without patterns while `sites` are read; `None` if it can."""
    if _written.get() is not None:
        return _written.get()
    if is_native(model):
        return "its attention is not that of transformers"
    # A bridge may have a weight twice; if only one is edited, the two ways to run it differ.
    with opened(model) as known:
        proof = known.once("streamed", lambda: _prove(model))
        points = layout_of(model).points
        if proof.reason is not None:
            return proof.reason
        read = [points[site].name or site for site in sites if site in points]
        hooks = standing(model)
        on_points = [hook.point for hook in hooks if hook.point is not None]
        _test_effect(model, proof, [*on_points, *read])
        blind = [name for name in (*on_points, *read) if not proof.effective.get(name)]
        if any(" (torch)" in hook.place for hook in hooks):
            return "a PyTorch hook is on a module"
        return f"a hook is at {blind[0]}" if blind else None


def _test_effect(model: Bridge, proof: _Proof, names: Iterable[str]) -> None:
    """Find out where edits take effect; one point of a block at a time, since another could hide that it has none."""
    new = [
        name
        for name in dict.fromkeys(names)
        if name in proof.fires and name not in proof.effective
    ]
    groups: list[
        dict[str, str]
    ] = []  # point by block, or by part of the model outside blocks
    for name in new:
        near = ".".join(name.split(".")[: 2 if name.startswith("blocks.") else 1])
        group = next((group for group in groups if near not in group), None)
        if group is None:
            groups.append(group := {})
        group[near] = name
    for group in groups:
        try:
            with without_ambient(model), streamed(model):
                without = ineffective_points(model, list(group.values()))
        except torch.OutOfMemoryError:
            raise
        except FAILURES:  # a component that fails after an edit
            without = list(group.values())
        proof.effective.update({name: name not in without for name in group.values()})


def implementation(
    model: Bridge,
    sites: Iterable[str] = (),
    n: int = 0,
    differentiated: bool = False,
    planned: str = "",
) -> str:
    """How attention, or its derivative, is computed for n tokens while `sites` are watched, for the provenance.

    A fused kernel may have failed since `planned` was the way.
    """
    reason = why_not_streamed(model, sites)
    if reason is not None:
        return f"eager, since {reason}"
    kinds = proof_of(model).once("streamed", lambda: _prove(model)).kinds
    changed = partial(replace, differentiated=differentiated)
    ways = {
        is_fused(changed(kind, windowed=(window or n) < n), n) for kind, window in kinds
    }
    way = " and ".join(
        name for name, fused in (("fused", True), ("streamed", False)) if fused in ways
    )
    return way if planned in ("", way) else f"{planned}, then {way}"


@contextmanager
def patterns_written(reason: str) -> Iterator[None]:
    """Compute every pattern in the passes of the body, for numbers that are compared bit by bit."""
    token = _written.set(reason)
    try:
        yield
    finally:
        _written.reset(token)


@contextmanager
def streamed(
    model: Bridge,
    on_attention: AttentionObserver | None = None,
    *,
    frozen: bool = False,
    reached: slice | None = None,
) -> Iterator[set[tuple[Kind, int | None]]]:
    """Run the forward passes of the body without patterns, and restore the model afterwards.

    `on_attention` gets block and `Attention`; `frozen` drops the softmax's derivative; `reached` says at which
    positions cotangents of attention are not zero. It yields the kinds of attention that are seen, with their windows.
    """
    from transformer_lens.model_bridge.generalized_components.attention import (
        AttentionBridge,
    )
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    with opened(model):  # first, since it computes the stamp before anything is changed
        ALL_ATTENTION_FUNCTIONS.register(NAME, _attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, _window_of)
        before = [
            (c, c._attn_implementation)
            for c in layout_of(model).configs
            if hasattr(c, "_attn_implementation")
        ]
        sites = [block.attn for block in model.blocks]
        block_of = {
            id(attn.original_component): number for number, attn in enumerate(sites)
        }
        replaced = [(vars(attn), vars(attn).get("forward")) for attn in sites]
        token = _stream.set(stream := _Stream(block_of, on_attention, frozen, reached))
        try:
            for config, _ in before:
                config._attn_implementation = NAME
            for attn in (
                sites
            ):  # not setattr: the bridge passes attributes on to the module it wraps
                attn.__dict__["forward"] = types.MethodType(
                    AttentionBridge.forward, attn
                )
            yield stream.kinds
        finally:
            for own, earlier in replaced:
                own.pop("forward", None)
                if earlier is not None:
                    own["forward"] = earlier
            for config, implementation in before:
                config._attn_implementation = implementation
            _stream.reset(token)


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention function for Hugging Face models: (prompt, head, position, value) to (prompt, position, …)."""
    stream = _stream.get()
    if stream is None or id(module) not in stream.block_of:
        raise UnsoundModelError(
            "The attention of another model was called during this run.",
            "Run one model at a time.",
        )
    windowed = isinstance(attention_mask, _Window)
    if position_bias is not None or not (
        windowed or isinstance(attention_mask, Tensor)
    ):
        raise UnsoundModelError(
            "This attention has an unknown kind of mask.", "Compute the patterns."
        )
    attention = Attention(
        query,
        key,
        query.shape[-1] ** -0.5 if scaling is None else scaling,
        softcap,
        attention_mask.size if windowed else None,
        s_aux,
        None if windowed else attention_mask,
    )
    stream.kinds.add(
        (Kind.of(attention, value), attention_mask.native if windowed else None)
    )
    needed = torch.is_grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad
    )
    if needed:
        found = differentiable(attention, value, stream.frozen, stream.reached)
    else:
        found, attention = attend(attention, value)
    if stream.on_attention is not None:
        stream.on_attention(stream.block_of[id(module)], attention)
    return found.transpose(1, 2).contiguous(), None


def _window_of(
    q_length: int,
    kv_length: int,
    mask_function: Callable[..., Any],
    q_offset: int = 0,
    kv_offset: int = 0,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    device: Any = "cpu",
    **others: Any,
) -> _Window:
    """The mask that a model requests, as a window; raises an error for any other mask."""
    if attention_mask is not None and not bool(attention_mask.all()):
        raise UnsoundModelError("Padding needs attention patterns.", "Leave it out.")
    if q_offset or kv_offset or q_length != kv_length:
        raise UnsoundModelError(
            "A cache without its own mask needs attention patterns.",
            "Compute the patterns.",
        )
    window = None if local_size is None or local_size >= kv_length else int(local_size)
    place = torch.arange(q_length, device=device)
    edges = [(place, place, True), (place[:-1], place[1:], False)]
    if window is None:
        edges.append((place, torch.zeros_like(place), True))
    else:
        edges.append((place[window - 1 :], place[: q_length - window + 1], True))
        edges.append((place[window:], place[: q_length - window], False))
    zero = torch.zeros((), dtype=torch.long, device=device)
    wrong = torch.zeros(
        (), dtype=torch.bool, device=device
    )  # read once, since a device has to be waited for
    for queries, keys, seen in edges:
        wrong |= (
            torch.as_tensor(mask_function(zero, zero, queries, keys), device=device)
            != seen
        ).any()
    if bool(wrong):
        raise UnsoundModelError(
            "This model's mask is neither causal nor a sliding window.",
            "Compute the patterns.",
        )
    return _Window(window, local_size)


def _prove(model: Bridge) -> _Proof:
    ids, seen = probe_ids(model), {}
    try:
        with without_ambient(model):
            eager = _everything(model, ids)
            with streamed(model, seen.__setitem__) as kinds:
                found = _everything(model, ids)
    except torch.OutOfMemoryError:
        raise
    except SquashlensError as error:
        cause = error.cause.rstrip(".")
        return _Proof(
            reason=f"its attention cannot be computed without patterns ({cause})"
        )
    except FAILURES:
        # Python's words for what an architecture does, such as to add position biases to the mask, explain nothing.
        return _Proof(
            reason="its architecture computes attention or its mask in a way of its own, as with ALiBi"
        )
    fires = [
        name
        for name, value in found.items()
        if name in eager and value.shape == eager[name].shape
    ]
    compared = ["logits"]
    for site in residual_sites(model):
        name = model.hook_dict[site].name or site
        if name not in fires:
            return _Proof(reason=f"{site} does not fire")
        compared.append(name)
    for block in range(n_blocks(model)):
        if block not in seen:
            return _Proof(reason=f"block {block} attends in a way of its own")
        weights = (
            seen[block]
            .weights(slice(0, ids.shape[1]), slice(0, ids.shape[1]))[0]
            .flatten(1, 2)
        )
        found[pattern_site(block)] = weights
        compared.append(pattern_site(block))
    differing = [
        name
        for name in compared
        if not agree(found[name], eager[name], dtype_of(model))
    ]
    if differing and dtype_of(model).itemsize < 4:
        differing = _beyond_rounding(model, ids, eager, found, differing)
    if differing:
        return _Proof(reason=f"{differing[0]} comes out differently")
    return _Proof(fires=frozenset(fires), kinds=kinds)


def _beyond_rounding(
    model: Bridge,
    ids: Tensor,
    eager: Mapping[str, Tensor],
    found: Mapping[str, Tensor],
    names: Sequence[str],
) -> list[str]:
    """Those of `names` where `found` differs from `eager` by more than `SHAKEN` times what rounding alone does there.

    In half precision rounding grows with the number of blocks, and sharp attention multiplies it, so that no constant
    tolerance holds. It is measured: the stream that enters each block is moved by one unit in the last place, in
    random directions. Computing attention in another way made 0.1 to 0.7 of that difference.
    """
    generator = torch.Generator().manual_seed(0)

    def shake(stream: Tensor) -> Tensor:
        signs = 2 * torch.randint(0, 2, stream.shape, generator=generator) - 1
        return stream * (
            1 + torch.finfo(stream.dtype).eps * signs.to(stream.device, stream.dtype)
        )

    entering = (
        Hook("shake", site, shake) for site in residual_sites(model)[: n_blocks(model)]
    )
    with without_ambient(model), attached(model, *entering):
        shaken = _everything(model, ids)

    def differs(name: str) -> bool:
        difference = (found[name] - eager[name]).abs().max()
        return not bool(
            difference <= SHAKEN * (shaken[name] - eager[name]).abs().max()
        )  # NaN differs

    return [name for name in names if differs(name)]


def _everything(model: Bridge, ids: Tensor) -> dict[str, Tensor]:
    """The tensor at every hook point, and the last logits."""
    seen: dict[str, Tensor] = {}
    readers = (
        Hook("look", name, partial(_keep, seen, name))
        for name in layout_of(model).distinct
    )
    with torch.no_grad(), attached(model, *readers), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logits = model(ids, use_cache=False, **last_logits(model))
    return seen | {"logits": logits}


def _keep(seen: dict[str, Tensor], name: str, value: Any) -> None:
    if isinstance(value, Tensor) and value.is_floating_point():
        seen[name] = value.detach().clone()
