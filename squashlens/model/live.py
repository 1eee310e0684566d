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
from squashlens.arguments import validated
from squashlens.errors import InputError, UnsoundModelError
from squashlens.model.anatomy import context_length, device_of
from squashlens.model.hooks import Filtered, Hook, distinct_points, hung, without_ambient
from squashlens.model.locks import locked, require_bridge
from squashlens.model.plain import Given, spelt_out
from squashlens.model.registry import proved, steady

PROBE_TOKENS = 12
REPLACED = "replaced"  # by a user's hooks


@validated
@contextmanager
def applied(model: Bridge, *hooks: Given) -> Iterator[Bridge]:
    """Run the body with `hooks` on `model`; on leaving, also by an exception, they are gone.

    A hook is one of squashlens's, such as `mask_tokens`; a `Hook`; or a pair as in TransformerLens's `fwd_hooks`,
    ``(hook point, function)``, with a filter of names in place of the point if wanted. A filter leaves out points that
    token ids pass, which are no activations. Lists of hooks are taken too. A function is called as ``function(tensor)``
    or ``function(tensor, hook=point)``, as its signature allows. In the provenance a pair is named by its function's
    qualified name, which does not say what the function does: under it `resume=` is refused, and a capture is for that
    function alone.

    Hooks act in the order given, after those already there. Other threads that want to use the model wait until the
    context is left.

    Refuses: an unknown hook point, and one where edits do nothing (each is probed at its first use on a model, and
    again after the model was changed); a function of another signature; and, in the pass that meets it, a function that
    returns anything but a tensor of the same shape, dtype and device, or NaN where it was given numbers.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> def halve(z, hook):
    ...     return z / 2
    >>> with sl.applied(model, ("blocks.3.attn.hook_z", halve)):
    ...     answer = sl.next_token(model, "How many ones are in the following sequence? 110 =", top=1)
    >>> sl.provenance(answer)["ambient_hooks"]
    ['blocks.3.attn.hook_z: halve']
    """
    require_bridge(model)
    with locked(model), ExitStack() as stack:
        # Not around the body: what is run there checks for itself whether the model was changed.
        with steady(model):
            spelt = _of_activations(model, spelt_out(model, hooks))
            stack.enter_context(hung(model, *spelt))
            require_live(model, [site for hook in spelt for site in hook.points(len(model.blocks))])
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="A forward hook edited hook_scale")  # which is what was asked
        yield model


def _of_activations(model: Bridge, hooks: list[Hook]) -> list[Hook]:
    """The hooks without those that a filter of names put where no activations pass but token ids."""
    if not any(isinstance(hook, Filtered) for hook in hooks):
        return hooks
    others = proved(model, "points of ids", lambda: _points_of_ids(model))
    aside = {id(hook) for hook in hooks if isinstance(hook, Filtered) and model.hook_dict[hook.site].name in others}
    kept = [hook for hook in hooks if id(hook) not in aside]
    if not kept:
        raise InputError(
            f"{hooks[0].name}: the filter is true of no hook point but {hooks[0].site!r}, which token ids pass.",
            "Choose hook points of activations, such as those of the blocks.",
        )
    return kept


def _points_of_ids(model: Bridge) -> set[str]:
    """Hook points, by their own names, that whole numbers pass in a forward pass."""
    found: set[str] = set()

    def look(tensor: object, hook: object) -> None:
        if not _is_activation(tensor):
            found.add(str(getattr(hook, "name", None)))

    hooks = [Hook("look", name, look) for name, point in distinct_points(model).items() if name in model.hook_dict]
    with torch.inference_mode(False), torch.no_grad(), without_ambient(model), hung(model, *hooks):
        model(probe_ids(model), use_cache=False)
    return found


def _is_activation(tensor: object) -> bool:
    return isinstance(tensor, Tensor) and (tensor.is_floating_point() or tensor.is_complex())


def require_live(model: Bridge, sites: list[str], kind: str = REPLACED, *, all_fire: bool = True) -> None:
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
        raise UnsoundModelError(
            f"Replacing {'activations at' if kind == REPLACED else f'the {kind}'} hooks of {name} fails: {error}.",
            remedy,
        ) from error
    dead = [site for site, reached in fired.items() if not reached]
    silent = [s for s in sites if s not in fired] if all_fire else []
    if kind == REPLACED and (dead or silent):
        inert = dead + silent
        more = f" and {len(inert) - 4} more" if len(inert) > 4 else ""
        raise UnsoundModelError(
            f"Edits at {', '.join(inert[:4])}{more} do nothing in {name}: the hook point is inert, the model does not "
            "go on with its tensor.",
            "Choose other hook points, or a filter that leaves these out.",
        )
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
    if not _is_activation(tensor):
        raise InputError(
            f"What passes the hook point {site!r} is no activation but token ids ({tensor.dtype}).",
            "Hook what is made of them: the embedding's output is 'embed.hook_out'.",
        )
    leaves[site] = torch.zeros_like(tensor).requires_grad_()
    return tensor * 1.01 + leaves[site]
