"""Verify that a TransformerLens bridge reproduces the Hugging Face model, and that the measurements hold for it.

A bridge re-implements attention and norms around the weights of a Hugging Face model. For some architectures it
computes something else, and for some it passes hooks a tensor that the model never uses, so that edits silently do
nothing. This is tested before anything is measured:

* The last logits, every residual stream and every attention pattern equal those of the plain model, which runs with
  eager attention on a short prompt.
* A tensor that a hook adds to an attention pattern or norm scale receives a gradient from the logits.
* Tokens depend on earlier tokens only, and only through attention: path bounds multiply attention patterns, and would
  miss a state-space model beside attention, a convolution, or experts that take a limited number of tokens. If the last
  tokens are replaced, the streams at earlier positions must be the same. If every pattern is the identity, and some
  tokens are replaced, so must those of the others, and the weights that these give to each other. After a comparison,
  the streams are set to those of the prompt, since rounding may send a token to other experts in the next block.
"""

import copy
from collections.abc import Callable
from itertools import combinations, islice
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from squashlens._typing import Bridge
from squashlens.engine.agreement import SAME_OPERATIONS, agree, difference, same_frequencies
from squashlens.engine.anatomy import (
    device_of,
    dtype_of,
    forget_lengths,
    last_logits,
    modules_of,
    n_blocks,
    pattern_site,
    residual_site,
    residual_sites,
)
from squashlens.engine.hooking.hook import Hook, attached, distinct_points
from squashlens.engine.hooking.standing import without_ambient
from squashlens.engine.locks import require_bridge
from squashlens.engine.native import SCORES, is_native, plain_outputs, rebuilt
from squashlens.engine.proving import registry
from squashlens.engine.proving.complete import require_finite
from squashlens.engine.proving.effective import probe_ids, require_effective
from squashlens.engine.proving.fingerprint import BOOKKEEPING
from squashlens.errors import InputError, UnsoundModelError

_PROOF = "agrees with the plain model"
# What is verified: a model against its checkpoint, or a bridge against a plain model with the same weights, whose files
# were not compared.
VERIFIED, AS_IT_STANDS, UNVERIFIED = "verified", "verified as it stands", "unverified"
OWN_MODULE = "verified against its own module"
_SETTING = bool | int | float | str | None


def shared_copy(model: Any) -> Any:
    """A copy of the modules that shares the parameters; made before bridging, it stays the plain model."""
    return copy.deepcopy(model, memo={id(p): p for p in model.parameters()})


def status(model: Bridge) -> str:
    """What was verified of the model in its present state, for the provenance.

    ``"verified"``: `load` found the checkpoint complete, and the bridge agrees with the plain model made from it.
    ``"verified as it stands"``: the bridge agrees with a plain model of its own configuration and weights. These were
    not compared with a checkpoint (the bridge was made elsewhere, or the model was edited), or functions of the
    libraries were replaced, so that neither model computes what the checkpoint describes.
    ``"verified against its own module"``: the same for a model of TransformerLens's own (`boot_native`, tracr), which
    has no second implementation to compare with.
    ``"unverified"``: none of these.
    """
    return registry.recall(model, _PROOF) or UNVERIFIED


def accept_unverified(model: Bridge) -> None:
    """Allow measurements of a bridge in its present state without verification; every result says so."""
    registry.record(model, _PROOF, UNVERIFIED)


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
    if is_native(model):
        _require_no_hooks_on_scores(model)
    elif _in_train_mode(model):  # native models start so, without dropout
        raise InputError("The model is in train mode, so dropout may be active.", "Call `model.eval()`.")
    registry.proved(model, _PROOF, lambda: _proof_of(model))
    return model


def _in_train_mode(model: Bridge) -> bool:
    from transformer_lens.hook_points import HookPoint

    modules = (*modules_of(model), *modules_of(model.original_model))
    return any(module.training and not isinstance(module, HookPoint) for module in modules)


def _proof_of(model: Bridge) -> str:
    with torch.inference_mode(False), without_ambient(model):
        require_finite(model.original_model, type(model.original_model).__name__)
        plain = rebuild_plain(model)
        require_same_parts(model.original_model, plain)
        covers = OWN_MODULE if is_native(model) else AS_IT_STANDS
        prove(model, plain, covers)
    return covers


def _require_no_hooks_on_scores(model: Bridge) -> None:
    """Raise an error for hooks on a native model's attention logits that were added without `applied`."""
    for name, point in distinct_points(model).items():
        if name.endswith(SCORES) and not all(isinstance(held.user_hook, Hook) for held in point.fwd_hooks):
            raise UnsoundModelError(
                f"The hook at {name} has no effect: a TransformerLens model passes it the pattern after the softmax, "
                "and ignores its result.",
                "Remove it, and use `squashlens.applied(model, …)`, which passes it the logits and uses its result.",
            )


def rebuild_plain(model: Bridge) -> Any:
    """Build the plain model of a bridge from its configuration and parameters; the bridge has changed its own."""
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
            f"The plain {type(wrapped).__name__} could not be rebuilt from this bridge ({error}), so the bridge cannot "
            "be verified.",
            "Load the model with `squashlens.load`, which verifies it, or accept it without verification: "
            "`squashlens.engine.proving.proof.accept_unverified(model)`.",
        ) from error
    return plain.to(device_of(model)).eval()


def prove(model: Bridge, plain: Any, covers: str = VERIFIED) -> None:
    """Compare the bridge with the plain model, test hooks and premises, and record success with the status `covers`."""
    with torch.no_grad():
        model(probe_ids(model), use_cache=False, **last_logits(model))  # a bridge may set itself up at its first pass
    with registry.steady(model):
        _prove(model, plain)
        as_described = covers != VERIFIED or not registry.code_in(model).replaced
        registry.record(model, _PROOF, covers if as_described else AS_IT_STANDS)


def _prove(model: Bridge, plain: Any) -> None:
    name = type(plain).__name__
    blocks = range(n_blocks(model))
    patterns = [pattern_site(b) for b in blocks]
    missing = [s for s in (*patterns, residual_site("y", model)) if s not in model.hook_dict]
    if missing:
        raise UnsoundModelError(
            f"{name} has no {missing[0]}.", "Use a model with attention in every block and a final norm."
        )
    ids = probe_ids(model)
    _require_agreement(model, plain, ids, name)
    scales = sorted({p.name for k, p in model.hook_dict.items() if k.endswith("hook_scale") and p.name})
    require_effective(model, patterns, "attention-pattern", all_fire=True)
    require_effective(model, scales, "norm-scale", all_fire=False)
    require_premises(model)


def _require_agreement(model: Bridge, plain: Any, ids: Tensor, name: str) -> None:
    seen: dict[str, Tensor] = {}

    def keep(site: str) -> Callable[[Tensor], None]:
        return lambda tensor: seen.update({site: tensor.detach().clone()})

    forget_lengths(model)  # the plain model has had no pass yet
    # The plain model's hidden states are v⁽⁰⁾ … v⁽ᴸ⁻¹⁾ and y, without v⁽ᴸ⁾.
    streams = [residual_site(layer, model) for layer in (*range(n_blocks(model)), "y")]
    patterns = [pattern_site(block) for block in range(n_blocks(model))]
    with torch.no_grad(), attached(model, *(Hook("read", s, keep(s)) for s in (*streams, *patterns))):
        logits = model(ids, use_cache=False, **last_logits(model))
        truth = (
            plain_outputs(plain, ids)
            if is_native(model)
            else plain(ids, use_cache=False, output_attentions=True, output_hidden_states=True, **last_logits(model))
        )
    pairs = [("logits", logits, truth.logits)]
    if not truth.attentions or any(a is None for a in truth.attentions):
        raise UnsoundModelError(
            f"The plain {name} returns no attention patterns, so the bridge cannot be verified.", "Use another model."
        )
    pairs += [(site, seen[site], state) for site, state in zip(streams, truth.hidden_states, strict=True)]
    pairs += [(site, seen[site], pattern) for site, pattern in zip(patterns, truth.attentions, strict=True)]
    for what, ours, theirs in pairs:
        if agree(ours, theirs, dtype_of(model)):
            continue
        if ours.shape != theirs.shape:
            problem = f"has shape {tuple(ours.shape)} instead of {tuple(theirs.shape)}"
        else:
            error, allowed = difference(ours, theirs, dtype_of(model))
            problem = f"is off by {error:.2g} (allowed {allowed:.2g})"
        raise UnsoundModelError(
            f"The TransformerLens bridge does not reproduce the Hugging Face {name}: {what} {problem}.",
            "Use another model, or report the model's configuration to TransformerLens.",
        )


def require_same_parts(inner: nn.Module, plain: nn.Module) -> None:
    """Compare settings and buffers of each module of a bridged model with those of a newly built model.

    A short prompt does not show every difference: a slightly larger epsilon changes it by less than rounding.
    """
    # A module and the bridge around it have the same name here; the module comes later and is kept.
    ours = {name.replace("._original_component", ""): module for name, module in inner.named_modules()}
    for name, theirs in plain.named_modules():
        module = ours.get(name)
        if module is None or type(module).__module__.startswith("transformer_lens"):
            continue  # the bridge has its own module there, which the logits test
        lists = isinstance(module, nn.ModuleList) and isinstance(theirs, nn.ModuleList)  # the bridge makes its own
        if type(module) is not type(theirs) and not lists:
            _refuse(plain, name, f"is a {type(module).__qualname__} instead of a {type(theirs).__qualname__}")
        settings = {key: value for key, value in vars(theirs).items() if isinstance(value, _SETTING)}
        for key in settings.keys() - BOOKKEEPING:
            if (now := vars(module).get(key)) != settings[key]:
                _refuse(plain, f"{name}.{key}", f"is {now!r} instead of {settings[key]!r}")
        for key, buffer in theirs._buffers.items():
            if buffer is not None and not _same(key, module._buffers.get(key), buffer):
                _refuse(plain, f"{name}.{key}", "has other values")


def _same(key: str, ours: Tensor | None, theirs: Tensor) -> bool:
    if ours is None or key.endswith("inv_freq"):  # must not be rounded: late positions multiply the error
        return ours is not None and same_frequencies(ours, theirs)
    # The new model is in float32, whatever the dtype of the run.
    narrower = min(ours.dtype, theirs.dtype, key=lambda dtype: dtype.itemsize)
    return ours.shape == theirs.shape and torch.equal(ours.to(narrower), theirs.to(narrower))


def _refuse(plain: nn.Module, what: str, difference: str) -> None:
    raise UnsoundModelError(
        f"This {type(plain).__name__} does not match its configuration: {what} {difference}.",
        "Change the configuration and load the model again, in the dtype of the run.",
    )


Moved = dict[str, tuple[Tensor, Tensor]]  # by hook point: the differences and those allowed, (copy, position)
COPIES = 6
LEAST = 0.01  # Weights are compared if they sum to this: half precision rounds smaller ones too coarsely.


def require_premises(model: Bridge) -> None:
    """Raise an error if a token depends on later tokens, or on other tokens otherwise than through attention."""
    name = type(model.original_model).__name__
    if found := _violation(model, cut=False):
        raise UnsoundModelError(
            f"{name} is not causal: tokens depend on later ones. {found}",
            "Use a causal model. If the configuration allows attention to later tokens (use_bidirectional_attention, "
            "attention_dir), turn it off; compile a tracr program with `causal=True`.",
        )
    if found := _violation(model, cut=True):
        raise UnsoundModelError(
            f"In {name}, something besides attention passes between tokens, such as a state-space model, a convolution "
            f"or experts of limited capacity. {found} Every attention pattern was the identity.",
            "Use a model whose tokens are connected by attention only: bounds from attention patterns would miss the "
            "rest.",
        )


def _violation(model: Bridge, *, cut: bool) -> str:
    """The first place in the forward pass that moved although it must not; empty if there is none."""
    ids = probe_ids(model)
    n = ids.shape[1]
    if cut:  # tokens are replaced in different copies, so for any two, some copy replaces the one and not the other
        chosen = list(islice(combinations(range(COPIES), COPIES // 2), n))
        replaced = torch.tensor([[copy in copies for copies in chosen] for copy in range(COPIES)])
    else:
        replaced = torch.arange(n) >= torch.linspace(1, n - 1, COPIES).long()[:, None]
    for site, (error, allowed) in _find_moves(model, ids, replaced, cut=cut).items():
        wrong = ~replaced & ~(error <= allowed)  # true for NaN too
        if wrong.any():
            copy, position = wrong.nonzero()[0].tolist()
            tokens = ", ".join(map(str, replaced[copy].nonzero().flatten().tolist()))
            size = f"{float(error[copy, position]):.2g} (allowed {float(allowed[copy, position]):.2g})"
            return f"Replacing the tokens {tokens} of a prompt changes {site} at position {position} by {size}."
    return ""


def _find_moves(model: Bridge, ids: Tensor, replaced: Bool[Tensor, "copy position"], *, cut: bool) -> Moved:
    """How far each residual stream moves in its block if tokens are replaced; with `cut`, patterns are the identity."""
    vocabulary, dtype = int(model.cfg.d_vocab), dtype_of(model)
    copies = torch.where(replaced.to(ids.device), (ids + vocabulary // 2) % vocabulary, ids)
    found: Moved = {}

    def compare(site: str) -> Callable[[Tensor], Tensor]:
        def edit(stream: Tensor) -> Tensor:
            own = stream[:1].expand_as(stream[1:])
            error, allowed = difference(stream[1:], own, dtype, dim=-1, tolerance=SAME_OPERATIONS)
            found[site] = error.cpu(), allowed.cpu()
            return torch.cat([stream[:1], torch.where(replaced[..., None].to(stream.device), stream[1:], own)])

        return edit

    def replace(site: str) -> Callable[[Tensor], Tensor]:
        def edit(pattern: Tensor) -> Tensor:
            found[site] = _compare_weights(pattern, ~replaced, dtype)
            itself = torch.eye(*pattern.shape[-2:], dtype=pattern.dtype, device=pattern.device)
            return itself.repeat(*pattern.shape[:2], 1, 1)

        return edit

    hooks = [Hook("compare", site, compare(site)) for site in residual_sites(model)]
    hooks += [Hook("cut", site, replace(site)) for site in map(pattern_site, range(n_blocks(model))) if cut]
    forget_lengths(model)
    with torch.no_grad(), attached(model, *hooks):
        model(torch.cat([ids, copies]), use_cache=False, **last_logits(model))
    return found


def _compare_weights(
    pattern: Float[Tensor, "prompt head query key"], kept: Bool[Tensor, "copy position"], dtype: torch.dtype
) -> tuple[Float[Tensor, "copy position"], Float[Tensor, "copy position"]]:
    """How far the weights of the kept tokens move, as shares of their sum, and what is allowed."""
    weights, kept = pattern.detach().double(), kept.to(pattern.device)[:, None, None]
    (ours, one), (own, two) = ((w, w.sum(dim=-1, keepdim=True)) for w in (weights[1:] * kept, weights[:1] * kept))
    counted = (one > LEAST) & (two > LEAST)
    ours, own = ((w / total).where(counted, 0.0) for w, total in ((ours, one), (own, two)))
    error, allowed = difference(ours, own, dtype, dim=-1)
    worst = (error - allowed).argmax(dim=1, keepdim=True)
    return error.gather(1, worst)[:, 0].cpu(), allowed.gather(1, worst)[:, 0].cpu()
