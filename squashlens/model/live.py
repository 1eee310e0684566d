"""Hooks that bite: before an edit is believed, what a hook point returns is shown to be what the model goes on with.

Some families hand a hook a tensor that the model never uses; an edit there does nothing and says nothing. So
at the first use of a hook point something is added to its tensor, and what was added must be part of what the logits
are computed from.
"""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.errors import UnsoundModelError
from squashlens.model.anatomy import context_length, device_of
from squashlens.model.hooks import Hook, Recipe, hung, spelt_out, without_ambient
from squashlens.model.locks import locked
from squashlens.model.registry import proved, steady

PROBE_TOKENS = 12


@contextmanager
def applied(model: Bridge, *hooks: Hook | Recipe) -> Iterator[Bridge]:
    """Run the body with `hooks` on `model`; on leaving, also by an exception, they are gone.

    Hooks act in the order given, after those already there. An unknown hook point is refused, and so is one
    where edits do nothing: each is probed at its first use on a model, and again after the model was changed. Other
    threads that want to use the model wait until the context is left.

    Example::

        with squashlens.applied(model, squashlens.freeze_attention()):
            logits = model(tokens)
    """
    with locked(model), ExitStack() as stack:
        # Not around the body: what is run there checks for itself whether the model was changed.
        with steady(model):
            spelt = spelt_out(model, hooks)
            stack.enter_context(hung(model, *spelt))
            require_live(model, [site for hook in spelt for site in hook.points(len(model.blocks))])
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="A forward hook edited hook_scale")  # which is what was asked
        yield model


def require_live(model: Bridge, sites: list[str], kind: str = "replaced", *, all_fire: bool = True) -> None:
    """Refuse hook points whose tensor the model does not go on with; each is probed once per stamp."""
    with steady(model):
        live = proved(model, "live hook points", set[str])
        new = [site for site in dict.fromkeys(sites) if site not in live]
        if new:
            with torch.inference_mode(False), without_ambient(model):
                _probe(model, new, kind, all_fire)
            live.update(new)


def probe_ids(model: Bridge) -> Tensor:
    """A short prompt of tokens spread over the vocabulary, distinct if it has enough."""
    vocabulary = int(model.cfg.d_vocab)
    length = min(PROBE_TOKENS, context_length(model) or PROBE_TOKENS)
    return torch.linspace(0.1, 0.9, length).mul(vocabulary - 1).long()[None].to(device_of(model))


def _probe(model: Bridge, sites: list[str], kind: str, all_fire: bool) -> None:
    """Refuse where a leaf that is added is not part of what the logits are computed from."""
    name = type(model.original_model).__name__
    remedy = "Ablations and freezing would silently do nothing, so the model is refused."
    try:
        fired = _reached(model, sites)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, AttributeError, TypeError) as error:  # a component that cannot go on from an edit
        raise UnsoundModelError(f"Replacing the {kind} hooks of {name} fails: {error}.", remedy) from error
    dead = [site for site, reached in fired.items() if not reached]
    silent = [s for s in sites if s not in fired] if all_fire else []
    if dead or silent or not fired:
        where = (dead + silent or [f"no {kind} hook at all"])[0]
        raise UnsoundModelError(f"The {kind} hooks of {name} are inert ({where}).", remedy)


def dead_points(model: Bridge, sites: list[str]) -> list[str]:
    """Those of `sites` whose tensor the model does not go on with, as it is run now."""
    fired = _reached(model, sites)
    return [site for site in sites if not fired.get(site, False)]


def _reached(model: Bridge, sites: list[str]) -> dict[str, bool]:
    """Add a leaf at each site in one forward pass: for those that fire, whether the logits depend on it."""
    ids = probe_ids(model)
    leaves: dict[str, Tensor] = {}
    with (
        warnings.catch_warnings(),
        torch.enable_grad(),
        hung(model, *(Hook("probe", site, partial(_with_leaf, leaves, site)) for site in sites)),
    ):
        warnings.simplefilter("ignore")  # the bridge warns of every edited norm, which is the point here
        logits = model(ids, use_cache=False).float()
        weights = torch.sin(torch.arange(logits.numel(), device=logits.device)).view_as(logits)
        gradients: list[Tensor | None] = [None] * len(leaves)
        if logits.requires_grad:  # else no leaf reached them at all
            gradients = list(torch.autograd.grad((logits * weights).sum(), list(leaves.values()), allow_unused=True))
    # A gradient of zero is another matter: the model goes on with the tensor, to something that has no effect.
    pairs = zip(leaves, gradients, strict=True)
    return {site: g is not None and bool(torch.isfinite(g).all()) for site, g in pairs}


def _with_leaf(leaves: dict[str, Tensor], site: str, tensor: Tensor) -> Tensor:
    """Scaled a little: a norm falls back to the edited value only where it differs. Added, so that the leaf of one site
    does not cut off those below it."""
    leaves[site] = torch.zeros_like(tensor).requires_grad_()
    return tensor * 1.01 + leaves[site]
