"""The proof that a bridge is the model it claims to be, and that its hooks bite.

A bridge re-implements attention and norms around the weights of a Hugging Face model. For some families the
copy computes something else, and for some it hands hooks a tensor that the model never uses, so that an
edit does nothing and says nothing. Both are found before a single number is measured:

* logits, every residual stream and every attention pattern equal those of the plain model, run with eager
  attention on a short prompt;
* every attention pattern and every norm scale, replaced by a fresh leaf, receives a gradient: what a hook
  returns is what the model goes on with.
"""

import copy
import warnings
import weakref
from typing import Any

import torch
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.errors import InputError, UnsoundModelError
from squashlens.model.anatomy import device_of, dtype_of, n_blocks, pattern_site, residual_site
from squashlens.model.hooks import Hook, applied, without_ambient

PROBE_TOKENS = 12
# Largest difference allowed, relative to the largest entry of what is compared. float64 models still run
# norms and softmax in float32; half precision differs by the order of operations alone.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 6e-2}

_status: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()


def shared_copy(model: Any) -> Any:
    """A structural copy that shares the parameters: taken before bridging, it stays the plain model."""
    return copy.deepcopy(model, memo={id(p): p for p in model.parameters()})


def status(model: Bridge) -> str:
    """``"verified"`` or ``"unverified"``, for the provenance."""
    return _status.get(model, "unverified")


def accept_unverified(model: Bridge) -> None:
    """Let a bridge be measured without proof; every result of it says so."""
    _status[model] = "unverified"


def require_sound(model: object) -> Bridge:
    """Refuse what cannot be measured; prove a bridge from elsewhere at first sight."""
    from transformer_lens.model_bridge import TransformerBridge

    if not isinstance(model, TransformerBridge):
        raise InputError(
            f"Expected a TransformerBridge, got {type(model).__name__}.",
            "Load one: `squashlens.load('tiny-gemma')`, or `TransformerBridge.boot_transformers(…)`.",
        )
    if model.compatibility_mode:
        raise InputError(
            "This bridge is in compatibility mode, which folds weights and changes the residual basis.",
            "Boot a fresh one and do not call `enable_compatibility_mode`; it cannot be undone.",
        )
    if model.training or model.original_model.training:
        raise InputError("The model is in train mode, so dropout may be active.", "Call `model.eval()`.")
    if model not in _status:
        with torch.inference_mode(False), without_ambient(model):
            prove(model, rebuild_plain(model))
    return model


def rebuild_plain(model: Bridge) -> Any:
    """The plain model of a bridge booted elsewhere: its configuration around its own parameters.

    `model.original_model` will not do: it has been rewired and shares the bridge's faults.
    """
    from accelerate import init_empty_weights

    wrapped: Any = model.original_model
    config = copy.deepcopy(wrapped.config)
    config._attn_implementation = "eager"
    weights = {key.replace("._original_component", ""): value for key, value in wrapped.state_dict().items()}
    try:
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


def prove(model: Bridge, plain: Any) -> None:
    """Compare the bridge with the plain model and test its hooks; raises `UnsoundModelError`."""
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
    _require_live(model, ids, patterns, name, "attention-pattern")
    _require_live(model, ids, scales, name, "norm-scale")
    _status[model] = "verified"


def probe_ids(model: Bridge) -> Tensor:
    """A short prompt of distinct tokens spread over the vocabulary."""
    vocabulary = int(model.cfg.d_vocab)
    return torch.linspace(0.1, 0.9, PROBE_TOKENS).mul(vocabulary - 1).long()[None].to(device_of(model))


def _require_agreement(model: Bridge, plain: Any, ids: Tensor, name: str) -> None:
    seen: dict[str, Tensor] = {}
    # The plain model's hidden states are v⁽⁰⁾ … v⁽ᴸ⁻¹⁾ and then y; v⁽ᴸ⁾ is not among them.
    streams = [residual_site(layer, model) for layer in (*range(n_blocks(model)), "y")]
    patterns = [pattern_site(block) for block in range(n_blocks(model))]
    with torch.no_grad(), applied(model, *(Hook("look", s, _keep(seen, s)) for s in (*streams, *patterns))):
        logits = model(ids, use_cache=False)
        truth = plain(ids, use_cache=False, output_attentions=True, output_hidden_states=True)
    pairs = [("logits", logits, truth.logits)]
    if not truth.attentions or any(a is None for a in truth.attentions):
        raise UnsoundModelError(f"The plain {name} returns no attention patterns.", "It cannot be proved here.")
    pairs += [(site, seen[site], state) for site, state in zip(streams, truth.hidden_states, strict=True)]
    pairs += [(site, seen[site], pattern) for site, pattern in zip(patterns, truth.attentions, strict=True)]
    for what, ours, theirs in pairs:
        _require_close(what, ours, theirs, name, TOLERANCE[dtype_of(model)])


def _require_close(what: str, ours: Tensor, theirs: Tensor, name: str, tolerance: float) -> None:
    if ours.shape != theirs.shape:
        problem = f"has shape {tuple(ours.shape)} instead of {tuple(theirs.shape)}"
    else:
        difference = (ours.double() - theirs.double()).abs().max().item()
        allowed = tolerance * max(1.0, theirs.abs().max().item())
        if difference <= allowed:  # false for NaN too
            return
        problem = f"is off by {difference:.2g} (allowed {allowed:.2g})"
    raise UnsoundModelError(
        f"The bridge of {name} is not the plain model: {what} {problem}.",
        "Numbers from it would be wrong, so it is refused; use another family, or report the model's "
        "configuration to TransformerLens.",
    )


def _keep(seen: dict[str, Tensor], site: str) -> Any:
    def keep(tensor: Tensor) -> None:
        seen[site] = tensor.detach().clone()

    return keep


def _require_live(model: Bridge, ids: Tensor, sites: list[str], name: str, kind: str) -> None:
    """Replace each site by a leaf in one forward pass; a leaf without gradient was never used."""
    leaves: dict[str, Tensor] = {}

    def replace(site: str) -> Any:
        def by_leaf(tensor: Tensor) -> Tensor:
            # Scaled a little: a norm falls back to the edited value only where it differs.
            leaves[site] = (tensor.detach() * 1.01).requires_grad_()
            return leaves[site] * 1.0

        return by_leaf

    remedy = "Ablations and freezing would silently do nothing, so the model is refused."
    try:
        with (
            warnings.catch_warnings(),
            torch.enable_grad(),
            applied(model, *(Hook("probe", s, replace(s)) for s in sites)),
        ):
            warnings.simplefilter("ignore")  # the bridge warns of every edited norm, which is the point here
            logits = model(ids, use_cache=False).float()
            weights = torch.sin(torch.arange(logits.numel(), device=logits.device)).view_as(logits)
            gradients: list[Tensor | None] = [None] * len(leaves)
            if logits.requires_grad:  # else no leaf reached them at all
                gradients = list(
                    torch.autograd.grad((logits * weights).sum(), list(leaves.values()), allow_unused=True)
                )
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, AttributeError, TypeError) as error:  # a component that cannot go on from an edit
        raise UnsoundModelError(f"Replacing the {kind} hooks of {name} fails: {error}.", remedy) from error
    fired = dict(zip(leaves, gradients, strict=True))
    dead = [s for s, g in fired.items() if g is None or not g.abs().max().item() > 0]
    silent = [s for s in sites if s not in fired] if kind == "attention-pattern" else []
    if dead or silent or not fired:
        where = (dead + silent or [f"no {kind} hook at all"])[0]
        raise UnsoundModelError(f"The {kind} hooks of {name} are inert ({where}).", remedy)
