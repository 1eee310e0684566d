"""Hooks as values that do not belong to a model, and the context manager that adds and removes them.

A `Hook` has a hook point (`site`), a function (`edit`) and a name that appears in the provenance. `attached`
adds it to a model and removes exactly that hook again; other hooks are not touched.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from squashlens._typing import Bridge, short_repr, whole
from squashlens.checks.arguments import validated
from squashlens.engine.anatomy import modules_of, named_modules
from squashlens.engine.canonical import Canonical
from squashlens.engine.functions import function_name, require_like, takes_point, without_partials
from squashlens.engine.hooking.continued import WholePassesOnly
from squashlens.engine.locks import locked
from squashlens.engine.native import SCORES, is_native, with_score_hooks
from squashlens.errors import InputError

if TYPE_CHECKING:
    from transformer_lens.hook_points import HookPoint


@validated
@dataclass(frozen=True)
class Hook:
    """One intervention: a function that edits or reads the activations at a hook point.

    Pass hooks to `squashlens.applied`.

    Args:
        name: name in the provenance of results. A search can be resumed under hooks of the same names, so the name
            should state everything that the edit depends on.
        site: hook point. With ``{block}`` in it, the hook acts at this point in each of `blocks`.
        edit: called as ``edit(tensor)`` or ``edit(tensor, hook=point)``, as its signature allows. It returns the
            replacement, a tensor of the same shape, dtype and device, or None to keep the activation.
        blocks: block numbers for a site with ``{block}``; all blocks by default.
        positional: True if `edit` counts positions from the start of the prompt. A pass that continues a cache then
            raises an error, since it has only the new tokens. Attention logits and patterns may be edited there if the
            cache keeps every key, since their keys begin with the prompt's first token.

    Raises:
        InputError: an argument is not of this kind; or, during a forward pass, `edit` returns something else than
            described, or NaN where it got numbers.

    >>> Hook("half", "blocks.{block}.attn.hook_z", lambda z: z / 2, blocks=(1,)).points(n_blocks=3)
    ['blocks.1.attn.hook_z']
    """

    name: str
    site: str
    edit: Callable[..., Any]
    blocks: Iterable[int] | None = None
    positional: bool = False
    _with_point: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for what in ("name", "site"):
            if not (isinstance(getattr(self, what), str) and getattr(self, what)):
                raise InputError(f"Hook: {what}={short_repr(getattr(self, what))} is not a {what}.", "Give some text.")
        if not callable(self.edit):
            raise InputError(
                f"{self.name}: edit={short_repr(self.edit)} is not a function.", "Give a function of a tensor."
            )
        object.__setattr__(self, "_with_point", takes_point(self.edit, self.name))
        object.__setattr__(self, "blocks", _blocks(self))

    def __call__(self, tensor: Tensor, *, hook: object) -> Tensor | None:
        result = self.edit(tensor, hook=hook) if self._with_point else self.edit(tensor)
        if result is not None:
            site = getattr(hook, "name", None) if "{block}" in self.site else self.site
            require_like(tensor, result, self.name, str(site))
        return result

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
                f"{self.name} has block {outside[0]}, but the model has {n_blocks} blocks.",
                f"Use blocks 0 to {n_blocks - 1}.",
            )
        return [self.site.replace("{block}", str(b)) for b in blocks]


def _blocks(hook: Hook) -> tuple[int, ...] | None:
    """The blocks of a hook as a tuple without repeats."""
    if hook.blocks is None:
        return None
    blocks = tuple(whole(b) for b in hook.blocks) if isinstance(hook.blocks, Iterable) else (hook.blocks,)
    if not blocks or any(isinstance(b, bool | str) or not isinstance(b, int) for b in blocks):
        raise InputError(
            f"{hook.name}: blocks={short_repr(hook.blocks)} are not block numbers.",
            "Give a tuple of whole numbers, from 0, or None for all blocks.",
        )
    if "{block}" not in hook.site:
        raise InputError(
            f"{hook.name}: blocks= is given, but the site {hook.site!r} is a single hook point.",
            "Write {block} in the site in place of the block number, or leave blocks= out.",
        )
    return tuple(dict.fromkeys(blocks))


@dataclass(frozen=True, repr=False)
class FilteredHook(Hook):
    """A hook at a point that was chosen by a filter of names."""


@dataclass(frozen=True, repr=False)
class Unchecked(Hook):
    """A hook of squashlens whose result is not checked: a copy of the tensor, or only some of its rows."""

    def __call__(self, tensor: Tensor, *, hook: object) -> Tensor | None:
        return self.edit(tensor)


@dataclass(frozen=True)
class Recipe:
    """Hooks that depend on the model: `make(model)` returns them each time that the recipe is applied."""

    name: str
    make: Callable[[Bridge], Sequence[Hook]]

    def __repr__(self) -> str:
        return self.name


@contextmanager
def attached(model: Bridge, *hooks: Hook) -> Iterator[Bridge]:
    """Run the body with `hooks` on `model`, and then remove exactly these hooks.

    `squashlens.applied` also tests that every hook takes effect.

    Raises:
        InputError: the model has no such hook point, or the body removed one of the hooks.
    """
    with ExitStack() as stack:
        stack.enter_context(locked(model))  # left last
        known, n_blocks = model.hook_dict, len(model.blocks)
        points = [(hook, name) for hook in hooks for name in hook.points(n_blocks)]
        if is_native(model) and any(name.endswith(SCORES) for _, name in points):
            stack.enter_context(with_score_hooks(model))
        counting = [(hook.name, name) for hook, name in points if hook.positional]
        if counting:
            torch_hook(stack, model.original_model, WholePassesOnly(counting), before=True, with_kwargs=True)
        attached_hooks: list[Hook] = []
        for hook, name in points:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                raise InputError(
                    f"{hook.name}: this model has no hook point {name!r}.",
                    (f"Did you mean {near[0]!r}? " if near else "") + "`model.hook_dict` lists the hook points.",
                )
            # One object for each hook point, so that exactly this hook is removed.
            added = _at_point(hook, name)
            stack.callback(_remove, known[name], added)  # before adding, in case of an interruption
            known[name].add_hook(added)
            attached_hooks.append(added)
        yield model
        gone = [added for added in attached_hooks if all(h.user_hook is not added for h in known[added.site].fwd_hooks)]
        if gone:
            raise InputError(
                f"The hook {gone[0].name} at {gone[0].site} was removed from the model while it was in use.",
                "Do not call `reset_hooks` in this context or in a hook. Hooks from `with model.hooks(…)` are removed "
                "automatically.",
            )


def _at_point(hook: Hook, point: str) -> Hook:
    """The hook at a single point; its parts are known to be sound, so they are not checked for every pass."""
    found = copy.copy(hook)
    for part, value in (("site", point), ("blocks", None)):
        object.__setattr__(found, part, value)
    return found


def _remove(point: "HookPoint", hook: Hook) -> None:
    """Remove a hook from its point, also if TransformerLens was interrupted before it recorded the hook."""
    for handle in [handle for handle in point.fwd_hooks if handle.user_hook is hook]:
        handle.hook.remove()
        point.fwd_hooks[:] = [h for h in point.fwd_hooks if h is not handle]
    for key, function in list(point._forward_hooks.items()):
        if any(_holds(cell, hook) for cell in getattr(function, "__closure__", None) or ()):
            del point._forward_hooks[key]


def _holds(cell: Any, hook: Hook) -> bool:
    try:
        return cell.cell_contents is hook
    except ValueError:  # an empty cell
        return False


def torch_hook(stack: ExitStack, module: nn.Module, function: Callable[..., Any], *, before: bool, **how: bool) -> None:
    """Register a PyTorch hook before or after `module`, and remove it when `stack` is left."""
    stack.callback(_unregister, module, function)  # before adding, in case of an interruption
    (module.register_forward_pre_hook if before else module.register_forward_hook)(function, **how)


def _unregister(module: nn.Module, function: Callable[..., Any]) -> None:
    for kind in ("_forward_hooks", "_forward_pre_hooks"):
        table = getattr(module, kind)
        for key in [key for key, f in table.items() if f is function]:
            del table[key]
            getattr(module, f"{kind}_with_kwargs").pop(key, None)


def distinct_points(model: Bridge) -> dict[str, "HookPoint"]:
    """Hook points by their own names; the bridge also lists them under aliases."""
    return {p.name or name: p for name, p in model.hook_dict.items()}


def ambient(model: Bridge) -> list[str]:
    """The hooks that are on a model, as ``point: function``, for the provenance of a result.

    These are the hooks on TransformerLens hook points, and PyTorch hooks that a user registered on a module.
    """
    return [name for name, _ in _edits(model)]


def users_functions(model: Bridge) -> list[str]:
    """The hooks on a model whose functions are not those of squashlens, so that they may do anything."""
    return [name for name, edit in _edits(model) if is_a_users(edit)]


def is_a_users(function: object) -> bool:
    """Whether a hook's function is defined neither by squashlens nor by a library that runs the model."""
    function = without_partials(function)
    function = function.edit if isinstance(function, Hook) else function
    return not str(getattr(function, "__module__", "")).startswith("squashlens.") and not belongs_to_a_library(function)


@dataclass(frozen=True)
class Standing:
    """The hooks on a model: their names, all that they do as text, and the kinds of objects that it does not show.

    `mutable` are containers in users' functions, which these may change while they run.
    """

    names: tuple[str, ...]
    text: str
    unseen: tuple[str, ...]
    mutable: tuple[str, ...]


def standing(model: Bridge) -> Standing:
    """The hooks that are on a model, with what they close over."""
    own, users, found = Canonical(), Canonical(), list(_edits(model))
    lines = [f"{name} {(users if is_a_users(edit) else own).text(edit)}" for name, edit in found]
    unseen = (*own.unseen, *users.unseen)
    return Standing(tuple(name for name, _ in found), "\n".join(lines), unseen, tuple(users.mutable))


def _edits(model: Bridge) -> Iterator[tuple[str, Any]]:
    """Place and name, and the function, of every hook."""
    for where, function, _ in _all_hooks(model):
        own = isinstance(function, Hook)
        yield (f"{where}: {function.name}", function.edit) if own else (f"{where}: {function_name(function)}", function)


def require_no_backward_hooks(model: Bridge) -> None:
    """Raise an error for backward hooks: they change derivatives, but not the model."""
    for where in (where for where, _, backward in _all_hooks(model) if backward):
        raise InputError(
            f"The model has a backward hook at {where}, which changes derivatives but not the model's output.",
            "Remove it, or edit the forward pass instead: the derivative then follows.",
        )


def _all_hooks(model: Bridge) -> Iterator[tuple[str, object, bool]]:
    """Every hook on a model: its place, its function, and whether it acts only on derivatives."""
    known = model.hook_dict
    used = {point.name or name: point for name, point in known.items() if point.fwd_hooks or point.bwd_hooks}
    for name, point in sorted(used.items()):
        for function in (handle.user_hook for handle in point.fwd_hooks):
            # A `Hook` has the name of the point that its user gave.
            site = function.site if isinstance(function, Hook) else name
            yield site if known.get(site) is point else name, function, False
        yield from ((f"{name} (backward)", handle.user_hook, True) for handle in point.bwd_hooks)
    tables = [(table, table.startswith("_backward")) for table in _TABLES]
    if any(map(_of_a_user, all_modules(model))):  # without names, since most models have none
        names = {module: f"bridge{'.' * bool(name)}{name}" for name, module in named_modules(model)}
        names |= {module: name for name, module in named_modules(model.original_model)}
        for module, name in names.items():
            for table, backward in tables:
                found = (f for f in getattr(module, table).values() if not belongs_to_a_library(f))
                yield from ((f"{name} (torch)", f, backward) for f in found)
    for table, backward in tables:
        everywhere = getattr(torch.nn.modules.module, f"_global{table}").values()
        yield from (("every module (torch)", f, backward) for f in everywhere)


def all_modules(model: Bridge) -> set[nn.Module]:
    """The modules of the bridge and of the model in it, with all hook points."""
    return {*modules_of(model), *modules_of(model.original_model), *distinct_points(model).values()}


def _of_a_user(module: nn.Module) -> bool:
    """Whether a module has a PyTorch hook that belongs to no library."""
    held = vars(module)
    return any(not belongs_to_a_library(f) for table in _TABLES if held[table] for f in held[table].values())


# Where PyTorch keeps a module's hooks. Libraries keep hooks there that are part of the model: those of the bridge, and
# those with which transformers collects attentions and hidden states. transformers installs the latter at
# the first pass that asks for either (`run_with_cache` does) and leaves them; they only read. `WholePassesOnly` is not
# an intervention: it only stops passes that other hooks cannot handle.
_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_LIBRARIES = ("transformer_lens", "transformers.utils.output_capturing", WholePassesOnly.__module__)


def belongs_to_a_library(function: object) -> bool:
    """Whether a PyTorch hook belongs to TransformerLens, transformers or this package."""
    return str(getattr(function, "__module__", "")).startswith(_LIBRARIES)


def _part_of_the_model(function: object) -> bool:
    """Whether a PyTorch hook stays active in `without_ambient`, because it belongs to a library."""
    return belongs_to_a_library(function) and not isinstance(function, WholePassesOnly)


@contextmanager
def without_ambient(model: Bridge) -> Iterator[None]:
    """Run the body without the hooks that are on the model, and then restore them."""
    with locked(model):
        points, wanted = set(distinct_points(model).values()), {}
        for place, hooks in hooks_as_now(model).items():
            own = {} if place[0] in points else {k: f for k, f in hooks.items() if _part_of_the_model(f)}
            wanted[place] = OrderedDict(own)
        with with_hooks(model, wanted):
            yield


Tables = dict[tuple[nn.Module, str], OrderedDict[Any, Any]]  # the hooks of modules, by the tables of PyTorch


def hooks_as_now(model: Bridge) -> Tables:
    """A copy of all hooks of all modules, for `with_hooks`."""
    held = ((module, table, getattr(module, table)) for module in all_modules(model) for table in _TABLES)
    return {(module, table): OrderedDict(hooks) for module, table, hooks in held if hooks}


@contextmanager
def with_hooks(model: Bridge, wanted: Tables) -> Iterator[None]:
    """Run the body with these hooks alone, and then restore those that the model has now."""
    with locked(model):
        places = {*wanted, *hooks_as_now(model)}
        kept = [(module, table, getattr(module, table)) for module, table in places]
        try:
            for module, table, _ in kept:
                setattr(module, table, wanted.get((module, table), OrderedDict()))
            yield
        finally:
            for module, table, hooks in kept:
                setattr(module, table, hooks)
