"""A model run without writing down a single attention pattern.

The bridge writes every pattern, so that hooks can stand on it. Where none does, its blocks hand queries, keys and
values to the plain model's own attention modules instead, and those to a function of ours: a fused kernel, or blocks of
rows. Everything else of the bridge stays as it is, hook points included, but for those inside attention.

Whether a model can be run so is proved at its first use, on a short prompt: logits, residual streams and patterns equal
the bridge's, and each hook point that fires bites. What is masked is read from the mask that the plain model asks
for, at the length at hand.
"""

import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.errors import SquashlensError, UnsoundModelError
from squashlens.model.anatomy import dtype_of, n_blocks, pattern_site, residual_sites
from squashlens.model.attention import Attention, attended
from squashlens.model.hooks import Hook, ambient, distinct_points, hung, without_ambient
from squashlens.model.live import dead_points, probe_ids
from squashlens.model.native import handed_over, is_native
from squashlens.model.proof import agree
from squashlens.model.pullback import mixed
from squashlens.model.registry import proved, steady

NAME = "squashlens"  # under which the attention function is registered
STRIDE = 4
See = Callable[[int, Attention], None]
Mix = Callable[[int, Attention, Tensor], Tensor]


@dataclass(frozen=True)
class _Stream:
    """What the attention function needs to know of the run it is part of."""

    block_of: dict[int, int]
    see: See | None
    frozen: bool
    mix: Mix | None = None


_stream: "ContextVar[_Stream | None]" = ContextVar("stream", default=None)


@dataclass(frozen=True)
class _Window:
    """The mask of a run: every query sees itself and what stands before it, as far back as the window goes."""

    size: int | None


@dataclass(frozen=True)
class _Proof:
    """Which hook points bite while a model is streamed, and, if it cannot be, why."""

    live: frozenset[str] = frozenset()
    reason: str | None = None


_written: "ContextVar[str | None]" = ContextVar("written", default=None)


def why_not(model: Bridge, sites: Iterable[str] = ()) -> str | None:
    """Why this model, as it stands, is not streamed while `sites` are watched; `None` if it is."""
    if _written.get() is not None:
        return _written.get()
    # A bridge may hold some weights twice; edited in one place, the two ways to run it part.
    proof, points = proved(model, "streamed", lambda: _prove(model)), model.hook_dict
    if proof.reason is not None:
        return proof.reason
    strange = [site for site in sites if site in points and (points[site].name or site) not in proof.live]
    standing = [name for name, p in distinct_points(model).items() if p.fwd_hooks or p.bwd_hooks]
    blind = [name for name in standing if name not in proof.live]
    if any(" (torch)" in entry for entry in ambient(model)):
        return "a PyTorch hook stands on a module"
    return f"a hook stands at {(blind + strange)[0]}" if blind or strange else None


def implementation(model: Bridge, sites: Iterable[str] = ()) -> str:
    """How attention is computed in a pass that watches `sites`, for the provenance."""
    reason = why_not(model, sites)
    return "streamed" if reason is None else f"eager, since {reason}"


def streaming() -> bool:
    """Whether the pass that is running now writes no patterns."""
    return _stream.get() is not None


@contextmanager
def written(reason: str) -> Iterator[None]:
    """Write every pattern in the body's passes: what is compared bit by bit must be computed in one way."""
    token = _written.set(reason)
    try:
        yield
    finally:
        _written.reset(token)


@contextmanager
def streamed(model: Bridge, see: See | None = None, *, frozen: bool = False, mix: Mix | None = None) -> Iterator[None]:
    """Run the body's forward passes without patterns; `see` is shown what each block's are made of.

    With `frozen` weights the derivative of the softmax is dropped. `mix` takes the place of attention itself: what
    it returns for a block's attention and values goes on. Leaves the model as it was.
    """
    # The stamp is computed first, before anything is changed.
    with steady(model), _handed_over(model, _Stream({}, see, frozen, mix)):
        yield


@contextmanager
def _handed_over(model: Bridge, stream: _Stream) -> Iterator[None]:
    from transformer_lens.model_bridge.generalized_components.attention import AttentionBridge

    _register()
    inner: Any = model.original_model
    configs = {id(c): c for m in inner.modules() if (c := getattr(m, "config", None)) is not None}.values()
    before = [(c, c._attn_implementation) for c in configs if hasattr(c, "_attn_implementation")]
    sites = [block.attn for block in model.blocks]
    block_of = {id(attn.original_component): number for number, attn in enumerate(sites)}
    forward = handed_over(_attend, _Window(None)) if is_native(model) else AttentionBridge.forward
    replaced = [(vars(attn), vars(attn).get("forward")) for attn in sites]
    token = _stream.set(replace(stream, block_of=block_of))
    try:
        for config, _ in before:
            config._attn_implementation = NAME
        for attn in sites:  # not setattr: the bridge passes attributes on to the module it wraps
            attn.__dict__["forward"] = types.MethodType(forward, attn)
        yield
    finally:
        for own, earlier in replaced:
            own.pop("forward", None)
            if earlier is not None:
                own["forward"] = earlier
        for config, implementation in before:
            config._attn_implementation = implementation
        _stream.reset(token)


def _register() -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, _window_of)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any,
    scaling: float | None = None, softcap: float | None = None, s_aux: Tensor | None = None,
    position_bias: Tensor | None = None, **others: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention as Hugging Face's models call it: (prompt, head, position, value) in, (prompt, position, …) out."""
    stream = _stream.get()
    if stream is None or id(module) not in stream.block_of:
        raise UnsoundModelError("Attention of another model was called in a streamed run.", "Run one at a time.")
    windowed = isinstance(attention_mask, _Window)
    if position_bias is not None or not (windowed or isinstance(attention_mask, Tensor)):
        raise UnsoundModelError("This attention is masked in a way that is not known here.", "Run it eagerly.")
    attention = Attention(
        query, key, query.shape[-1] ** -0.5 if scaling is None else scaling, softcap,
        attention_mask.size if windowed else None, s_aux,
        None if windowed else attention_mask,
    )  # fmt: skip
    block = stream.block_of[id(module)]
    if stream.see is not None:
        stream.see(block, attention)
    if stream.mix is not None:
        return stream.mix(block, attention, value).transpose(1, 2).contiguous(), None
    needed = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    found = mixed(attention, value, stream.frozen) if needed else attended(attention, value)
    return found.transpose(1, 2).contiguous(), None


def _window_of(
    q_length: int, kv_length: int, mask_function: Callable[..., Any], q_offset: int = 0, kv_offset: int = 0,
    attention_mask: Tensor | None = None, local_size: int | None = None, device: Any = "cpu", **others: Any,
) -> _Window:  # fmt: skip
    """The mask that a model asks for, as a window; refused where it is anything else at any position."""
    if attention_mask is not None and not bool(attention_mask.all()):
        raise UnsoundModelError("Padding is not streamed.", "Leave it out.")
    if q_offset or kv_offset or q_length != kv_length:
        raise UnsoundModelError("A cache without a mask of its own is not streamed.", "Run it eagerly.")
    window = None if local_size is None or local_size >= kv_length else int(local_size)
    place = torch.arange(q_length, device=device)
    edges = [(place, place, True), (place[:-1], place[1:], False)]
    if window is None:
        edges.append((place, torch.zeros_like(place), True))
    else:
        edges.append((place[window - 1 :], place[: q_length - window + 1], True))
        edges.append((place[window:], place[: q_length - window], False))
    zero = torch.zeros((), dtype=torch.long, device=device)
    for queries, keys, seen in edges:
        shown = torch.as_tensor(mask_function(zero, zero, queries, keys), device=device)
        if not bool((shown == seen).all()):
            raise UnsoundModelError("This model's mask is neither causal nor a sliding window.", "Run it eagerly.")
    return _Window(window)


def _prove(model: Bridge) -> _Proof:
    ids, seen = probe_ids(model), {}
    try:
        with torch.inference_mode(False), without_ambient(model):
            eager, logits = _everything(model, ids)
            with streamed(model, seen.__setitem__):
                found, ours = _everything(model, ids)
            with streamed(model):
                there = [name for name, value in found.items() if name in eager and value.shape == eager[name].shape]
                # Several at a time: a hundred edits on top of one another would drown what they are to show.
                dead = {d for k in range(STRIDE) for d in dead_points(model, there[k::STRIDE])}
    except torch.OutOfMemoryError:
        raise
    except (SquashlensError, RuntimeError, TypeError, ValueError, AttributeError, KeyError, NotImplementedError) as e:
        return _Proof(reason=f"its attention cannot be handed over ({str(e).splitlines()[0][:120]})")
    pairs = [("logits", ours, logits)]
    for site in residual_sites(model):
        name = model.hook_dict[site].name or site
        if name not in there:
            return _Proof(reason=f"{site} does not fire")
        pairs.append((site, found[name], eager[name]))
    for block in range(n_blocks(model)):
        if block not in seen:
            return _Proof(reason=f"block {block} attends in a way of its own")
        weights = seen[block].weights(slice(0, ids.shape[1]), slice(0, ids.shape[1]))[0].flatten(1, 2)
        pairs.append((pattern_site(block), weights, eager[pattern_site(block)]))
    for what, a, b in pairs:
        if not agree(a, b, dtype_of(model)):
            return _Proof(reason=f"{what} comes out differently")
    return _Proof(frozenset(there) - dead)


def _everything(model: Bridge, ids: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """What passes every hook point, and the logits."""
    seen: dict[str, Tensor] = {}
    looks = (Hook("look", name, partial(_keep, seen, name)) for name in distinct_points(model))
    with torch.no_grad(), hung(model, *looks), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return seen, model(ids, use_cache=False)


def _keep(seen: dict[str, Tensor], name: str, value: Any) -> None:
    if isinstance(value, Tensor) and value.is_floating_point():
        seen[name] = value.detach().clone()
