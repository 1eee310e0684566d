"""Hooks as values that touch no model, and one context manager that applies and restores.

A `Hook` says where (`site`), what (`edit`) and under which name it appears in the provenance. `hung`
puts it on a model and takes exactly that away again; hooks that others have set stay where they are.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from squashlens._typing import Bridge, shown, whole
from squashlens.arguments import validated
from squashlens.errors import InputError
from squashlens.model.continued import WholePasses
from squashlens.model.functions import function_name, require_like, takes_point
from squashlens.model.locks import locked
from squashlens.model.native import SCORES, is_native, scores_shown

if TYPE_CHECKING:
    from transformer_lens.hook_points import HookPoint


@validated
@dataclass(frozen=True)
class Hook:
    """One intervention: `edit` maps the activation at `site` to its replacement (`None`: only look).

    `edit` is a function of the tensor, or of the tensor and the hook point, as TransformerLens calls it:
    ``edit(tensor)`` or ``edit(tensor, hook=point)``, whichever its signature allows. It returns a tensor of the same
    shape, dtype and device; anything else is refused in the pass that meets it, and so is NaN.

    Under its `name` it stands in the provenance of results, and searches are resumed under hooks of the same names: let
    it say all that the edit depends on.

    A `site` with `{block}` in it stands for that point in each of `blocks` (`None`: every block).

    An edit that counts positions from the start of the prompt says so with ``positional=True``. A pass that continues a
    cache shows it the new tokens alone, and is refused; only attention logits and patterns, whose keys begin with the
    prompt's first token, may be edited there, if the cache keeps every key.

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
                raise InputError(f"Hook: {what}={shown(getattr(self, what))} is not a {what}.", "Give some text.")
        if not callable(self.edit):
            raise InputError(f"{self.name}: edit={shown(self.edit)} is not a function.", "Give a function of a tensor.")
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
        """The hook points this stands for in a model with `n_blocks` blocks."""
        if "{block}" not in self.site:
            return [self.site]
        blocks = range(n_blocks) if self.blocks is None else self.blocks
        outside = [b for b in blocks if not 0 <= b < n_blocks]
        if outside:
            raise InputError(
                f"{self.name} names block {outside[0]}, the model has {n_blocks}.",
                f"Use blocks 0 to {n_blocks - 1}.",
            )
        return [self.site.replace("{block}", str(b)) for b in blocks]


def _blocks(hook: Hook) -> tuple[int, ...] | None:
    """The blocks of a hook as a tuple, each once."""
    if hook.blocks is None:
        return None
    blocks = tuple(whole(b) for b in hook.blocks) if isinstance(hook.blocks, Iterable) else (hook.blocks,)
    if not blocks or any(isinstance(b, bool | str) or not isinstance(b, int) for b in blocks):
        raise InputError(
            f"{hook.name}: blocks={shown(hook.blocks)} are not blocks.",
            "Give a tuple of block numbers, from 0 on, or None.",
        )
    if "{block}" not in hook.site:
        raise InputError(
            f"{hook.name}: blocks= is given, but the site {hook.site!r} is one hook point.",
            "Write {block} in the site where the number of the block belongs, or leave blocks= out.",
        )
    return tuple(dict.fromkeys(blocks))


@dataclass(frozen=True, repr=False)
class Plain(Hook):
    """A function at a hook point, as TransformerLens's `fwd_hooks` have it: its name does not say what it does."""


@dataclass(frozen=True, repr=False)
class Filtered(Plain):
    """The same at a hook point that a filter of names chose, not its user by name."""


@dataclass(frozen=True, repr=False)
class Narrowing(Hook):
    """One of squashlens's own hooks, which keeps some of the rows that pass: what it returns is not checked."""

    def __call__(self, tensor: Tensor, *, hook: object) -> Tensor | None:
        return self.edit(tensor)


@dataclass(frozen=True)
class Recipe:
    """Hooks that depend on what a model is made of: `make(model)` gives them, once for every time they are hung."""

    name: str
    make: Callable[[Bridge], Sequence[Hook]]

    def __repr__(self) -> str:
        return self.name


@contextmanager
def hung(model: Bridge, *hooks: Hook) -> Iterator[Bridge]:
    """Run the body with `hooks` on `model` and take exactly those away again; an unknown hook point is refused.

    Also refused, at the end: a body that took one of them away, so that part of it ran without.

    `squashlens.applied` is this with the proof that every hook takes effect.
    """
    with ExitStack() as stack:
        stack.enter_context(locked(model))  # left last
        known, n_blocks = model.hook_dict, len(model.blocks)
        points = [(hook, name) for hook in hooks for name in hook.points(n_blocks)]
        if is_native(model) and any(name.endswith(SCORES) for _, name in points):
            stack.enter_context(scores_shown(model))
        counting = [(hook.name, name) for hook, name in points if hook.positional]
        if counting:
            torch_hook(stack, model.original_model, WholePasses(counting), before=True, with_kwargs=True)
        standing: list[Hook] = []
        for hook, name in points:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                raise InputError(
                    f"{hook.name}: this model has no hook point {name!r}.",
                    (f"Near it: {near[0]!r}. " if near else "") + "`model.hook_dict` lists those it has.",
                )
            # An object of its own for each place, so that what is taken away is what was put there.
            mine = replace(hook, site=name, blocks=None)
            stack.callback(_remove, known[name], mine)  # first, lest an interruption leave the hook behind
            known[name].add_hook(mine)
            standing.append(mine)
        yield model
        gone = [mine for mine in standing if all(h.user_hook is not mine for h in known[mine.site].fwd_hooks)]
        if gone:
            raise InputError(
                f"The hook {gone[0].name} at {gone[0].site} was taken off the model while it was in use.",
                "Do not call `reset_hooks` there, nor in a hook. Hooks that you hang with `with model.hooks(…)` are "
                "taken off by themselves.",
            )


def _remove(point: "HookPoint", hook: Hook) -> None:
    """Take a hook off its point, also where TransformerLens was interrupted before it noted the hook down."""
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
    """Register a PyTorch hook before or after `module`, to be taken away when `stack` is left."""
    stack.callback(_unregister, module, function)  # first, lest an interruption leave the hook behind
    (module.register_forward_pre_hook if before else module.register_forward_hook)(function, **how)


def _unregister(module: nn.Module, function: Callable[..., Any]) -> None:
    for kind in ("_forward_hooks", "_forward_pre_hooks"):
        table = getattr(module, kind)
        for key in [key for key, f in table.items() if f is function]:
            del table[key]
            getattr(module, f"{kind}_with_kwargs").pop(key, None)


def distinct_points(model: Bridge) -> dict[str, "HookPoint"]:
    """Hook points by their own name; the bridge lists each under its aliases too."""
    return {p.name or name: p for name, p in model.hook_dict.items()}


def ambient(model: Bridge) -> list[str]:
    """The hooks standing on a model, as ``point: function``, for the provenance of a result.

    Those hung on TransformerLens hook points, and PyTorch hooks that somebody hung on a module itself.
    """
    return [f"{where}: {f.name if isinstance(f, Hook) else function_name(f)}" for where, f in _standing(model)]


def unnamed(model: Bridge) -> dict[str, object]:
    """Those of the standing hooks that are plain functions, of which a name does not say what they do."""
    found = ((where, f) for where, f in _standing(model) if isinstance(f, Plain) or not isinstance(f, Hook))
    functions = [(where, f.edit if isinstance(f, Plain) else f) for where, f in found]
    return {f"{number} {where}: {function_name(f)}": f for number, (where, f) in enumerate(functions)}


def require_no_backward_hooks(model: Bridge) -> None:
    """Refuse hooks that change derivatives, and the model not at all: a derivative would be that of nothing."""
    found = [f"{name} (backward)" for name, point in distinct_points(model).items() if point.bwd_hooks]
    for name, module in model.original_model.named_modules():
        functions = [*module._backward_hooks.values(), *module._backward_pre_hooks.values()]
        found += [f"{name} (torch)" for f in functions if not belongs_to_a_library(f)]
    for table in ("_backward_hooks", "_backward_pre_hooks"):
        found += ["every module (torch)"] * bool(getattr(torch.nn.modules.module, f"_global{table}"))
    if found:
        raise InputError(
            f"A backward hook stands at {found[0]}: under it the derivative is not that of the model.",
            "Remove it, or edit the forward pass: an edit there has a derivative of its own.",
        )


def _standing(model: Bridge) -> Iterator[tuple[str, object]]:
    """Every hook on a model, with where it stands."""
    known = model.hook_dict
    for name, point in sorted(distinct_points(model).items()):
        for direction, handles in (("", point.fwd_hooks), (" (backward)", point.bwd_hooks)):
            standing = [handle.user_hook for handle in handles]
            # A hook of ours stands where it says, under the name by which its user called that point.
            yield from (
                (f.site if isinstance(f, Hook) and known.get(f.site) is point else f"{name}{direction}", f)
                for f in standing
            )
    for name, module in model.original_model.named_modules():
        for table in _TABLES:
            functions = getattr(module, table).values()
            yield from ((f"{name} (torch)", f) for f in functions if not belongs_to_a_library(f))
    for table in _TABLES:
        everywhere = getattr(torch.nn.modules.module, f"_global{table}").values()
        yield from (("every module (torch)", f) for f in everywhere)


# Where PyTorch keeps a module's hooks. Libraries have some of their own there, which are part of the model: the
# bridge's, and those with which transformers collects attentions and hidden states. transformers installs the latter at
# the first pass that asks for either (`run_with_cache` does) and leaves them; they only look. Our own before the whole
# model is no intervention: it refuses passes that the hooks it stands for are not made for.
_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_LIBRARIES = ("transformer_lens", "transformers.utils.output_capturing", WholePasses.__module__)


def belongs_to_a_library(function: object) -> bool:
    """Whether a PyTorch hook is one that TransformerLens or transformers keeps on its modules for itself."""
    return str(getattr(function, "__module__", "")).startswith(_LIBRARIES)


def _part_of_the_model(function: object) -> bool:
    """Whether a PyTorch hook is of a library and stays where a model is run without the hooks that stand on it."""
    return belongs_to_a_library(function) and not isinstance(function, WholePasses)


@contextmanager
def without_ambient(model: Bridge) -> Iterator[None]:
    """Run the body with every standing hook asleep, then put each back as it was."""
    with locked(model):
        points = set(distinct_points(model).values())
        modules = {*model.modules(), *model.original_model.modules(), *points}
        kept = [(m, t, getattr(m, t)) for m in modules for t in _TABLES if getattr(m, t)]
        try:
            for module, table, hooks in kept:
                own = {} if module in points else {k: f for k, f in hooks.items() if _part_of_the_model(f)}
                setattr(module, table, OrderedDict(own))
            yield
        finally:
            for module, table, hooks in kept:
                setattr(module, table, hooks)
