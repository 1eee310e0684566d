"""The hooks that are on a model: which they are, adding some in a context, passes without them or with others."""

import copy
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from squashlens._typing import Bridge
from squashlens.errors import InputError
from squashlens.model.anatomy import learned_sink
from squashlens.model.hooking.hook import (
    Hook,
    Watcher,
    function_name,
    without_partials,
)
from squashlens.model.live import POINTS, live_attention
from squashlens.model.snapshot import HOOK_TABLES, layout_of

if TYPE_CHECKING:
    from transformer_lens.hook_points import HookPoint

# How the names of hook points begin that every pass comes to before y, or at y.
UP_TO_Y = (
    "blocks.",
    "embed.",
    "pos_embed.",
    "hook_embed",
    "hook_pos_embed",
    "ln_final.",
)
# Libraries keep hooks in PyTorch's tables that are part of the model: those of the bridge, and those with which
# transformers collects attentions and hidden states. It installs the latter at the first pass that asks for either
# (`run_with_cache` does) and leaves them; they only read, as those of squashlens on modules do.
LIBRARIES = (
    "transformer_lens",
    "transformers.utils.output_capturing",
    "squashlens.",
)
# Points of latent attention; other models have them elsewhere.
LATENT = ("attn.hook_q", "attn.hook_k", "attn.hook_v")
# The hooks of modules, by the tables of PyTorch.
Tables = dict[tuple[nn.Module, str], OrderedDict[Any, Any]]


@dataclass(frozen=True)
class Standing:
    """A hook on a model: its place, its function, its module, and the table of PyTorch that has it."""

    place: str
    function: Any
    module: nn.Module
    table: str

    @property
    def name(self) -> str:
        """``place: function``, for the provenance of a result."""
        function = self.function
        name = function.name if isinstance(function, Hook) else function_name(function)
        return f"{self.place}: {name}"

    @property
    def point(self) -> str | None:
        """The name of its hook point; None for a hook of PyTorch on another module."""
        if not hasattr(self.module, "fwd_hooks"):
            return None
        return str(getattr(self.module, "name", self.place))

    @property
    def edit(self) -> Any:
        """The function itself, without a `Hook` around it."""
        function = self.function
        return function.edit if isinstance(function, Hook | Watcher) else function

    @property
    def is_a_users(self) -> bool:
        """Whether its function is defined neither by squashlens nor by a library that runs the model."""
        return not belongs_to_a_library(self.edit)

    @property
    def is_an_intervention(self) -> bool:
        """Whether its function is a user's, or one of `squashlens.hooks`; all others of squashlens read a pass."""
        return self.is_a_users or _home(self.edit).startswith("squashlens.hooks.")


def needs_the_head(hook: Standing) -> bool:
    """Whether a hook may act after y: at a hook point of the output head, or as a PyTorch hook on a module."""
    point = hook.point
    return point is None or not point.startswith(UP_TO_Y)


def ambient(model: Bridge) -> list[str]:
    """The names of the hooks that are on a model, on hook points and as PyTorch hooks, for the provenance."""
    return [hook.name for hook in standing(model)]


def key_of(model: Bridge) -> list[tuple[Any, ...]]:
    """A key that differs if the hooks on a model do; for each hook a tuple.

    A user's hook is known by its name and function, one of squashlens by its name, which says everything.
    """
    keys: list[tuple[Any, ...]] = []
    for hook in standing(model):
        if hook.is_a_users:
            keys.append((hook.name, hook.edit))
        else:
            keys.append((hook.name,))
    return keys


def require_no_backward_hooks(model: Bridge) -> None:
    """Raise an error for backward hooks: they change derivatives, but not the model."""
    for hook in standing(model):
        if hook.table.startswith("_backward"):
            raise InputError(
                f"The model has a backward hook at {hook.place}, which changes derivatives but not the model's output.",
                "Remove it, or edit the forward pass instead: the derivative then follows.",
            )


def standing(model: Bridge) -> list[Standing]:
    """Every hook on a model, except those that libraries keep there as parts of the model."""
    hooks: list[Standing] = []
    layout = layout_of(model)
    # Those of TransformerLens at hook points.
    for name, point in layout.distinct.items():
        if point.fwd_hooks or point.bwd_hooks:
            hooks += _at_point(model, name, point)
    # Those of PyTorch on any module. TransformerLens's wrappers at hook points, listed already, belong to a library.
    for module in layout.with_hooks():
        place = f"{layout.names[module]} (torch)"
        for table in HOOK_TABLES:
            for function in vars(module)[table].values():
                if not belongs_to_a_library(function):
                    hooks.append(Standing(place, function, module, table))
    return hooks


def _at_point(model: Bridge, name: str, point: "HookPoint") -> Iterator[Standing]:
    """The hooks that TransformerLens keeps at one hook point, without those that came with the bridge."""
    points = layout_of(model).points
    for handle in point.fwd_hooks:
        function: Any = handle.user_hook
        if _joins_points(handle):
            continue
        # A point may have several names; a `Hook` has the one that its user gave.
        site = getattr(function, "site", name)
        place = site if points.get(site) is point else name
        yield Standing(place, function, point, "_forward_hooks")
    for handle in point.bwd_hooks:
        place = f"{name} (backward)"
        yield Standing(place, handle.user_hook, point, "_backward_hooks")


def belongs_to_a_library(function: object) -> bool:
    """Whether a hook belongs to TransformerLens, transformers or this package."""
    return _home(function).startswith(LIBRARIES)


def _home(function: object) -> str:
    """The name of the module in which a function is defined."""
    return str(getattr(without_partials(function), "__module__", ""))


def _joins_points(handle: Any) -> bool:
    """Whether a bridge came with this hook: where an MLP has no module (OPT), it passes tensors on to its points."""
    return handle.is_permanent and belongs_to_a_library(handle.user_hook)


# -- adding hooks ----------------------------------------------------------------------------------------------------


@contextmanager
def attached(model: Bridge, *hooks: Hook | Watcher) -> Iterator[Bridge]:
    """Run the body with `hooks` on `model`, without the tests of `squashlens.applied`, and remove exactly these."""
    points = layout_of(model).points
    placed: list[Hook | Watcher] = []  # each has one hook point
    for hook in hooks:
        if isinstance(hook, Watcher):
            _require_point(model, "squashlens", hook.site)
            placed.append(hook)
            continue
        for site in hook.points(len(model.blocks)):
            _require_point(model, hook.name, site)
            placed.append(_placed(model, hook, site))
    is_inside_attention = any(hook.site.endswith(POINTS) for hook in placed)
    lost: list[Hook | Watcher] = []
    with live_attention(model) if is_inside_attention else nullcontext():
        try:
            for hook in placed:
                points[hook.site].add_hook(hook)
            yield model
        finally:
            for hook in placed:
                if not _removed(points[hook.site], hook):
                    lost.append(hook)
    if lost:
        raise InputError(
            f"The hook {lost[0]!r} at {lost[0].site} was removed from the model while it was in use.",
            "Do not call `reset_hooks` in this context or in a hook. Hooks from `with model.hooks(…)` are removed "
            "automatically.",
        )


def _require_point(model: Bridge, name: str, site: str) -> None:
    """Raise an error, which begins with the name of the hook, for a hook point that the model does not have."""
    point = layout_of(model).points.get(site)
    if point is None:
        # "blocks.3.attn.hook_z" is "attn.hook_z" in block 3.
        block, _, inside = site.removeprefix("blocks.").partition(".")
        blocks_with_it: list[str] = []
        for number in range(len(model.blocks)):
            if f"blocks.{number}.{inside}" in model.hook_dict:
                blocks_with_it.append(str(number))
        if inside.startswith("attn.") and blocks_with_it:  # as in hybrid models
            raise InputError(
                f"{name}: block {block} of this model has no attention.",
                f"Blocks with attention are {', '.join(blocks_with_it)}.",
            )
        near = get_close_matches(site, model.hook_dict, n=1)
        guess = f"Did you mean {near[0]!r}? " if near else ""
        raise InputError(
            f"{name}: this model has no hook point {site!r}.",
            f"{guess}`model.hook_dict` lists the hook points.",
        )
    if str(point.name).endswith(LATENT) and point.hook_conversion is None:
        raise InputError(
            f"{name}: {site} of this bridge has heads before positions, unlike in other models.",
            "Load the model with `squashlens.load`, which puts positions first.",
        )


def _placed(model: Bridge, hook: Hook, site: str) -> Hook:
    """A copy of a hook for one hook point, so that exactly this one is removed; its parts are checked already.

    A hook that `takes_sink` gets the learned sink of the point's block, if there is one.
    """
    placed = copy.copy(hook)
    vars(placed).update(site=site, blocks=None)
    if hook.takes_sink:
        block = int(site.split(".")[1])  # blocks.3.attn.…
        sink = learned_sink(model, block)
        if sink is not None:
            vars(placed).update(edit=partial(hook.edit, sink=sink))
    return placed


def _removed(point: "HookPoint", hook: Hook | Watcher) -> bool:
    """Remove one hook from its point, and tell whether it was there; `HookPoint.remove_hooks` would remove all."""
    for handle in point.fwd_hooks:
        if handle.user_hook is hook:
            handle.hook.remove()
            point.fwd_hooks.remove(handle)
            return True
    return False


@dataclass(eq=False)
class BeforePasses:
    """A PyTorch hook before the whole model, for the hooks of a context; in passes without them it is left out.

    It gives the token ids to the points of users' functions, as ``hook.ctx["token_ids"]``. Hooks that count positions
    from the start of the prompt (`positional`) cannot act in a pass that continues a cache, which raises an error.
    """

    points: Sequence["HookPoint"]
    positional: Sequence[str]
    longest_prompt: int = 0

    def __call__(
        self, _module: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Called by PyTorch before a pass, with the model's arguments."""
        ids = kwargs.get("input_ids", args[0] if args else None)
        for point in self.points:
            point.ctx["token_ids"] = ids
        if isinstance(ids, Tensor):
            self.longest_prompt = max(self.longest_prompt, ids.shape[-1])
        cache = kwargs.get("past_key_values")
        if self.positional and cache is not None and int(cache.get_seq_length()):
            raise InputError(
                f"{self.positional[0]} counts positions from the start of the prompt, but this pass continues a cache "
                "and gets only the new tokens.",
                "Run the whole prompt in every pass: use_past_kv_cache=False in `model.generate`, use_cache=False in "
                "other calls.",
            )

    def forget(self) -> None:
        """Take the ids of the last pass from the points."""
        for point in self.points:
            point.ctx.pop("token_ids", None)


# -- passes without the hooks, or with others ------------------------------------------------------------------------


@contextmanager
def without_ambient(model: Bridge) -> Iterator[None]:
    """Run the body without the hooks that are on the model, and then restore them.

    The hooks of libraries that are parts of the model stay.
    """
    points = set(layout_of(model).distinct.values())
    # PyTorch's keys of the hooks that pass tensors on from one point to others.
    joining: set[Any] = set()
    for point in points:
        for handle in point.fwd_hooks:
            if _joins_points(handle):
                joining.add(handle.hook.id)
    staying = Tables()
    for (module, table), hooks in hooks_as_now(model).items():
        staying[module, table] = OrderedDict()
        for key, function in hooks.items():
            if not belongs_to_a_library(function):
                continue
            if isinstance(function, BeforePasses):
                continue
            # At a point TransformerLens's wrappers around users' functions belong to a library too.
            if key in joining or module not in points:
                staying[module, table][key] = function
    with with_hooks(model, staying):
        yield


def hooks_as_now(model: Bridge) -> Tables:
    """A copy of all hooks of all modules, for `with_hooks`."""
    now = Tables()
    for module in layout_of(model).with_hooks():
        for table in HOOK_TABLES:
            if vars(module)[table]:
                now[module, table] = OrderedDict(vars(module)[table])
    return now


@contextmanager
def with_hooks(model: Bridge, wanted: Tables) -> Iterator[None]:
    """Run the body with these hooks alone, and then restore those that the model has now."""
    # The tables themselves are exchanged, of all modules that have hooks now or get some.
    before = Tables()
    for module, table in {*wanted, *hooks_as_now(model)}:
        before[module, table] = getattr(module, table)
    try:
        for module, table in before:
            setattr(module, table, wanted.get((module, table), OrderedDict()))
        yield
    finally:
        for (module, table), hooks in before.items():
            setattr(module, table, hooks)
