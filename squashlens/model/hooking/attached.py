"""Add hooks to a model within a context, remove exactly these, and check what users' functions return."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from squashlens._typing import Bridge
from squashlens.errors import InputError
from squashlens.model.anatomy import learned_sink
from squashlens.model.digests import writes
from squashlens.model.hooking.hook import (
    Hook,
    WholePassesOnly,
    checked_result,
    function_name,
    torch_hook,
)
from squashlens.model.hooking.standing import Standing, known_hooks, standing
from squashlens.model.layout import kept_of, layout_of
from squashlens.model.live import POINTS, live_attention

if TYPE_CHECKING:
    from transformer_lens.hook_points import HookPoint


@contextmanager
def attached(model: Bridge, *hooks: Hook) -> Iterator[Bridge]:
    """Run the body with `hooks` on `model`, without the tests of `squashlens.applied`, and remove exactly these."""
    points = layout_of(model).points
    n_blocks = len(model.blocks)
    placed = [(hook, name) for hook in hooks for name in hook.points(n_blocks)]
    with ExitStack() as stack:
        if any(name.endswith(POINTS) for _, name in placed):
            stack.enter_context(live_attention(model))
        counting = [(hook.name, name) for hook, name in placed if hook.positional]
        if counting:
            _before_passes(stack, model, WholePassesOnly(counting))
        added = [_add(stack, model, hook, name) for hook, name in placed]
        here = [Standing(h.site, h, points[h.site], "_forward_hooks") for h in added]
        stack.enter_context(known_hooks(model, [*standing(model), *here]))
        _tell_tokens(stack, model, [points[h.place] for h in here if h.is_a_users])
        yield model
        for hook in added:
            if all(held.user_hook is not hook for held in points[hook.site].fwd_hooks):
                raise InputError(
                    f"The hook {hook.name} at {hook.site} was removed from the model while it was in use.",
                    "Do not call `reset_hooks` in this context or in a hook. Hooks from `with model.hooks(…)` are "
                    "removed automatically.",
                )


def _add(stack: ExitStack, model: Bridge, hook: Hook, name: str) -> Hook:
    """Add a hook at one hook point, until the stack is left."""
    point = layout_of(model).points.get(name)
    if point is None:
        raise _unknown(model, hook, name)
    if str(point.name).endswith(_LATENT) and point.hook_conversion is None:
        raise InputError(
            f"{hook.name}: {name} of this bridge has heads before positions, unlike in other models.",
            "Load the model with `squashlens.load`, which puts positions first.",
        )
    # One object for each hook point, so that exactly this hook is removed; its parts are checked already.
    here = copy.copy(hook)
    vars(here).update(site=name, blocks=None, kept=kept_of(model))
    sink = learned_sink(model, int(name.split(".")[1])) if hook.takes_sink else None
    if sink is not None:
        vars(here).update(edit=partial(hook.edit, sink=sink))
    stack.callback(_remove, point, here)  # before adding, in case of an interruption
    point.add_hook(here)
    return here


def _before_passes(stack: ExitStack, model: Bridge, call: Callable[..., None]) -> None:
    """Call a function with the arguments of every pass of the model."""
    torch_hook(stack, model.original_model, call, before=True, with_kwargs=True)


def _tell_tokens(
    stack: ExitStack, model: Bridge, points: Sequence["HookPoint"]
) -> None:
    """Let the hooks at some points find the token ids of a pass as ``hook.ctx["token_ids"]``."""

    def tell(_module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        for point in points:
            point.ctx["token_ids"] = ids

    if points:
        _before_passes(stack, model, tell)
    for point in points:
        stack.callback(point.ctx.pop, "token_ids", None)


# Points of latent attention; other models have them elsewhere.
_LATENT = ("attn.hook_q", "attn.hook_k", "attn.hook_v")


def _unknown(model: Bridge, hook: Hook, name: str) -> InputError:
    """The error for a hook point that the model does not have."""
    if ".attn." in name:
        _, block, point = name.split(".", 2)
        others = [
            str(number)
            for number in range(len(model.blocks))
            if f"blocks.{number}.{point}" in model.hook_dict
        ]
        if others:
            return InputError(
                f"{hook.name}: block {block} of this model has no attention.",
                f"Blocks with attention are {', '.join(others)}.",
            )
    near = get_close_matches(name, model.hook_dict, n=1)
    guess = f"Did you mean {near[0]!r}? " if near else ""
    return InputError(
        f"{hook.name}: this model has no hook point {name!r}.",
        f"{guess}`model.hook_dict` lists the hook points.",
    )


def _remove(point: "HookPoint", hook: Hook) -> None:
    """Remove one hook from its point, where `HookPoint.remove_hooks` removes all."""
    for handle in [handle for handle in point.fwd_hooks if handle.user_hook is hook]:
        handle.hook.remove()
        point.fwd_hooks.remove(handle)


@contextmanager
def checking_results(model: Bridge) -> Iterator[None]:
    """Check, while the body runs, the results of functions that others added at hook points, as for a `Hook`.

    Where gradients are on, patterns are copied before hooks may write to them: the softmax's derivative needs its own.
    """
    with ExitStack() as stack:
        names: dict[tuple[str, nn.Module], list[str]] = {}
        for hook in standing(model):
            if hook.point is None or hook.module is None:
                continue
            there = names.setdefault((hook.point, hook.module), [])
            if not isinstance(hook.function, Hook):
                there.append(function_name(hook.function))
        for (site, point), unchecked in names.items():
            if torch.is_grad_enabled() and site.endswith(".hook_pattern"):
                torch_hook(stack, point, _copied, before=True)
            if unchecked:
                _check_around(stack, point, " or ".join(unchecked), site)
        yield


def _copied(_point: object, entering: tuple[Any, ...]) -> tuple[Any, ...]:
    return (entering[0].clone(), *entering[1:])


def _check_around(stack: ExitStack, point: nn.Module, name: str, site: str) -> None:
    """Check what the functions at a point give, together."""
    before: list[int] = []

    def look(_point: object, entering: tuple[Any, ...]) -> None:
        before.append(writes(entering[0]))

    def check(_point: object, entering: tuple[Any, ...], result: object) -> Any:
        return checked_result(name, site, entering[0], before.pop(), result)

    torch_hook(stack, point, look, before=True)
    torch_hook(stack, point, check, before=False)
