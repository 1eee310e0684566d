"""Hooks as values that do not belong to a model, and the context manager that adds and removes them.

A `Hook` has a hook point (`site`), a function (`edit`) and a name that appears in the provenance. `attached`
adds it to a model and removes exactly that hook again; other hooks are not touched. A pair of a hook point and a
function, as in TransformerLens, becomes a `Hook`.

TransformerLens calls every hook as `fn(tensor, hook=point)`. A function of the tensor alone is also accepted. The model
continues with its result, so it must be a tensor of the same shape, dtype and device.
"""

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from typing_extensions import TypeAliasType

from squashlens._typing import Bridge, short_repr, whole
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.model.agreement import has_nan
from squashlens.model.anatomy import learned_sink
from squashlens.model.layout import layout_of
from squashlens.model.live import POINTS, live_attention
from squashlens.model.memory import later

if TYPE_CHECKING:
    from transformer_lens.hook_points import HookPoint


@validated
@dataclass(frozen=True)
class Hook:
    """One intervention: a function that edits or reads the activations at a hook point.

    Pass hooks to `squashlens.applied`.

    Args:
        name: name in the provenance of results. A file is resumed only under hooks of the same names and source code,
            so the name should state what else the edit depends on.
        site: hook point. With ``{block}`` in it, the hook acts at this point in each of `blocks`.
        edit: called as ``edit(tensor)`` or ``edit(tensor, hook=point)``, as its signature allows. It returns the
            replacement, a tensor of the same shape, dtype and device, or None to keep the activation as it left it.
        blocks: block numbers for a site with ``{block}``; all blocks by default.
        positional: True if `edit` counts positions from the start of the prompt, or the positions where it acts. A pass
            that continues a cache then raises an error, since it has only the new tokens. Attention logits and patterns
            may be edited there if the cache keeps every key, since their keys begin with the prompt's first token.

    Raises:
        InputError: an argument is not of this kind; or, during a forward pass, `edit` returns something else than
            described, or leaves NaN where it got numbers.

    >>> Hook("half", "blocks.{block}.attn.hook_z", lambda z: z / 2, blocks=(1,)).points(n_blocks=3)
    ['blocks.1.attn.hook_z']
    """

    name: str
    site: str
    edit: Callable[..., Any]
    blocks: Iterable[int] | None = None
    positional: bool | tuple[int, ...] = False
    _with_point: bool = field(init=False, repr=False, compare=False)
    _lengths: list[int] = field(
        init=False, repr=False, compare=False
    )  # of the prompts that it was called for

    def __post_init__(self) -> None:
        blocks = (
            None
            if self.blocks is None
            else tuple(dict.fromkeys(whole(block) for block in self.blocks))
        )
        if blocks == ():
            raise InputError(
                f"{self.name}: blocks=() are not block numbers.",
                "Give at least one, or None for all.",
            )
        if blocks is not None and "{block}" not in self.site:
            raise InputError(
                f"{self.name}: blocks= is given, but the site {self.site!r} is a single hook point.",
                "Write {block} in the site in place of the block number, or leave blocks= out.",
            )
        vars(self).update(
            blocks=blocks, _with_point=takes_point(self.edit, self.name), _lengths=[]
        )

    def __call__(self, tensor: Tensor, *, hook: object) -> Tensor | None:
        if isinstance(self.positional, tuple):
            self._lengths.append(
                tensor.shape[-1 if self.site.endswith(AXIS_OF_KEYS) else 1]
            )
        written = [_history(tensor)]
        result = self.edit(tensor, hook=hook) if self._with_point else self.edit(tensor)
        site = getattr(hook, "name", None) if "{block}" in self.site else self.site
        return _checked(self.name, str(site), written, hook, (tensor,), result)

    def __repr__(self) -> str:
        return self.name

    def points(self, n_blocks: int) -> list[str]:
        """The hook points of this hook in a model with `n_blocks` blocks."""
        if "{block}" not in self.site:
            return [self.site]
        blocks = range(n_blocks) if self.blocks is None else self.blocks
        outside = [b for b in blocks if not 0 <= b < n_blocks]
        if outside:
            raise InputError(
                f"{self.name} has block {outside[0]}, which the model does not have.",
                f"Use blocks 0 to {n_blocks - 1}.",
            )
        return [self.site.replace("{block}", str(b)) for b in blocks]


@dataclass(frozen=True, repr=False)
class Unchecked(Hook):
    """A hook of squashlens whose result is not checked: a copy of the tensor, or only some of its rows."""

    def __call__(self, tensor: Tensor, *, hook: object) -> Tensor | None:
        return self.edit(tensor)


@dataclass(frozen=True, repr=False)
class RowHook(Hook):
    """A hook on attention logits that edits whole rows: a learned sink is one more key there, and `sink` its logits."""


@dataclass(frozen=True)
class Recipe:
    """Hooks that depend on the model: `make(model)` returns them each time that the recipe is applied."""

    name: str
    make: Callable[[Bridge], Sequence[Hook]]

    def __repr__(self) -> str:
        return self.name


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
            if (
                isinstance(hook, RowHook)
                and (sink := learned_sink(model, int(name.split(".")[1]))) is not None
            ):
                vars(added[-1]).update(edit=partial(hook.edit, sink=sink))
            stack.callback(
                _remove, known[name], added[-1]
            )  # before adding, in case of an interruption
            known[name].add_hook(added[-1])
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


def torch_hook(
    stack: ExitStack,
    module: nn.Module,
    function: Callable[..., Any],
    *,
    before: bool,
    **how: bool,
) -> None:
    """Register a PyTorch hook before or after `module`, and remove it when `stack` is left."""
    register = (
        module.register_forward_pre_hook if before else module.register_forward_hook
    )
    stack.callback(register(function, **how).remove)


HookPair = tuple[str | Callable[[str], Any], Callable[..., Any]]
HookLike = TypeAliasType(
    "HookLike", Hook | Recipe | HookPair | Iterable[Any]
)  # one hook in any form, or several


def is_pair(value: object) -> bool:
    """Whether this is a hook in the form of TransformerLens: ``(hook point, function)`` or ``(filter, function)``."""
    if not (isinstance(value, tuple) and len(value) == 2):
        return False
    where, function = value
    return not any(isinstance(part, Hook | Recipe) for part in value) and (
        isinstance(where, str) or (callable(where) and callable(function))
    )


def one_or_several(value: Any) -> tuple[Any, ...]:
    """The items of a list, or a single hook as a tuple; a pair is one hook."""
    return (
        (value,) if is_pair(value) or not isinstance(value, Iterable) else tuple(value)
    )


def expanded_hooks(model: Bridge, hooks: Iterable[Any]) -> list[Hook]:
    """The hooks as one flat list: recipes and pairs become hooks for this model."""
    flat: list[Hook] = []
    for hook in hooks:
        if isinstance(hook, Hook):
            flat.append(hook)
        elif isinstance(hook, Recipe):
            flat += hook.make(model)
        elif is_pair(hook):
            flat += _from_pair(model, *hook)
        elif isinstance(hook, list | tuple | Iterator):
            flat += expanded_hooks(model, hook)
        else:
            raise InputError(
                f"{short_repr(hook)} is not a hook.",
                "Give a squashlens hook, a pair (hook point, function) as in TransformerLens's fwd_hooks, or a list of "
                "them.",
            )
    return flat


def _from_pair(model: Bridge, where: Any, function: Any) -> list[Hook]:
    """The hooks of a pair: one for a hook point, or one for each hook point with a name that the filter accepts."""
    name = function_name(function)
    if isinstance(where, str):
        return [Hook(name, where, function)]
    chosen: dict[Any, str] = {}  # each point once, under its first matching name
    for alias, point in model.hook_dict.items():
        if where(alias):
            chosen.setdefault(point, alias)
    if not chosen:
        raise InputError(
            f"{name}: the filter {function_name(where)} accepts no hook point of this model.",
            "`model.hook_dict` lists the names.",
        )
    return [Hook(name, site, function) for site in chosen.values()]


@contextmanager
def checking_results(model: Bridge) -> Iterator[None]:
    """Check, while the body runs, the results of functions that others added at hook points, as for a `Hook`.

    Where gradients are on, patterns are copied before hooks may write to them: the softmax's derivative needs its own.
    """
    with ExitStack() as stack:
        for site, point in layout_of(model).distinct.items():
            if (
                point.fwd_hooks
                and torch.is_grad_enabled()
                and site.endswith(".hook_pattern")
            ):
                torch_hook(
                    stack,
                    point,
                    lambda _, entering: (entering[0].clone(), *entering[1:]),
                    before=True,
                )
            theirs = [
                h.user_hook
                for h in point.fwd_hooks
                if not isinstance(h.user_hook, Hook)
            ]
            if theirs:
                written: list[Any] = []
                torch_hook(
                    stack,
                    point,
                    lambda _, t, written=written: written.append(_history(t[0])),
                    before=True,
                )
                check = partial(
                    _checked, " or ".join(map(function_name, theirs)), site, written
                )
                torch_hook(stack, point, check, before=False)
        yield


def takes_point(function: Callable[..., Any], name: str) -> bool:
    """True for a function ``fn(tensor, hook=point)``, and False for ``fn(tensor)``; an error for any other."""
    try:
        signature = inspect.signature(
            function.forward if isinstance(function, torch.nn.Module) else function
        )
    except (ValueError, TypeError):
        return False
    for options in ({"hook": None}, {}):
        with contextlib.suppress(TypeError):
            signature.bind(None, **options)
            return bool(options)
    raise InputError(
        f"{name}: a hook is called as fn(tensor) or fn(tensor, hook=…), but this function takes {signature}.",
        "Give it one parameter, or name the second one `hook`; set other parameters with `functools.partial`.",
    )


def function_name(function: object) -> str:
    """The qualified name of a function, also inside a `functools.partial`; for other objects, the name of the type."""
    function = without_partials(function)
    return getattr(function, "__qualname__", type(function).__qualname__)


def without_partials(function: object) -> Any:
    """A function without the arguments that `functools.partial` gave it."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def writes(value: object) -> int:
    """How often PyTorch saw a tensor written to, which it does not count in inference mode; 0 of other objects."""
    counted = isinstance(value, Tensor) and not value.is_inference()
    return value._version if counted else 0


def _history(value: object) -> tuple[int, object]:
    """How often a tensor was written to, and what its derivative follows; a view has that of its base."""
    base = getattr(value, "_base", None)
    return writes(value), getattr(value if base is None else base, "grad_fn", None)


def _checked(
    name: str,
    site: str,
    written: list[Any],
    _point: object,
    entered: tuple[Any, ...],
    after: object,
) -> Any:
    """What the model goes on with after a hook: its result, or a copy of what entered if the hook only wrote to that.

    Raises an error if that is not a tensor like the one that entered, whose `written` history was another; if it has
    new NaN entries; or if its derivative is not that of the edit.
    """
    before = entered[0]
    (writes_before, origin), (writes_now, follows) = written.pop(), _history(before)
    same, wrote = after is None or after is before, writes_now != writes_before
    unseen = (
        wrote and origin is not None and torch.is_grad_enabled() and follows is origin
    )
    if unseen or any(
        getattr(tensor, "_backward_hooks", None) for tensor in (before, after)
    ):
        does = "calls `register_hook`, which changes derivatives but not the model's output"
        if unseen:
            does = "writes to its tensor unrecorded, which changes the model's output but not its derivatives"
        raise InputError(
            f"The hook {name} at {site} {does}.",
            "Return an edited tensor instead: the derivative then follows.",
        )
    if not isinstance(before, Tensor) or (same and not wrote):
        return after
    after = (
        before.clone() if same else after
    )  # the bridge's norms take the same tensor as one without an edit
    if not isinstance(after, Tensor):
        raise InputError(
            f"The hook {name} at {site} returned a {type(after).__name__}, not a tensor.",
            "Return the tensor that the model should continue with, or None to keep the given one.",
        )
    for what in ("shape", "dtype", "device", "layout"):
        wanted, got = getattr(before, what), getattr(after, what)
        if wanted != got:
            raise InputError(
                f"The hook {name} at {site} returned a tensor of {what} {_plain(got)}, but got one of {what} "
                f"{_plain(wanted)}.",
                "Return one like it: `.to(tensor)` sets dtype and device, `.expand_as(tensor)` repeats one prompt.",
            )
    wrong = has_nan(after)
    if wrong.device.type != "cpu" or wrong:
        did = (
            "left NaN in the tensor that it wrote to"
            if wrote
            else "returned NaN, but got numbers"
        )
        nan = InputError(
            f"The hook {name} at {site} {did}.",
            "Correct its arithmetic: 0/0, inf − inf and roots of negative numbers give NaN.",
        )
        later(wrong if wrote else wrong & ~has_nan(before), lambda: nan, name, site)
    return after


def _plain(value: object) -> str:
    return (
        str(tuple(value))
        if isinstance(value, torch.Size)
        else str(value).removeprefix("torch.")
    )


AXIS_OF_KEYS = (".hook_attn_scores", ".hook_pattern")


@dataclass(frozen=True, eq=False)
class WholePassesOnly:
    """A PyTorch hook before the whole model: stops passes in which hooks, as (name, site), count positions wrongly."""

    hooks: Sequence[tuple[str, str]]

    def __call__(
        self, _module: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        for cache in (*args, *kwargs.values()):
            if hasattr(cache, "get_seq_length") and int(cache.get_seq_length()):
                # Of blocks whose cache has one key for every token so far: no window, and no reserved space.
                kept = [
                    layer
                    for layer in getattr(cache, "layers", ())
                    if getattr(layer, "keys", None) is not None
                ]
                every = all(
                    layer.keys.shape[-2] == int(layer.get_seq_length())
                    for layer in kept
                )
                right = AXIS_OF_KEYS if every else ()
                if wrong := [
                    name for name, site in self.hooks if not site.endswith(right)
                ]:
                    raise InputError(
                        f"{wrong[0]} counts positions from the start of the prompt, but this pass continues a cache "
                        "and gets only the new tokens.",
                        "Run the whole prompt in every pass: use_past_kv_cache=False in `model.generate`, use_cache="
                        "False in other calls.",
                    )


# In `squashlens.hooks` as `freeze_attention`. Passes without patterns freeze attention themselves.
FROZEN_ATTENTION = Hook(
    "freeze_attention",
    "blocks.{block}.attn.hook_pattern",
    lambda pattern: pattern.detach(),
)


def split_frozen_attention(
    hooks: Sequence[Hook | Recipe],
) -> tuple[bool, list[Hook | Recipe]]:
    """Whether attention is frozen in every block, and the other hooks."""
    frozen = [
        h
        for h in hooks
        if isinstance(h, Hook) and h.name == FROZEN_ATTENTION.name and h.blocks is None
    ]
    return bool(frozen), [h for h in hooks if h not in frozen]
