"""Hooks as values that touch no model, and one context manager that applies and restores.

A `Hook` says where (`site`), what (`edit`) and under which name it appears in the provenance. `hung`
puts it on a model and takes exactly that away again; hooks that others have set stay where they are.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.errors import InputError
from squashlens.model.locks import locked
from squashlens.model.native import SCORES, is_native, scores_shown

if TYPE_CHECKING:
    from transformer_lens.hook_points import HookPoint


@dataclass(frozen=True)
class Hook:
    """One intervention: `edit` maps the activation at `site` to its replacement (`None`: only look).

    Under its `name` it stands in the provenance of results, and searches are resumed under hooks of the same names: let
    it say all that the edit depends on.

    A `site` with `{block}` in it stands for that point in each of `blocks` (`None`: every block).
    """

    name: str
    site: str
    edit: Callable[[Tensor], Tensor | None]
    blocks: tuple[int, ...] | None = None

    def __call__(self, tensor: Tensor, *, hook: object) -> Tensor | None:
        return self.edit(tensor)

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
        return [self.site.format(block=b) for b in blocks]


@dataclass(frozen=True)
class Recipe:
    """Hooks that depend on what a model is made of: `make(model)` gives them, once for every time they are hung."""

    name: str
    make: Callable[[Bridge], Sequence[Hook]]

    def __repr__(self) -> str:
        return self.name


def spelt_out(model: Bridge, hooks: Iterable[Hook | Recipe]) -> list[Hook]:
    """Recipes replaced by the hooks they make for this model."""
    return [one for hook in hooks for one in (hook.make(model) if isinstance(hook, Recipe) else [hook])]


@contextmanager
def hung(model: Bridge, *hooks: Hook) -> Iterator[Bridge]:
    """Run the body with `hooks` on `model` and take exactly those away again; an unknown hook point is refused.

    `squashlens.applied` is this with the proof that every hook bites.
    """
    with ExitStack() as stack:
        stack.enter_context(locked(model))  # left last
        n_blocks = len(model.blocks)
        points = [(hook, name) for hook in hooks for name in hook.points(n_blocks)]
        if is_native(model) and any(name.endswith(SCORES) for _, name in points):
            stack.enter_context(scores_shown(model))
        for hook, name in points:
            if name not in model.hook_dict:
                raise InputError(
                    f"{hook.name}: this model has no hook point {name!r}.",
                    "`model.hook_dict` lists those it has.",
                )
            point = model.hook_dict[name]
            handle = point.add_hook(hook)
            stack.callback(_remove, point, handle)
        yield model


def _remove(point: "HookPoint", handle: object) -> None:
    handle.hook.remove()  # pyright: ignore[reportAttributeAccessIssue]
    point.fwd_hooks[:] = [h for h in point.fwd_hooks if h is not handle]


def distinct_points(model: Bridge) -> dict[str, "HookPoint"]:
    """Hook points by their own name; the bridge lists each under its aliases too."""
    return {p.name or name: p for name, p in model.hook_dict.items()}


def ambient(model: Bridge) -> list[str]:
    """The hooks standing on a model, as ``point: function``, for the provenance of a result.

    Those hung on TransformerLens hook points, and PyTorch hooks that somebody hung on a module itself.
    """
    return [f"{where}: {f.name if isinstance(f, Hook) else _function_name(f)}" for where, f in _standing(model)]


def unnamed(model: Bridge) -> dict[str, object]:
    """Those of the standing hooks that are plain functions, of which a name does not say what they do."""
    found = ((where, f) for where, f in _standing(model) if not isinstance(f, Hook))
    return {f"{number} {where}: {_function_name(f)}": f for number, (where, f) in enumerate(found)}


def _standing(model: Bridge) -> Iterator[tuple[str, object]]:
    """Every hook on a model, with where it stands."""
    for name, point in sorted(distinct_points(model).items()):
        for direction, handles in (("", point.fwd_hooks), (" (backward)", point.bwd_hooks)):
            yield from ((f"{name}{direction}", handle.user_hook) for handle in handles)
    for name, module in model.original_model.named_modules():
        for table in _TABLES:
            functions = getattr(module, table).values()
            yield from ((f"{name} (torch)", f) for f in functions if not belongs_to_a_library(f))
    for table in _TABLES:
        everywhere = getattr(torch.nn.modules.module, f"_global{table}").values()
        yield from (("every module (torch)", f) for f in everywhere)


# Where PyTorch keeps a module's hooks. Libraries have some of their own there, which are part of the model: the
# bridge's, and those with which transformers collects attentions and hidden states. transformers installs the latter at
# the first pass that asks for either (`run_with_cache` does) and leaves them; they only look.
_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_LIBRARIES = ("transformer_lens", "transformers.utils.output_capturing")


def belongs_to_a_library(function: object) -> bool:
    """Whether a PyTorch hook is one that TransformerLens or transformers keeps on its modules for itself."""
    return str(getattr(function, "__module__", "")).startswith(_LIBRARIES)


def _function_name(function: object) -> str:
    inner = getattr(function, "func", function)  # functools.partial
    return getattr(inner, "__qualname__", type(inner).__name__)


@contextmanager
def without_ambient(model: Bridge) -> Iterator[None]:
    """Run the body with every standing hook asleep, then put each back as it was."""
    with locked(model):
        points = set(distinct_points(model).values())
        kept = [(m, t, getattr(m, t)) for m in {*model.modules(), *points} for t in _TABLES if getattr(m, t)]
        try:
            for module, table, hooks in kept:
                own = {} if module in points else {k: f for k, f in hooks.items() if belongs_to_a_library(f)}
                setattr(module, table, OrderedDict(own))
            yield
        finally:
            for module, table, hooks in kept:
                setattr(module, table, hooks)
