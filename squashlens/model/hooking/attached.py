"""Add hooks to a model within a context, remove exactly these, and check what users' functions return."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
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
from squashlens.model.layout import layout_of
from squashlens.model.live import POINTS, live_attention

if TYPE_CHECKING:
    from transformer_lens.hook_points import HookPoint


@contextmanager
def attached(model: Bridge, *hooks: Hook) -> Iterator[Bridge]:
    """Run the body with `hooks` on `model`, without the tests of `squashlens.applied`, and remove exactly these."""
    with ExitStack() as stack:
        known, n_blocks = layout_of(model).points, len(model.blocks)
        points = [(hook, name) for hook in hooks for name in hook.points(n_blocks)]
        if any(name.endswith(POINTS) for _, name in points):
            stack.enter_context(live_attention(model))
        counting = [(hook.name, name) for hook, name in points if hook.positional]
        if counting:
            torch_hook(
                stack,
                model.original_model,
                WholePassesOnly(counting),
                before=True,
                with_kwargs=True,
            )
        added: list[Hook] = []
        for hook, name in points:
            if name not in known:
                raise _unknown(model, hook, name)
            if (
                str(known[name].name).endswith(_LATENT)
                and known[name].hook_conversion is None
            ):
                raise InputError(
                    f"{hook.name}: {name} of this bridge has heads before positions, unlike in other models.",
                    "Load the model with `squashlens.load`, which puts positions first.",
                )
            # One object for each hook point, so that exactly this hook is removed; its parts are checked already.
            added.append(copy.copy(hook))
            vars(added[-1]).update(site=name, blocks=None)
            sink = (
                learned_sink(model, int(name.split(".")[1]))
                if hook.takes_sink
                else None
            )
            if sink is not None:
                vars(added[-1]).update(edit=partial(hook.edit, sink=sink))
            stack.callback(
                _remove, known[name], added[-1]
            )  # before adding, in case of an interruption
            known[name].add_hook(added[-1])
        here = [
            Standing(hook.site, hook, known[hook.site], "_forward_hooks")
            for hook in added
        ]
        stack.enter_context(known_hooks(model, [*standing(model), *here]))
        theirs = [known[hook.place] for hook in here if hook.is_a_users]
        if theirs:
            tell = TellTokens(theirs)
            torch_hook(stack, model.original_model, tell, before=True, with_kwargs=True)
            stack.callback(tell.forget)
        yield model
        gone = [
            hook
            for hook in added
            if all(h.user_hook is not hook for h in known[hook.site].fwd_hooks)
        ]
        if gone:
            raise InputError(
                f"The hook {gone[0].name} at {gone[0].site} was removed from the model while it was in use.",
                "Do not call `reset_hooks` in this context or in a hook. Hooks from `with model.hooks(…)` are removed "
                "automatically.",
            )


@dataclass(frozen=True, eq=False)
class TellTokens:
    """A PyTorch hook before the whole model: users' hooks find the token ids of a pass as ``hook.ctx["token_ids"]``."""

    points: Sequence["HookPoint"]

    def __call__(
        self, _module: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        for point in self.points:
            point.ctx["token_ids"] = ids

    def forget(self) -> None:
        for point in self.points:
            point.ctx.pop("token_ids", None)


_LATENT = (
    "attn.hook_q",
    "attn.hook_k",
    "attn.hook_v",
)  # points of latent attention; other models have them elsewhere


def _unknown(model: Bridge, hook: Hook, name: str) -> InputError:
    """The error for a hook point that the model does not have."""
    with_attention = [
        number for number, block in enumerate(model.blocks) if "attn" in block._modules
    ]
    if (
        ".attn." in name
        and with_attention
        and f"blocks.{with_attention[0]}.{name.split('.', 2)[2]}" in model.hook_dict
    ):
        return InputError(
            f"{hook.name}: block {name.split('.')[1]} of this model has no attention.",
            f"Blocks with attention are {', '.join(map(str, with_attention))}.",
        )
    near = get_close_matches(name, model.hook_dict, n=1)
    return InputError(
        f"{hook.name}: this model has no hook point {name!r}.",
        (f"Did you mean {near[0]!r}? " if near else "")
        + "`model.hook_dict` lists the hook points.",
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
    theirs: dict[tuple[str, nn.Module], list[Any]] = {}
    for hook in standing(model):
        if hook.point is not None and hook.module is not None:
            theirs.setdefault((hook.point, hook.module), []).append(hook.function)
    with ExitStack() as stack:
        for (site, point), functions in theirs.items():
            if torch.is_grad_enabled() and site.endswith(".hook_pattern"):
                torch_hook(stack, point, _copied, before=True)
            unchecked = [one for one in functions if not isinstance(one, Hook)]
            if unchecked:
                name = " or ".join(map(function_name, unchecked))
                _check_around(stack, point, name, site)
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
