"""The proof that a bridge is the model it claims to be, and that its hooks bite.

A bridge re-implements attention and norms around the weights of a Hugging Face model. For some families the
copy computes something else, and for some it hands hooks a tensor that the model never uses, so that an
edit does nothing and says nothing. Both are found before a single number is measured:

* logits, every residual stream and every attention pattern equal those of the plain model, run with eager
  attention on a short prompt;
* what a hook adds to any attention pattern or norm scale receives a gradient: what a hook returns is what
  the model goes on with.
"""

import copy
from typing import Any

import torch
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.errors import InputError, UnsoundModelError
from squashlens.model import registry
from squashlens.model.anatomy import device_of, dtype_of, n_blocks, pattern_site, residual_site
from squashlens.model.complete import require_finite
from squashlens.model.fingerprint import modules
from squashlens.model.hooks import Hook, distinct_points, hung, without_ambient
from squashlens.model.live import probe_ids, require_live
from squashlens.model.locks import require_bridge
from squashlens.model.native import SCORES, is_native, outputs_of, rebuilt, require_causal
from squashlens.model.parts import require_same_parts
from squashlens.model.positions import forget_lengths
from squashlens.model.surroundings import replaced_functions

# Largest difference allowed, relative to the largest entry of what is compared. float64 models still run
# norms and softmax in float32; half precision differs by the order of operations alone.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 6e-2}

_PROOF = "agrees with the plain model"
# What a proof covers: a model as its checkpoint describes it, or a bridge with the weights that it has, whose files
# nobody has compared.
VERIFIED, AS_IT_STANDS, UNVERIFIED = "verified", "verified as it stands", "unverified"
OWN_MODULE = "verified against its own module"


def agree(ours: Tensor, theirs: Tensor, dtype: torch.dtype) -> bool:
    """Whether two tensors of one computation differ by rounding at most: relative to the largest entry of `theirs`."""
    if ours.shape != theirs.shape:
        return False
    error = (ours.double() - theirs.double()).abs().max().item()
    return error <= TOLERANCE[dtype] * theirs.double().abs().max().item()  # false for NaN too


def shared_copy(model: Any) -> Any:
    """A structural copy that shares the parameters: taken before bridging, it stays the plain model."""
    return copy.deepcopy(model, memo={id(p): p for p in model.parameters()})


def status(model: Bridge) -> str:
    """What is proved of the model as it is now, for the provenance.

    ``"verified"``: `load` found the checkpoint complete, and the bridge agrees with the plain model made from it.
    ``"verified as it stands"``: the bridge agrees with a plain model of its own configuration and weights; they were
    not compared with a checkpoint (a bridge made elsewhere, a model edited since), or functions of the libraries were
    replaced, under which neither model computes what the checkpoint describes. ``"verified against its own
    module"``: the same for a model of TransformerLens's own (`boot_native`, tracr), where the plain model is
    TransformerLens's too, and no other implementation was there to compare with. ``"unverified"``: none of these.
    """
    return registry.known(model, _PROOF) or UNVERIFIED


def accept_unverified(model: Bridge) -> None:
    """Let a bridge be measured without proof, as it is now; every result of it says so."""
    registry.record(model, _PROOF, UNVERIFIED)


def require_sound(model: Any) -> Bridge:
    """Refuse what cannot be measured; prove a bridge from elsewhere, or one that was changed since."""
    require_bridge(model)
    if not is_native(model) and getattr(model.original_model, "config", None) is None:
        raise InputError(
            f"This bridge wraps a {type(model.original_model).__name__}, which is neither a Hugging Face model nor one "
            "of TransformerLens's own.",
            "Use `squashlens.load`, `TransformerBridge.boot_transformers` or `TransformerBridge.boot_native`.",
        )
    if model.compatibility_mode:
        raise InputError(
            "This bridge is in compatibility mode, which folds weights and changes the residual basis.",
            "Boot a fresh one and do not call `enable_compatibility_mode`; it cannot be undone.",
        )
    if is_native(model):
        require_causal(model)
        _refuse_hooks_on_scores(model)
    elif any(module.training for _, module in modules(model)):  # native models have no dropout, and start in train mode
        raise InputError("The model is in train mode, so dropout may be active.", "Call `model.eval()`.")
    registry.proved(model, _PROOF, lambda: _proof_of(model))
    return model


def _proof_of(model: Bridge) -> str:
    with torch.inference_mode(False), without_ambient(model):
        require_finite(model.original_model, type(model.original_model).__name__)
        plain = rebuild_plain(model)
        require_same_parts(model.original_model, plain)
        covers = OWN_MODULE if is_native(model) else AS_IT_STANDS
        prove(model, plain, covers)
    return covers


def _refuse_hooks_on_scores(model: Bridge) -> None:
    """Refuse hooks that were hung on a native model's logits without squashlens, which do nothing there."""
    for name, point in distinct_points(model).items():
        if name.endswith(SCORES) and not all(isinstance(held.user_hook, Hook) for held in point.fwd_hooks):
            raise UnsoundModelError(
                f"A hook stands at {name}. There a native model shows the pattern after the softmax, and ignores what "
                "a hook returns.",
                "Remove it, and use `squashlens.applied(model, …)`, which gives it the logits and uses its result.",
            )


def rebuild_plain(model: Bridge) -> Any:
    """The plain model of a bridge booted elsewhere: its configuration around its own parameters.

    `model.original_model` will not do: it has been rewired and shares the bridge's faults.
    """
    from accelerate import init_empty_weights

    wrapped: Any = model.original_model
    try:
        if is_native(model):
            return rebuilt(model).to(device_of(model)).eval()
        config = copy.deepcopy(wrapped.config)
        config._attn_implementation = "eager"
        weights = {key.replace("._original_component", ""): value for key, value in wrapped.state_dict().items()}
        with init_empty_weights(include_buffers=False):
            plain = type(wrapped)(config)
        expected = set(plain.state_dict())
        plain.load_state_dict({k: v for k, v in weights.items() if k in expected}, assign=True)
        plain.tie_weights()
    except Exception as error:
        raise UnsoundModelError(
            f"The plain {type(wrapped).__name__} could not be rebuilt from this bridge ({error}), "
            "so nothing proves that the two agree.",
            "Load it with `squashlens.load`, which proves it while loading, or accept it as it is: "
            "`squashlens.model.proof.accept_unverified(model)`.",
        ) from error
    return plain.to(device_of(model)).eval()


def prove(model: Bridge, plain: Any, covers: str = VERIFIED) -> None:
    """Compare the bridge with the plain model and test its hooks; raises `UnsoundModelError`.

    `covers` is what the proof is worth: `VERIFIED` where `plain` is known to be what the checkpoint describes.
    """
    with torch.no_grad():
        model(probe_ids(model), use_cache=False)  # what a bridge sets up at its first pass is part of what is proved
    with registry.steady(model):
        _prove(model, plain)
        as_described = covers != VERIFIED or not replaced_functions(model)
        registry.record(model, _PROOF, covers if as_described else AS_IT_STANDS)


def _prove(model: Bridge, plain: Any) -> None:
    name = type(plain).__name__
    blocks = range(n_blocks(model))
    patterns = [pattern_site(b) for b in blocks]
    missing = [s for s in (*patterns, residual_site("y", model)) if s not in model.hook_dict]
    if missing:
        raise UnsoundModelError(
            f"{name} has no {missing[0]}.", "The measurements need attention in every block and a final norm."
        )
    ids = probe_ids(model)
    _require_agreement(model, plain, ids, name)
    scales = sorted({p.name for k, p in model.hook_dict.items() if k.endswith("hook_scale") and p.name})
    require_live(model, patterns, "attention-pattern", all_fire=True)
    require_live(model, scales, "norm-scale", all_fire=False)


def _require_agreement(model: Bridge, plain: Any, ids: Tensor, name: str) -> None:
    seen: dict[str, Tensor] = {}
    forget_lengths(model)  # the plain model has run nothing before
    # The plain model's hidden states are v⁽⁰⁾ … v⁽ᴸ⁻¹⁾ and then y; v⁽ᴸ⁾ is not among them.
    streams = [residual_site(layer, model) for layer in (*range(n_blocks(model)), "y")]
    patterns = [pattern_site(block) for block in range(n_blocks(model))]
    with torch.no_grad(), hung(model, *(Hook("look", s, _keep(seen, s)) for s in (*streams, *patterns))):
        logits = model(ids, use_cache=False)
        truth = (
            outputs_of(plain, ids)
            if is_native(model)
            else plain(ids, use_cache=False, output_attentions=True, output_hidden_states=True)
        )
    pairs = [("logits", logits, truth.logits)]
    if not truth.attentions or any(a is None for a in truth.attentions):
        raise UnsoundModelError(f"The plain {name} returns no attention patterns.", "It cannot be proved here.")
    pairs += [(site, seen[site], state) for site, state in zip(streams, truth.hidden_states, strict=True)]
    pairs += [(site, seen[site], pattern) for site, pattern in zip(patterns, truth.attentions, strict=True)]
    for what, ours, theirs in pairs:
        _require_close(what, ours, theirs, name, dtype_of(model))


def _require_close(what: str, ours: Tensor, theirs: Tensor, name: str, dtype: torch.dtype) -> None:
    if agree(ours, theirs, dtype):
        return
    if ours.shape != theirs.shape:
        problem = f"has shape {tuple(ours.shape)} instead of {tuple(theirs.shape)}"
    else:
        off, size = (ours.double() - theirs.double()).abs().max().item(), theirs.abs().max().item()
        problem = f"is off by {off:.2g} (allowed {TOLERANCE[dtype] * size:.2g})"
    raise UnsoundModelError(
        f"The bridge of {name} is not the plain model: {what} {problem}.",
        "Numbers from it would be wrong, so it is refused; use another family, or report the model's "
        "configuration to TransformerLens.",
    )


def _keep(seen: dict[str, Tensor], site: str) -> Any:
    def keep(tensor: Tensor) -> None:
        seen[site] = tensor.detach().clone()

    return keep
