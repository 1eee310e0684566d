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
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.errors import FAILURES, SquashlensError, UnsoundModelError
from squashlens.model.agreement import agree
from squashlens.model.anatomy import (
    dtype_of,
    is_native,
    n_blocks,
    pattern_site,
    residual_sites,
)
from squashlens.model.applied import ineffective_points, probe_ids, run_probe
from squashlens.model.hooking.hook import Watcher, watchers
from squashlens.model.hooking.standing import attached, standing, without_ambient
from squashlens.model.proof import opened, proof_of
from squashlens.model.snapshot import layout_of
from squashlens.run.fused import Kind, attend, is_fused
from squashlens.theory.attention import Attention

NAME = "squashlens"  # under which the attention function is registered
SHAKEN = 2.0  # of the difference that one unit in the last place makes: the most by which two ways to attend may differ
AttentionObserver = Callable[[int, Attention], None]
Seen = dict[str, Tensor]  # activations by hook point


@dataclass(frozen=True)
class _Stream:
    """What the attention function needs to know about the current run, and the kinds of attention that it met."""

    block_of: dict[int, int]
    on_attention: AttentionObserver | None
    frozen: bool
    reached: slice | None
    kinds: set[tuple[Kind, int | None]] = field(default_factory=set)


_stream: "ContextVar[_Stream]" = ContextVar("stream")
_written: "ContextVar[str | None]" = ContextVar("written", default=None)


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


def why_not_streamed(model: Bridge, sites: Iterable[str] = ()) -> str | None:
    """Why the model cannot be run without patterns while `sites` are read; `None` if it can."""
    if _written.get() is not None:
        return _written.get()
    if is_native(model):
        return "its attention is not that of transformers"
    # A bridge may have a weight twice; if only one is edited, the two ways to run it differ.
    with opened(model) as known:
        proof = known.once("streamed", lambda: _prove(model))
        if proof.reason is not None:
            return proof.reason
        points = layout_of(model).points
        names = [points[site].name or site for site in sites if site in points]
        for hook in standing(model):
            if hook.point is None or hook.place.endswith(" (torch)"):
                return "a PyTorch hook is on a module"
            names.append(hook.point)
        _test_effect(model, proof, names)
        blind = [name for name in names if not proof.effective.get(name)]
        return f"a hook is at {blind[0]}" if blind else None


def _test_effect(model: Bridge, proof: _Proof, names: Iterable[str]) -> None:
    """Find out where edits take effect: at points of one name at a time, which are in different blocks.

    Of two points of one block, one could hide that the other has no effect.
    """

    def without_block(name: str) -> str:
        return "".join(letter for letter in name if not letter.isdigit())

    new = {*names} & {*proof.fires} - {*proof.effective}
    for _, alike in groupby(sorted(new, key=without_block), key=without_block):
        group = list(alike)
        try:
            with without_ambient(model), streamed(model):
                without = ineffective_points(model, group)
        except torch.OutOfMemoryError:
            raise
        except FAILURES:  # a component that fails after an edit
            without = group
        for name in group:
            proof.effective[name] = name not in without


def implementation(
    model: Bridge,
    sites: Iterable[str] = (),
    n: int = 0,
    differentiated: bool = False,
) -> str:
    """How attention, or its derivative, is computed for n tokens while `sites` are watched, for the provenance."""
    reason = why_not_streamed(model, sites)
    if reason is not None:
        return f"eager, since {reason}"
    names: set[str] = set()
    for kind, window in proof_of(model).findings["streamed"].kinds:
        windowed = window is not None and window < n
        kind = replace(kind, windowed=windowed, differentiated=differentiated)
        names.add("fused" if is_fused(kind, n) else "streamed")
    return " and ".join(sorted(names))


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

    ALL_ATTENTION_FUNCTIONS.register(NAME, _attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, _window_of)
    # Before anything is changed, since the model is compared with what it was.
    with opened(model), ExitStack() as stack:
        block_of: dict[int, int] = {}
        for number, block in enumerate(model.blocks):
            block_of[id(block.attn.original_component)] = number
            # Not setattr: the bridge passes attributes on to the module it wraps.
            plain = types.MethodType(AttentionBridge.forward, block.attn)
            stack.enter_context(_entry(vars(block.attn), "forward", plain))
        for config in layout_of(model).configs:
            if hasattr(config, "_attn_implementation"):
                stack.callback(
                    setattr, config, "_attn_implementation", config._attn_implementation
                )
                config._attn_implementation = NAME
        stream = _Stream(block_of, on_attention, frozen, reached)
        stack.callback(_stream.reset, _stream.set(stream))
        yield stream.kinds


@contextmanager
def _entry(held: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    """In the body `held` has this value; then the one that it had, if any."""
    before = {name: held[name]} if name in held else {}
    held[name] = value
    try:
        yield
    finally:
        held.pop(name, None)
        held.update(before)


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
    window = _Window(None)
    mask = None
    if isinstance(attention_mask, _Window):
        window = attention_mask
    elif isinstance(attention_mask, Tensor) and position_bias is None:
        mask = attention_mask
    else:
        raise UnsoundModelError(
            "This attention has an unknown kind of mask.", "Compute the patterns."
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    attention = Attention(query, key, scale, softcap, window.size, s_aux, mask)
    stream.kinds.add((Kind.of(attention, value), window.native))
    tracked = query.requires_grad or key.requires_grad or value.requires_grad
    outputs, attention = attend(
        attention,
        value,
        differentiated=tracked and torch.is_grad_enabled(),
        frozen=stream.frozen,
        reached=stream.reached,
    )
    if stream.on_attention is not None:
        stream.on_attention(stream.block_of[id(module)], attention)
    return outputs.transpose(1, 2).contiguous(), None


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
    # A query sees itself and the first key of its window, but neither the next key nor the one before the window.
    edges = [(place, place, True), (place[:-1], place[1:], False)]
    if window is None:
        edges.append((place, torch.zeros_like(place), True))
    else:
        edges.append((place[window - 1 :], place[: q_length - window + 1], True))
        edges.append((place[window:], place[: q_length - window], False))
    zero = torch.zeros((), dtype=torch.long, device=device)
    # Read once, since a device has to be waited for.
    wrong = torch.zeros((), dtype=torch.bool, device=device)
    for queries, keys, seen in edges:
        allowed = mask_function(zero, zero, queries, keys)
        wrong |= (torch.as_tensor(allowed, device=device) != seen).any()
    if bool(wrong):
        raise UnsoundModelError(
            "This model's mask is neither causal nor a sliding window.",
            "Compute the patterns.",
        )
    return _Window(window, local_size)


def _prove(model: Bridge) -> _Proof:
    attentions: dict[int, Attention] = {}
    try:
        with without_ambient(model):
            eager = _everything(model)
            with streamed(model, attentions.__setitem__) as kinds:
                found = _everything(model)
    except torch.OutOfMemoryError:
        raise
    except SquashlensError as error:
        cause = error.cause.rstrip(".")
        return _Proof(f"its attention cannot be computed without patterns ({cause})")
    except FAILURES:
        # Python's words for what an architecture does, such as to add position biases to the mask, explain nothing.
        return _Proof(
            "its architecture computes attention or its mask in a way of its own, as with ALiBi"
        )
    fires = {name for name in found if name in eager}
    fires = frozenset(n for n in fires if found[n].shape == eager[n].shape)
    compared = ["logits"]
    for site in residual_sites(model):
        name = model.hook_dict[site].name or site
        if name not in fires:
            return _Proof(f"{site} does not fire")
        compared.append(name)
    everything = slice(0, probe_ids(model).shape[1])
    for block in range(n_blocks(model)):
        if block not in attentions:
            return _Proof(f"block {block} attends in a way of its own")
        weights, _ = attentions[block].weights(everything, everything)
        found[pattern_site(block)] = weights.flatten(1, 2)
        compared.append(pattern_site(block))
    dtype = dtype_of(model)
    differing = [n for n in compared if not agree(found[n], eager[n], dtype)]
    if differing and dtype.itemsize < 4:
        shaken = _shaken(model)
        differing = [n for n in differing if _differs(found[n], eager[n], shaken[n])]
    if differing:
        return _Proof(f"{differing[0]} comes out differently")
    return _Proof(None, fires, kinds=kinds)


def _differs(found: Tensor, eager: Tensor, shaken: Tensor) -> bool:
    """Whether two results differ by more than `SHAKEN` times what rounding does."""
    allowed = SHAKEN * (shaken - eager).abs().max()
    return not bool((found - eager).abs().max() <= allowed)  # NaN differs


def _shaken(model: Bridge) -> Seen:
    """All activations, with each stream that enters a block moved by one unit in the last place, in random directions.

    In half precision rounding grows with the number of blocks, and sharp attention multiplies it, so that no constant
    tolerance holds, and it is measured. Computing attention in another way made 0.1 to 0.7 of this difference.
    """
    generator = torch.Generator().manual_seed(0)

    def shake(stream: Tensor) -> Tensor:
        signs = 2 * torch.randint(0, 2, stream.shape, generator=generator) - 1
        units = torch.finfo(stream.dtype).eps * signs.to(stream.device, stream.dtype)
        return stream * (1 + units)

    entering = residual_sites(model)[: n_blocks(model)]
    hooks = [Watcher(site, shake) for site in entering]
    with without_ambient(model), attached(model, *hooks):
        return _everything(model)


def _everything(model: Bridge) -> Seen:
    """The tensor at every hook point in a pass of the probe prompt, and the last logits."""
    seen: Seen = {}

    def keep(name: str, value: Any) -> None:
        if isinstance(value, Tensor) and value.is_floating_point():
            seen[name] = value.detach().clone()

    readers = watchers(layout_of(model).distinct, keep)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the bridge, where hooks are at norms
        logits = run_probe(model, *readers)
    return seen | {"logits": logits}
