"""Test that hooks take effect, before a result under them is trusted.

Some architectures pass a hook a tensor that the model never uses, so an edit there silently does nothing. At the first
use of a hook point, a tensor of zeros is added to its activation, and the last logits must depend on it.
"""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from squashlens._typing import Bridge, listed
from squashlens.checks.arguments import validated
from squashlens.errors import FAILURES, InputError, SquashlensError, UnsoundModelError
from squashlens.model.anatomy import context_length, device_of, last_logits, n_tokens
from squashlens.model.hooking.hook import (
    Hook,
    HookLike,
    Watcher,
    expanded_hooks,
    torch_hook,
    watchers,
)
from squashlens.model.hooking.standing import (
    BeforePasses,
    attached,
    belongs_to_a_library,
    without_ambient,
)
from squashlens.model.proof import opened, require_bridge
from squashlens.model.snapshot import layout_of

PROBE_TOKENS = 12


@validated
@contextmanager
def applied(model: Bridge, *hooks: HookLike) -> Iterator[Bridge]:
    """Run the body with `hooks` on `model`, and remove them afterwards, also after an exception.

    Every hook point is tested at its first use on a model, and again after the model was changed. Hooks act in the
    given order, after hooks that are already there.

    Args:
        model: a bridge.
        hooks: hooks of squashlens such as `mask_tokens`, `Hook` objects, pairs ``(hook point, function)`` as in
            TransformerLens's `fwd_hooks`, or lists of these. A filter of names may replace the hook point. A function
            is called as ``function(tensor)`` or ``function(tensor, hook=point)``, as its signature allows. The token
            ids of the pass, (prompt, position), are ``hook.ctx["token_ids"]``.

    Yields:
        The model. The provenance of results names a pair by its function's qualified name. A file is resumed only
        under hooks of the same names and source.

    Raises:
        InputError: an unknown hook point, or a function with another signature; during a pass, a function that returns
            anything but a tensor of the same shape, dtype and device; at the end, a hook all of whose positions are
            beyond the end of every prompt.
        UnsoundModelError: edits at a hook point have no effect in this model.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> def halve(z, hook):
    ...     return z / 2
    >>> with sl.applied(model, ("blocks.3.attn.hook_z", halve)):
    ...     answer = sl.top_tokens(model, "How many ones are in the following sequence? 110 =", k=1)
    >>> sl.results.provenance(answer)["ambient_hooks"]
    ['blocks.3.attn.hook_z: halve']
    """
    require_bridge(model)
    with ExitStack() as stack:
        # Not around the body: the measurements in it check themselves whether the model was changed.
        with opened(model):
            expanded = expanded_hooks(model, hooks)
            stack.enter_context(attached(model, *expanded))
            sites: list[str] = []
            for hook in expanded:
                sites += hook.points(len(model.blocks))
            require_effective(model, sites)
        stack.enter_context(_watched_passes(model, expanded))
        stack.enter_context(warnings.catch_warnings())
        # The user asked for this edit.
        warnings.filterwarnings("ignore", message="A forward hook edited hook_scale")
        yield model


@contextmanager
def _watched_passes(model: Bridge, hooks: list[Hook]) -> Iterator[None]:
    """Give users' hooks the token ids of each pass, and refuse passes in which hooks by position would be wrong.

    `BeforePasses` does both. After the body, raise if a hook's positions are beyond the end of every prompt.
    """
    points = layout_of(model).points
    users_points: list[Any] = []
    names_by_position: list[str] = []
    for hook in hooks:
        if not belongs_to_a_library(hook.edit):
            for site in hook.points(len(model.blocks)):
                users_points.append(points[site])
        if hook.positional:
            names_by_position.append(hook.name)
    passes = BeforePasses(users_points, names_by_position)
    with ExitStack() as stack:
        stack.callback(passes.forget)
        torch_hook(stack, model.original_model, passes, before=True, with_kwargs=True)
        yield
    n = passes.longest_prompt  # 0 without any pass
    for hook in hooks:
        if n and isinstance(hook.positional, tuple) and min(hook.positional) >= n:
            raise InputError(
                f"{hook.name} changed nothing: it acts from position {min(hook.positional)} on, and the longest prompt "
                f"has {n} tokens.",
                "Give positions below the number of tokens; `squashlens.hooks.find_positions` finds those of a text.",
            )


def require_effective(model: Bridge, sites: list[str]) -> None:
    """Raise an error for hook points without effect; each is tested once for each state of the model."""
    with opened(model) as proof:
        # The points that passed the test, an empty set (`set[str]()`) at first.
        effective = proof.once("effective hook points", set[str])
        new = [site for site in dict.fromkeys(sites) if site not in effective]
        if not new:
            return
        name = type(model.original_model).__name__
        remedy = "Leave them out, or turn them on: `model.set_use_attn_result(True)` does so for `hook_result`."
        try:
            with without_ambient(model):
                wrong = ineffective_points(model, new)
        except (torch.OutOfMemoryError, SquashlensError):
            raise
        except FAILURES as error:  # a component that fails after an edit
            raise UnsoundModelError(
                f"Edits at hook points of {name} fail: {error}.", remedy
            ) from error
        if wrong:
            raise UnsoundModelError(
                f"Edits at {listed(wrong)} have no effect in {name}: the model does not use what the hook returns.",
                remedy,
            )
        effective.update(new)


def probe_ids(model: Bridge) -> Tensor:
    """A short prompt, (1, position), of tokens spread over the vocabulary, distinct if that is large enough."""
    vocabulary = n_tokens(model)
    length = min(PROBE_TOKENS, context_length(model) or PROBE_TOKENS)
    ids = torch.linspace(0.1, 0.9, length) * (vocabulary - 1)
    return ids.long()[None].to(device_of(model))


def run_probe(model: Bridge, *hooks: Watcher) -> Tensor:
    """The last logits of the probe prompt, from a pass with `hooks`."""
    with attached(model, *hooks):
        return model(probe_ids(model), use_cache=False, **last_logits(model))


def ineffective_points(model: Bridge, sites: list[str]) -> list[str]:
    """The sites whose tensor the model does not use for the last logits, or that do not fire, as it is run now."""
    leaves: dict[str, Tensor] = {}
    hooks = watchers(sites, partial(_with_leaf, leaves))
    with warnings.catch_warnings(), torch.enable_grad():
        # The bridge warns about edited norms, which are intended here.
        warnings.simplefilter("ignore")
        logits = run_probe(model, *hooks).float()
        if not logits.requires_grad:
            return sites  # no added tensor reached the logits
        # Derivatives need one number: a sum of all logits with different weights.
        weights = torch.arange(logits.numel(), device=logits.device).sin()
        total = (logits.flatten() * weights).sum()
        gradients = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    # A gradient of zero also counts: the model uses the tensor, but its value has no influence.
    effective: set[str] = set()
    for site, gradient in zip(leaves, gradients, strict=True):
        if gradient is not None and bool(gradient.isfinite().all()):
            effective.add(site)
    return [site for site in sites if site not in effective]


def _with_leaf(leaves: dict[str, Tensor], site: str, tensor: Tensor) -> Tensor:
    """The tensor at a site, scaled slightly, plus a new leaf of zeros, which `leaves[site]` keeps.

    Scaled, because a norm uses an edited value only if it differs. Added, so that the leaf of one site does not cut off
    the leaves below it.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise InputError(
            f"The tensor at hook point {site!r} is not an activation but token ids ({tensor.dtype}).",
            "Use a later hook point, such as 'embed.hook_out', or let your filter of names leave it out.",
        )
    leaves[site] = torch.zeros_like(tensor).requires_grad_()
    return tensor * 1.01 + leaves[site]
