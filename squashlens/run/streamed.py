"""Run a model without computing whole attention patterns.

The bridge computes every pattern, so that hooks can act on it. If no hook does, its blocks pass queries, keys and
values to the plain model's attention modules instead, and these to a function of ours, which uses a fused kernel or
blocks of rows. Everything else is unchanged, including the hook points outside attention.

This is tested at the first use of a model, on a short prompt: logits, residual streams and patterns must equal those of
the bridge. Each hook point must take effect, which is tested at its first use. The mask is the one that the plain model
requests for the length of the pass.
"""

import re
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
Activations = dict[str, Tensor]  # activations by hook point


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
    """The mask of a run: every query sees itself and earlier keys, within the window.

    `size` is None where the window is no shorter than the prompt; `native` is what a longer prompt would have.
    """

    size: int | None
    native: int | None = None


@dataclass(frozen=True)
class _Proof:
    """Why a model cannot be run without patterns; or, without a `reason`, what is known of its passes without them.

    Attributes:
        fires: the hook points that fire, by their own names.
        effective: whether edits take effect at a point, for those that were tested.
        kinds: the kinds of attention of its blocks, with their windows for a long prompt.
    """

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
        names: list[str] = []  # of all points that are read or have hooks
        for site in sites:
            if site in points:
                names.append(points[site].name or site)
        for hook in standing(model):
            if hook.point is None or hook.place.endswith(" (torch)"):
                return "a PyTorch hook is on a module"
            names.append(hook.point)
        _test_effect(model, proof, names)
        for name in names:
            if not proof.effective.get(name):
                return f"a hook is at {name}"
        return None


def _test_effect(model: Bridge, proof: _Proof, names: Iterable[str]) -> None:
    """Find out where edits take effect: at points of one name at a time, which are in different blocks.

    Of two points of one block, one could hide that the other has no effect.
    """

    def without_block(name: str) -> str:
        return re.sub(r"\d", "", name)

    untested = proof.fires.intersection(names).difference(proof.effective)
    in_groups = sorted(untested, key=without_block)
    for _, alike in groupby(in_groups, key=without_block):
        group = list(alike)
        try:
            with without_ambient(model), streamed(model):
                ineffective = ineffective_points(model, group)
        except torch.OutOfMemoryError:
            raise
        except FAILURES:  # a component that fails after an edit
            ineffective = group
        for name in group:
            proof.effective[name] = name not in ineffective


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
        # A window of at least the prompt's length counts as none.
        windowed = window is not None and window < n
        kind = replace(kind, windowed=windowed, differentiated=differentiated)
        names.add("fused" if is_fused(kind, n) else "streamed")
    return " and ".join(sorted(names))


@contextmanager
def patterns_written(reason: str) -> Iterator[None]:
    """Compute every pattern in the passes of the body, for the `reason` that `why_not_streamed` then gives."""
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

    # Under this name a configuration can ask transformers to call these two for attention and its mask.
    ALL_ATTENTION_FUNCTIONS.register(NAME, _attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, _window_of)
    # Before anything is changed, since the model is compared with what it was.
    with opened(model), ExitStack() as stack:
        block_of: dict[int, int] = {}
        for number, block in enumerate(model.blocks):
            block_of[id(block.attn.original_component)] = number
            # The `forward` that calls the model's own attention, in place of one that computes patterns.
            # Not setattr: the bridge passes attributes on to the module it wraps.
            delegating = types.MethodType(AttentionBridge.forward, block.attn)
            stack.enter_context(_entry(vars(block.attn), "forward", delegating))
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
def _entry(entries: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    """In the body this entry of a dict has this value; then the one that it had, if any."""
    before = {name: entries[name]} if name in entries else {}
    entries[name] = value
    try:
        yield
    finally:
        entries.pop(name, None)
        entries.update(before)


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
    """The attention function for Hugging Face models, which call it with the arguments of their own ones.

    Queries, keys and values are (prompt, head, position, coordinate), and so is the output, but for the order (prompt,
    position, head, coordinate). No pattern is returned. `attention_mask` is what `_window_of` gave, or a tensor that is
    added to the logits. Other arguments do not change what is computed in a model in evaluation mode, else its test
    against the written patterns (`why_not_streamed`) fails.
    """
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
    # So that the fused kernels can be tested for each kind of attention of the model.
    stream.kinds.add((Kind.of(attention, value), window.native))
    has_graph = query.requires_grad or key.requires_grad or value.requires_grad
    outputs, attention = attend(
        attention,
        value,
        differentiated=has_graph and torch.is_grad_enabled(),
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
    """The mask that a model requests, as a window; raises an error for any other mask.

    transformers calls it with the lengths of queries and keys, and with a function that says which keys are seen. This
    function is only asked at the edges of the mask.
    """
    if attention_mask is not None and not bool(attention_mask.all()):
        raise UnsoundModelError("Padding needs attention patterns.", "Leave it out.")
    if q_offset or kv_offset or q_length != kv_length:
        raise UnsoundModelError(
            "A cache without its own mask needs attention patterns.",
            "Compute the patterns.",
        )
    window = None if local_size is None or local_size >= kv_length else int(local_size)
    place = torch.arange(q_length, device=device)
    # Queries, keys, and whether these keys are seen. A query sees itself and the first key of its window, but neither
    # the next key nor the one before the window.
    edges = [(place, place, True), (place[:-1], place[1:], False)]
    if window is None:
        edges.append((place, torch.zeros_like(place), True))
    else:
        edges.append((place[window - 1 :], place[: q_length - window + 1], True))
        edges.append((place[window:], place[: q_length - window], False))
    first = torch.zeros((), dtype=torch.long, device=device)  # prompt and head
    # Read once, since a device has to be waited for.
    is_wrong = torch.zeros((), dtype=torch.bool, device=device)
    for queries, keys, are_seen in edges:
        allowed = mask_function(first, first, queries, keys)
        is_wrong |= (torch.as_tensor(allowed, device=device) != are_seen).any()
    if bool(is_wrong):
        raise UnsoundModelError(
            "This model's mask is neither causal nor a sliding window.",
            "Compute the patterns.",
        )
    return _Window(window, local_size)


def _prove(model: Bridge) -> _Proof:
    """Compare a pass without patterns with the bridge's own (eager) pass, on a short prompt.

    Logits, residual streams and patterns must be equal up to rounding. Other hook points must have the same shape to
    count as such that fire.
    """
    attentions: dict[int, Attention] = {}  # by block
    try:
        with without_ambient(model):
            eager = _everything(model)
            with streamed(model, attentions.__setitem__) as kinds:
                ours = _everything(model)
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
    in_both = ours.keys() & eager.keys()
    fires = frozenset(n for n in in_both if ours[n].shape == eager[n].shape)
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
        # (prompt, group, head in group, query, key) to (prompt, head, query, key)
        weights, _ = attentions[block].weights(everything, everything)
        ours[pattern_site(block)] = weights.flatten(1, 2)
        compared.append(pattern_site(block))
    dtype = dtype_of(model)
    differing = [n for n in compared if not agree(ours[n], eager[n], dtype)]
    if differing and dtype.itemsize < 4:
        shaken = _shaken(model)
        differing = [n for n in differing if _differs(ours[n], eager[n], shaken[n])]
    if differing:
        return _Proof(f"{differing[0]} comes out differently")
    return _Proof(None, fires, kinds=kinds)


def _differs(ours: Tensor, eager: Tensor, shaken: Tensor) -> bool:
    """Whether two results differ by more than `SHAKEN` times what rounding does."""
    allowed = SHAKEN * (shaken - eager).abs().max()
    return not bool((ours - eager).abs().max() <= allowed)  # NaN differs


def _shaken(model: Bridge) -> Activations:
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


def _everything(model: Bridge) -> Activations:
    """The tensor at every hook point in a pass of the probe prompt, and the last logits as "logits"."""
    activations: Activations = {}

    def keep(name: str, value: Any) -> None:
        if isinstance(value, Tensor) and value.is_floating_point():
            activations[name] = value.detach().clone()

    readers = watchers(layout_of(model).distinct, keep)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the bridge, where hooks are at norms
        logits = run_probe(model, *readers)
    return activations | {"logits": logits}
