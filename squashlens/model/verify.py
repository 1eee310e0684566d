"""Verify once that a TransformerLens bridge reproduces the Hugging Face model, and that the measurements hold for it.

A bridge re-implements attention and norms around the weights of a Hugging Face model, and for some architectures it
computes something else. Before anything is measured, the last logits, every residual stream and every attention pattern
must equal those of the plain model, which runs with eager attention on a short prompt, up to rounding. Tokens must
depend on earlier tokens only, and whether they do so only through attention patterns is found too (`premises`). Hook
points are tested at their first use (`applied`).
"""

import copy
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from squashlens._typing import Bridge, dtype_name, listed, short_repr
from squashlens.errors import InputError, UnsoundModelError
from squashlens.model.agreement import (
    FREQUENCIES,
    IN_FLOAT64,
    TOLERANCE,
    agree,
    difference,
)
from squashlens.model.anatomy import (
    device_of,
    dtype_of,
    forget_lengths,
    last_logits,
    n_blocks,
    pattern_site,
    residual_site,
)
from squashlens.model.applied import probe_ids
from squashlens.model.finite import require_finite
from squashlens.model.hooking.attached import attached
from squashlens.model.hooking.hook import Hook
from squashlens.model.hooking.standing import without_ambient
from squashlens.model.layout import layout_of
from squashlens.model.live import delegating
from squashlens.model.native import is_native, plain_outputs, rebuilt
from squashlens.model.premises import (
    ATTENTION,
    require_causal,
    why_not_attention_alone,
)
from squashlens.model.proof import opened, proof_of, require_bridge, settle
from squashlens.model.wide import Wide

# `load` found the checkpoint complete, and the bridge agrees with the plain model made from it.
VERIFIED = "verified"
# The bridge agrees with a plain model of its own configuration and weights, which were not compared with a checkpoint.
AS_IT_STANDS = "verified as it stands"
OWN_MODULE = "verified against its own module"  # the same for models of TransformerLens's own, run without the bridge
UNVERIFIED = "unverified"
_SETTING = bool | int | float | str | None
# Attributes of transformers' modules that change no number in eval mode.
_NO_SETTINGS = ("training", "name_or_path", "gradient_checkpointing", "loss_type")


def shared_copy(model: Any) -> Any:
    """A copy of the modules that shares the parameters; made before bridging, it stays the plain model."""
    return copy.deepcopy(model, memo={id(p): p for p in model.parameters()})


def status(model: Bridge) -> str:
    """What was verified of the model in its present state, for the provenance."""
    return proof_of(model).status or UNVERIFIED


def accept_unverified(model: Bridge) -> None:
    """Allow measurements of a bridge in its present state without verification; every result says so."""
    proof_of(model).status = UNVERIFIED


def require_sound(model: Any) -> Bridge:
    """Raise an error for a model that cannot be measured; verify a bridge that is new or was changed."""
    require_bridge(model)
    if not is_native(model) and getattr(model.original_model, "config", None) is None:
        raise InputError(
            f"This bridge wraps a {type(model.original_model).__name__}, which is neither a Hugging Face model nor a "
            "TransformerLens model.",
            "Use `squashlens.load`, `TransformerBridge.boot_transformers` or `TransformerBridge.boot_native`.",
        )
    if model.compatibility_mode:
        raise InputError(
            "This bridge is in compatibility mode, which folds weights and changes the residual basis.",
            "Boot a new bridge without `enable_compatibility_mode`, which cannot be undone.",
        )
    _require_no_dead_hooks(model)
    proof = proof_of(model)
    # Models of TransformerLens's own start in train mode, without dropout.
    if any(proof.snapshot.modes) and not is_native(model):
        raise InputError(
            "The model is in train mode, so dropout may be active.",
            "Call `model.eval()`.",
        )
    if proof.status is None:
        _verify(model)
    return model


def _verify(model: Bridge) -> None:
    with without_ambient(model):
        require_finite(model.original_model, type(model.original_model).__name__)
        plain = rebuild_plain(model)
        require_same_parts(model.original_model, plain)
        prove(model, plain, OWN_MODULE if is_native(model) else AS_IT_STANDS)


def _require_no_dead_hooks(model: Bridge) -> None:
    """Raise an error for hooks inside attention that have no effect, since they were not added by `applied`."""
    dead: set[Any] = set()
    for attn in delegating(model):
        if "forward" not in vars(attn):
            dead.add(attn.hook_attn_scores)
            if not is_native(model):
                dead.add(attn.hook_pattern)
    for name, point in layout_of(model).distinct.items():
        if point not in dead:
            continue
        if any(not isinstance(held.user_hook, Hook) for held in point.fwd_hooks):
            raise UnsoundModelError(
                f"The hook at {name} has no effect: the model has used these numbers already, and ignores its result.",
                "Remove it, and use `squashlens.applied(model, …)`, or load the model with `squashlens.load`.",
            )


def rebuild_plain(model: Bridge) -> Any:
    """Build the plain model of a bridge that was made elsewhere, from its configuration and its parameters.

    `model.original_model` cannot serve as the plain model: the bridge has changed it.
    """
    wrapped: Any = model.original_model
    name = type(wrapped).__name__
    try:
        plain = _without_weights(model)
        held = wrapped.state_dict()
        weights = {k.replace("._original_component", ""): v for k, v in held.items()}
        missing = sorted(plain.state_dict().keys() - weights.keys())
        if missing:
            raise UnsoundModelError(
                f"This {name} has no {listed(missing)}: other modules stand in place of its own, as with an adapter of "
                "peft that is not merged.",
                "Merge the adapter (`merge_and_unload`), and build the bridge around the result.",
            )
        weights = {key: weights[key] for key in plain.state_dict()}
        plain.load_state_dict(weights, assign=True)
        if not is_native(model):
            plain.tie_weights()
    except UnsoundModelError:
        raise
    except Exception as error:
        raise UnsoundModelError(
            f"The plain {name} could not be rebuilt from this bridge ({error}), so the bridge cannot be verified.",
            "Load the model with `squashlens.load`, which verifies it, or accept it without verification: "
            "`squashlens.model.verify.accept_unverified(model)`.",
        ) from error
    return plain.to(device_of(model)).eval()


def _without_weights(model: Bridge) -> Any:
    """A new plain model of a bridge's configuration."""
    from accelerate import init_empty_weights

    if is_native(model):
        return rebuilt(model)
    wrapped: Any = model.original_model
    config = copy.deepcopy(wrapped.config)
    config._attn_implementation = "eager"
    with init_empty_weights(include_buffers=False):
        return type(wrapped)(config)


def prove(model: Bridge, plain: Any, covers: str = VERIFIED) -> None:
    """Compare the bridge with the plain model, and find out what the mathematics needs to know of it.

    A success has the status `covers`: `VERIFIED` if `plain` is known to match the checkpoint.
    """
    _first_pass(model)
    with opened(model) as proof:
        _require_agreement(model, plain)
        require_causal(model)
        proof.findings[ATTENTION] = why_not_attention_alone(model)
        proof.status = covers
        settle(model, proof)


def _first_pass(model: Bridge) -> None:
    """Run the model once, which may set up the bridge; an error of several dtypes is put into words."""
    try:
        with torch.no_grad():
            model(probe_ids(model), use_cache=False, **last_logits(model))
    except RuntimeError as error:
        kinds = {dtype_name(p.dtype): name for name, p in model.named_parameters()}
        if len(kinds) == 1 or "dtype" not in str(error):
            raise
        where = "; ".join(f"{kind} as in {name}" for kind, name in kinds.items())
        raise InputError(
            f"The model's parameters have several dtypes ({where}), and it fails with them: {error}.",
            "Give it one dtype: `model.to(torch.float32)`, or load it again with dtype=.",
        ) from error


def _require_agreement(model: Bridge, plain: Any) -> None:
    """Raise an error where the bridge and the plain model differ by more than rounding.

    A float64 model may take its softmax in float32 where the bridge takes it in float64. Large weights magnify this
    difference from block to block, to any size, so one that is too large is looked at again without float32.
    """
    problem = _disagreement(model, plain, TOLERANCE)
    if problem is not None and dtype_of(model) == torch.float64:
        # Code that rounds further, or cannot go without float32, is judged by what it computed as it is.
        with suppress(UnsoundModelError, RuntimeError), Wide():
            problem = (
                _disagreement(model, plain, {torch.float64: IN_FLOAT64}) and problem
            )
        forget_lengths(model)  # long frequencies may have been made in float64
    if problem is not None:
        name = type(model.original_model).__name__
        raise UnsoundModelError(
            f"The TransformerLens bridge does not reproduce the Hugging Face {name}: {problem}.",
            "Use another model, or report the model's configuration to TransformerLens.",
        )


def _disagreement(
    model: Bridge, plain: Any, tolerance: dict[torch.dtype, float]
) -> str | None:
    """The first tensor in which the two differ by more than this tolerance, and by how much."""
    ids, name = probe_ids(model), type(model.original_model).__name__
    y = residual_site("y", model)
    if y not in model.hook_dict:
        raise UnsoundModelError(
            f"{name} has no hook point {y}.", "Use a model with a final norm."
        )
    seen: dict[str, Tensor] = {}

    def keep(site: str, tensor: Tensor) -> None:
        if site in seen:
            raise UnsoundModelError(
                f"{name} passes {site} more than once, so it is not clear where y is.",
                "Use another model.",
            )
        seen[site] = tensor.detach().clone()

    # The plain model's hidden states are v⁽⁰⁾ … v⁽ᴸ⁻¹⁾ and y, without v⁽ᴸ⁾.
    blocks = range(n_blocks(model))
    streams = [residual_site(layer, model) for layer in (*blocks, "y")]
    patterns = [s for s in map(pattern_site, blocks) if s in model.hook_dict]
    readers = [Hook("read", site, partial(keep, site)) for site in streams + patterns]
    forget_lengths(model)  # the plain model has had no pass yet
    with attached(model, *readers):
        logits = model(ids, use_cache=False, **last_logits(model))
    truth = _run_plain(plain, ids)
    returned = [p for p in truth.attentions or () if p is not None]
    # A bridge without any is refused where they are needed.
    if patterns and len(returned) != len(patterns):
        raise UnsoundModelError(
            f"The plain {name} returns {len(returned)} attention patterns, and the bridge has hook points for "
            f"{len(patterns)}, so the bridge cannot be verified.",
            "Use another model.",
        )
    # Logits of the last position, or of all.
    expected = {"logits": truth.logits[:, -logits.shape[1] :]}
    expected |= zip(streams, truth.hidden_states, strict=True)
    expected |= zip(patterns, returned, strict=False)
    seen["logits"] = logits
    for what, theirs in expected.items():
        if what in patterns and what not in seen:
            continue
        ours, dtype = seen[what], dtype_of(model)
        if ours.shape != theirs.shape:
            return (
                f"{what} has shape {tuple(ours.shape)} instead of {tuple(theirs.shape)}"
            )
        if not agree(ours, theirs, dtype, tolerance=tolerance):
            error, allowed = difference(ours, theirs, dtype, tolerance=tolerance)
            return f"{what} is off by {error:.2g} (allowed {allowed:.2g})"
    return None


def _run_plain(plain: Any, ids: Tensor) -> Any:
    """The logits, hidden states and attentions of a plain model."""
    if not isinstance(plain, PreTrainedModel):
        return plain_outputs(plain, ids)
    return plain(
        ids, use_cache=False, output_attentions=True, output_hidden_states=True
    )


def require_same_parts(inner: nn.Module, plain: nn.Module) -> None:
    """Compare settings and buffers of each module of a bridged model with those of a newly built model.

    A short prompt does not show every difference: a slightly larger epsilon changes it by less than rounding.
    """
    # A module and the bridge around it have the same name here; the module comes later and is kept.
    named = inner.named_modules()
    ours = {name.replace("._original_component", ""): module for name, module in named}
    for name, theirs in plain.named_modules():
        module = ours.get(name)
        if module is None or type(module).__module__.startswith("transformer_lens"):
            continue  # the bridge has its own module there, which the logits test
        # The bridge makes its own lists.
        kind = nn.ModuleList if isinstance(module, nn.ModuleList) else type(module)
        if not issubclass(type(theirs), kind):
            classes = (
                f"{type(module).__qualname__} instead of a {type(theirs).__qualname__}"
            )
            _refuse(plain, name, f"is a {classes}")
        for key, value in vars(theirs).items():
            now = vars(module).get(key)
            counts = key not in _NO_SETTINGS and not key.startswith("_")
            if counts and isinstance(value, _SETTING) and now != value:
                what = f"is {short_repr(now)} instead of {value!r}"
                _refuse(plain, f"{name}.{key}", what)
        for key, buffer in theirs._buffers.items():
            if buffer is not None and not _same(key, module._buffers.get(key), buffer):
                what = "has other values, as after `.to`, `.half` or `.bfloat16`"
                _refuse(plain, f"{name}.{key}", what)


def _same(key: str, ours: Tensor | None, theirs: Tensor) -> bool:
    if ours is None or ours.shape != theirs.shape:
        return False
    ours, theirs = ours.cpu(), theirs.cpu()
    if key.endswith("inv_freq"):
        # Must not be rounded: late positions multiply the error.
        return torch.allclose(ours.double(), theirs.double(), FREQUENCIES, atol=0)
    # The new model is in float32, whatever the dtype of the run.
    narrower = min(ours.dtype, theirs.dtype, key=lambda dtype: dtype.itemsize)
    return torch.equal(ours.to(narrower), theirs.to(narrower))


def _refuse(plain: nn.Module, what: str, difference: str) -> None:
    raise UnsoundModelError(
        f"This {type(plain).__name__} does not match its configuration: {what} {difference}.",
        "Load the model again, with dtype= for the dtype of the run; settings of its modules belong in config.json.",
    )
