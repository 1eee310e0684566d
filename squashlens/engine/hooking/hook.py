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

from squashlens._typing import Bridge, whole
from squashlens.checks.arguments import validated
from squashlens.engine.anatomy import modules_of, named_modules
from squashlens.engine.canonical import contents_of
from squashlens.engine.functions import function_name, require_like, takes_point, without_partials
from squashlens.engine.hooking.continued import WholePassesOnly
from squashlens.engine.live import POINTS, live_attention
from squashlens.engine.locks import locked
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
            if not getattr(self, what):
                raise InputError(f"Hook: {what}='' is not a {what}.", "Give some text.")
        blocks = None if self.blocks is None else tuple(dict.fromkeys(whole(block) for block in self.blocks))
        if blocks == ():
            raise InputError(f"{self.name}: blocks=() are not block numbers.", "Give at least one, or None for all.")
        if blocks is not None and "{block}" not in self.site:
            raise InputError(
                f"{self.name}: blocks= is given, but the site {self.site!r} is a single hook point.",
                "Write {block} in the site in place of the block number, or leave blocks= out.",
            )
        vars(self).update(blocks=blocks, _with_point=takes_point(self.edit, self.name))

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
        if any(name.endswith(POINTS) for _, name in points):
            stack.enter_context(live_attention(model))
        counting = [(hook.name, name) for hook, name in points if hook.positional]
        if counting:
            torch_hook(stack, model.original_model, WholePassesOnly(counting), before=True, with_kwargs=True)
        added: list[Hook] = []
        for hook, name in points:
            if name not in known:
                raise _unknown(model, hook, name)
            if str(known[name].name).endswith(_LATENT) and known[name].hook_conversion is None:
                raise InputError(
                    f"{hook.name}: {name} of this bridge has heads before positions, unlike in other models.",
                    "Load the model with `squashlens.load`, which puts positions first.",
                )
            # One object for each hook point, so that exactly this hook is removed; its parts are checked already.
            added.append(copy.copy(hook))
            vars(added[-1]).update(site=name, blocks=None)
            stack.callback(_remove, known[name], added[-1])  # before adding, in case of an interruption
            known[name].add_hook(added[-1])
        yield model
        gone = [hook for hook in added if all(h.user_hook is not hook for h in known[hook.site].fwd_hooks)]
        if gone:
            raise InputError(
                f"The hook {gone[0].name} at {gone[0].site} was removed from the model while it was in use.",
                "Do not call `reset_hooks` in this context or in a hook. Hooks from `with model.hooks(…)` are removed "
                "automatically.",
            )


_LATENT = ("attn.hook_q", "attn.hook_k", "attn.hook_v")  # points of latent attention; other models have them elsewhere


def _unknown(model: Bridge, hook: Hook, name: str) -> InputError:
    """The error for a hook point that the model does not have."""
    with_attention = [number for number, block in enumerate(model.blocks) if "attn" in block._modules]
    if ".attn." in name and with_attention and f"blocks.{with_attention[0]}.{name.split('.', 2)[2]}" in model.hook_dict:
        return InputError(
            f"{hook.name}: block {name.split('.')[1]} of this model has no attention.",
            f"Blocks with attention are {', '.join(map(str, with_attention))}.",
        )
    near = get_close_matches(name, model.hook_dict, n=1)
    return InputError(
        f"{hook.name}: this model has no hook point {name!r}.",
        (f"Did you mean {near[0]!r}? " if near else "") + "`model.hook_dict` lists the hook points.",
    )


def _remove(point: "HookPoint", hook: Hook) -> None:
    """Remove a hook from its point, also if TransformerLens was interrupted before it recorded the hook."""
    point.fwd_hooks[:] = [handle for handle in point.fwd_hooks if handle.user_hook is not hook]
    for key, function in list(point._forward_hooks.items()):
        if any(contents_of(cell) is hook for cell in getattr(function, "__closure__", None) or ()):
            del point._forward_hooks[key]


def torch_hook(stack: ExitStack, module: nn.Module, function: Callable[..., Any], *, before: bool, **how: bool) -> None:
    """Register a PyTorch hook before or after `module`, and remove it when `stack` is left."""
    register = module.register_forward_pre_hook if before else module.register_forward_hook
    stack.callback(register(function, **how).remove)


def distinct_points(model: Bridge) -> dict[str, "HookPoint"]:
    """Hook points by their own names; the bridge also lists them under aliases."""
    return {p.name or name: p for name, p in model.hook_dict.items()}


@dataclass(frozen=True)
class Standing:
    """A hook that is on a model: its place as text, its function, and the table of PyTorch that holds it.

    A hook on every module has no module of its own.
    """

    place: str
    function: Any
    module: nn.Module | None
    table: str

    @property
    def name(self) -> str:
        """``place: function``, for the provenance of a result."""
        named = self.function.name if isinstance(self.function, Hook) else function_name(self.function)
        return f"{self.place}: {named}"

    @property
    def edit(self) -> Any:
        """The function itself, without a `Hook` around it."""
        return self.function.edit if isinstance(self.function, Hook) else self.function

    @property
    def is_a_users(self) -> bool:
        """Whether its function is defined neither by squashlens nor by a library that runs the model."""
        function = without_partials(self.edit)
        return not str(getattr(function, "__module__", "")).startswith(("squashlens.", *_LIBRARIES))


def ambient(model: Bridge) -> list[str]:
    """The names of the hooks that are on a model, on hook points and as PyTorch hooks, for the provenance."""
    return [hook.name for hook in standing(model)]


def require_no_backward_hooks(model: Bridge) -> None:
    """Raise an error for backward hooks: they change derivatives, but not the model."""
    for hook in standing(model):
        if hook.table.startswith("_backward"):
            raise InputError(
                f"The model has a backward hook at {hook.place}, which changes derivatives but not the model's output.",
                "Remove it, or edit the forward pass instead: the derivative then follows.",
            )


def standing(model: Bridge) -> Iterator[Standing]:
    """Every hook on a model, except those that libraries keep there as parts of the model."""
    known = model.hook_dict
    used = {point.name or name: point for name, point in known.items() if point.fwd_hooks or point.bwd_hooks}
    for name, point in sorted(used.items()):
        for function in (handle.user_hook for handle in point.fwd_hooks):
            # A `Hook` has the name of the point that its user gave.
            site = function.site if isinstance(function, Hook) else name
            yield Standing(site if known.get(site) is point else name, function, point, "_forward_hooks")
        for handle in point.bwd_hooks:
            yield Standing(f"{name} (backward)", handle.user_hook, point, "_backward_hooks")
    if any(_has_a_users(module) for module in all_modules(model)):  # without names, since most models have none
        names = {module: f"bridge{'.' * bool(name)}{name}" for name, module in named_modules(model)}
        names |= {module: name for name, module in named_modules(model.original_model)}
        for module, name in names.items():
            for table in _TABLES:
                found = (f for f in getattr(module, table).values() if not belongs_to_a_library(f))
                yield from (Standing(f"{name} (torch)", f, module, table) for f in found)
    for table in _TABLES:
        everywhere = getattr(torch.nn.modules.module, f"_global{table}").values()
        yield from (Standing("every module (torch)", f, None, table) for f in everywhere)


def all_modules(model: Bridge) -> set[nn.Module]:
    """The modules of the bridge and of the model in it, with all hook points."""
    return {*modules_of(model), *modules_of(model.original_model), *distinct_points(model).values()}


def _has_a_users(module: nn.Module) -> bool:
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


@contextmanager
def without_ambient(model: Bridge) -> Iterator[None]:
    """Run the body without the hooks that are on the model, and then restore them."""
    with locked(model):
        points, kept = set(distinct_points(model).values()), Tables()
        for (module, table), hooks in hooks_as_now(model).items():
            of_libraries = {key: f for key, f in hooks.items() if belongs_to_a_library(f)}
            own = {key: f for key, f in of_libraries.items() if not isinstance(f, WholePassesOnly)}
            kept[module, table] = OrderedDict({} if module in points else own)
        with with_hooks(model, kept):
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
