"""Verify once that a TransformerLens bridge reproduces the Hugging Face model, and that the measurements hold for it.

A bridge re-implements attention and norms around the weights of a Hugging Face model, and for some architectures it
computes something else. Before anything is measured, the last logits, every residual stream and every attention pattern
must equal those of the plain model, which runs with eager attention on a short prompt, up to rounding. Tokens must
depend on earlier tokens only, and whether they do so only through attention patterns is found too (`premises`). Hook
points are tested at their first use (`applied`).
"""

import copy
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from squashlens._typing import Bridge, dtype_name, listed
from squashlens.errors import InputError, ModelAccessError, UnsoundModelError
from squashlens.model.agreement import (
    FREQUENCIES,
    IN_FLOAT64,
    TOLERANCE,
    agree,
    difference,
    is_finite,
)
from squashlens.model.anatomy import (
    device_of,
    dtype_of,
    forget_lengths,
    is_native,
    n_blocks,
    pattern_site,
    residual_site,
)
from squashlens.model.applied import probe_ids, run_probe
from squashlens.model.digests import parts
from squashlens.model.hooking.hook import torch_hook, watchers
from squashlens.model.hooking.standing import without_ambient
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
AGAIN = "Download the checkpoint again, or save it again with `save_pretrained`."


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
    """Verify a bridge that was made elsewhere, or changed, against a plain model built from itself."""
    with without_ambient(model):
        require_finite(model.original_model, type(model.original_model).__name__)
        plain = rebuild_plain(model)
        require_same_buffers(model.original_model, plain)
        prove(model, plain, OWN_MODULE if is_native(model) else AS_IT_STANDS)


def require_finite(model: nn.Module, source: str) -> None:
    """Raise an error for NaN or infinite entries in any parameter or buffer, in one pass without copies.

    They are signs of a damaged file. `source` is the model's name in the message.
    """
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise ModelAccessError(
                f"{name} of {source} is offloaded, so its values cannot be checked.",
                "Give a device= that holds them all.",
            )
        for part in parts(tensor.detach()):
            if part.numel() and part.is_floating_point():
                # A quantizer's float8 has no minimum.
                wide = part.float() if part.element_size() == 1 else part
                if not is_finite(wide):
                    raise _not_finite(wide, f"{name} of {source}")


def _not_finite(tensor: Tensor, name: str) -> ModelAccessError:
    """The error for a tensor with NaN or infinite entries."""
    wrong = (~torch.isfinite(tensor)).nonzero()
    remedy = AGAIN
    if tensor.dtype == torch.float16:
        remedy = f"{AGAIN} Or load it with dtype=torch.bfloat16 or torch.float32, whose range is larger."
    return ModelAccessError(
        f"{name} has {len(wrong)} NaN or infinite entries of {tensor.numel()}, the first at "
        f"{tuple(wrong[0].tolist())}.",
        remedy,
    )


def rebuild_plain(model: Bridge) -> Any:
    """Build the plain model of a bridge that was made elsewhere, from its configuration and its parameters.

    `model.original_model` cannot serve as the plain model: the bridge has changed it.
    """
    wrapped: Any = model.original_model
    name = type(wrapped).__name__
    try:
        plain = _without_weights(model)
        weights: dict[str, Tensor] = {}
        for name_in_bridge, weight in wrapped.state_dict().items():
            # The bridge wraps modules, which adds this part to the names of their weights.
            weights[name_in_bridge.replace("._original_component", "")] = weight
        needed = plain.state_dict().keys()
        missing = sorted(needed - weights.keys())
        if missing:
            raise UnsoundModelError(
                f"This {name} has no {listed(missing)}: other modules stand in place of its own, as with an adapter of "
                "peft that is not merged.",
                "Merge the adapter (`merge_and_unload`), and build the bridge around the result.",
            )
        # Assigned, not copied: the plain model shares the tensors.
        plain.load_state_dict({key: weights[key] for key in needed}, assign=True)
        if not is_native(model):
            _require_tied(plain)
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
    """A new plain model of a bridge's configuration; a native one in float32, as its class builds it."""
    from accelerate import init_empty_weights

    wrapped: Any = model.original_model
    if is_native(model):
        with torch.random.fork_rng(devices=[]):  # its random weights are replaced
            return type(wrapped)(copy.deepcopy(wrapped.cfg))
    config = copy.deepcopy(wrapped.config)
    config._attn_implementation = "eager"
    # Buffers are computed, since those of the bridge are compared with them.
    with init_empty_weights(include_buffers=False):
        return type(wrapped)(config)


def differing_tie(model: Any) -> tuple[str, str] | None:
    """The names of two weights that the configuration ties, but that have different numbers; None if there are none."""
    for name, other in model.get_expanded_tied_weights_keys(all_submodels=True).items():
        first = model.get_parameter(name)
        second = model.get_parameter(other)
        if first.data_ptr() == second.data_ptr():
            continue
        if not torch.equal(first.cpu(), second.cpu()):
            return name, other
    return None


def _require_tied(plain: Any) -> None:
    """Raise an error if weights that the configuration ties were untied, as by a new output head."""
    tie = differing_tie(plain)
    if tie is not None:
        name, other = tie
        raise UnsoundModelError(
            f"The configuration of this {type(plain).__name__} ties {name} to {other}, but they have different "
            "numbers.",
            "If they are meant to differ, set `model.original_model.config.tie_word_embeddings = False`.",
        )


def prove(model: Bridge, plain: Any, covers: str = VERIFIED) -> None:
    """Compare the bridge with the plain model, and find out what the mathematics needs to know of it.

    Raises if they differ, or if tokens depend on later ones. A success has the status `covers`: `VERIFIED` if `plain`
    is known to match the checkpoint.
    """
    _first_pass(model)
    with opened(model) as proof:
        _require_agreement(model, plain)
        require_causal(model)
        # Not an error yet: only some measurements need it.
        proof.findings[ATTENTION] = why_not_attention_alone(model)
        proof.status = covers
        settle(model, proof)


def _first_pass(model: Bridge) -> None:
    """Run the model once, which may set up the bridge; an error of several dtypes is put into words."""
    try:
        with torch.no_grad():
            run_probe(model)
    except RuntimeError as error:
        example_of: dict[str, str] = {}  # a parameter of each dtype
        for name, parameter in model.named_parameters():
            example_of[dtype_name(parameter.dtype)] = name
        if len(example_of) == 1 or "dtype" not in str(error):
            raise
        where = "; ".join(f"{dtype} as in {name}" for dtype, name in example_of.items())
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
            if _disagreement(model, plain, {torch.float64: IN_FLOAT64}) is None:
                problem = None
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
    """In words, the first tensor in which the two differ by more than this tolerance, and by how much; None if none."""
    name = type(model.original_model).__name__
    # The plain model's hidden states are v⁽⁰⁾ … v⁽ᴸ⁻¹⁾ and y, without v⁽ᴸ⁾.
    blocks = range(n_blocks(model))
    streams = [residual_site(layer, model) for layer in (*blocks, "y")]
    if streams[-1] not in model.hook_dict:
        raise UnsoundModelError(
            f"{name} has no hook point {streams[-1]}.", "Use a model with a final norm."
        )
    pattern_sites: list[str] = []  # blocks without attention have none
    for block in blocks:
        if pattern_site(block) in model.hook_dict:
            pattern_sites.append(pattern_site(block))
    forget_lengths(model)  # the plain model has had no pass yet
    ours = _run_bridge(model, [*streams, *pattern_sites])
    truth = _run_plain(plain, probe_ids(model))
    plain_patterns = [p for p in truth.attentions or () if p is not None]
    # A bridge without any is refused where they are needed.
    if pattern_sites and len(plain_patterns) != len(pattern_sites):
        raise UnsoundModelError(
            f"The plain {name} returns {len(plain_patterns)} attention patterns, and the bridge has hook points for "
            f"{len(pattern_sites)}, so the bridge cannot be verified.",
            "Use another model.",
        )
    # The bridge's pass has the logits of the last position, or of all.
    n_logits = ours["logits"].shape[1]
    expected = {"logits": truth.logits[:, -n_logits:]}
    expected |= zip(streams, truth.hidden_states, strict=True)
    # Not strict: where the bridge has no pattern sites, the plain model may return patterns all the same.
    expected |= zip(pattern_sites, plain_patterns, strict=False)
    dtype = dtype_of(model)
    for site, theirs in expected.items():
        # A pattern's hook point that does not fire is reported by `why_not_attention_alone`.
        if site not in ours and site in pattern_sites:
            continue
        tensor = ours[site]
        if tensor.shape != theirs.shape:
            return f"{site} has shape {tuple(tensor.shape)} instead of {tuple(theirs.shape)}"
        if not agree(tensor, theirs, dtype, tolerance=tolerance):
            error, allowed = difference(tensor, theirs, dtype, tolerance=tolerance)
            return f"{site} is off by {error:.2g} (allowed {allowed:.2g})"
    return None


def _run_bridge(model: Bridge, sites: list[str]) -> dict[str, Tensor]:
    """The activations at some hook points on the probe prompt, and the logits; each point may fire only once."""
    activations: dict[str, Tensor] = {}

    def keep(site: str, tensor: Tensor) -> None:
        """Keep the tensor at a site; raise if there is one already."""
        if site in activations:
            raise UnsoundModelError(
                f"{type(model.original_model).__name__} passes {site} more than once, so it is not clear where y is.",
                "Use another model.",
            )
        activations[site] = tensor.detach().clone()

    logits = run_probe(model, *watchers(sites, keep))
    return activations | {"logits": logits}


def _run_plain(plain: Any, ids: Tensor) -> Any:
    """The logits, hidden states v⁽⁰⁾ … v⁽ᴸ⁻¹⁾ and y, and attentions of a plain model."""
    if isinstance(plain, PreTrainedModel):
        return plain(
            ids, use_cache=False, output_attentions=True, output_hidden_states=True
        )
    # A native model of TransformerLens returns logits alone, so PyTorch hooks collect the rest, in the pass's order.
    streams: list[Tensor] = []
    patterns: list[Tensor] = []

    def keep_entering(_module: Any, args: Any) -> None:
        streams.append(args[0].detach().clone())

    def keep_pattern(_module: Any, _args: Any, out: Any) -> None:
        patterns.append(out[1].detach().clone())

    def keep_y(_module: Any, _args: Any, out: Tensor) -> None:
        streams.append(out.detach().clone())

    with ExitStack() as stack:
        torch_hook(stack, plain.ln_out, keep_y, before=False)
        for layer in plain.layers:
            torch_hook(stack, layer, keep_entering, before=True)
            torch_hook(stack, layer.attn, keep_pattern, before=False)
        logits = plain(ids)
    return SimpleNamespace(logits=logits, hidden_states=streams, attentions=patterns)


def require_same_buffers(inner: nn.Module, plain: nn.Module) -> None:
    """Compare the buffers of each module of a bridged model with those of a newly built model.

    A short prompt does not show every difference: rotary frequencies that were rounded, as by `.bfloat16()`, change it
    less than a long one.
    """
    # A module and the bridge around it get the same name here; the module comes later and stays.
    ours: dict[str, nn.Module] = {}
    for name, module in inner.named_modules():
        ours[name.replace("._original_component", "")] = module
    for name, theirs in plain.named_modules():
        module = ours.get(name)
        # Where the bridge has a module of its own, the logits test it.
        if module is None or type(module).__module__.startswith("transformer_lens"):
            continue
        for key, buffer in theirs._buffers.items():
            if buffer is not None and not _same(key, module._buffers.get(key), buffer):
                raise UnsoundModelError(
                    f"This {type(plain).__name__} does not match its configuration: {name}.{key} has other values, as "
                    "after `.to`, `.half` or `.bfloat16`.",
                    "Load the model again, with dtype= for the dtype of the run.",
                )


def _same(key: str, ours: Tensor | None, theirs: Tensor) -> bool:
    """Whether the buffers `key` of the two models are the same, up to the dtype of the run."""
    if ours is None or ours.shape != theirs.shape:
        return False
    ours = ours.cpu()
    theirs = theirs.cpu()
    if key.endswith("inv_freq"):
        # Must not be rounded: late positions multiply the error.
        return torch.allclose(ours.double(), theirs.double(), FREQUENCIES, atol=0)
    # The new model is in float32, whatever the dtype of the run.
    narrower = min(ours.dtype, theirs.dtype, key=lambda dtype: dtype.itemsize)
    return torch.equal(ours.to(narrower), theirs.to(narrower))
