"""Hooks as values: factories that touch no model, and one context manager that applies and restores.

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

if TYPE_CHECKING:
    from transformer_lens.hook_points import HookPoint


@dataclass(frozen=True)
class Hook:
    """One intervention: `edit` maps the activation at `site` to its replacement (`None`: only look).

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


def mask_tokens(positions: Iterable[int], blocks: tuple[int, ...] | None = None) -> Hook:
    """Keep later tokens from attending to those at `positions`: their attention logits become −∞.

    The weights of each row renormalise over what is left. A masked token still attends to itself, so no row
    is empty. Positions a prompt does not reach are not there to be masked. In a pass that continues a cache,
    positions count from the start of the cache.
    """
    places = _places(positions, "mask_tokens")

    def edit(scores: Tensor) -> Tensor:
        queries, keys = scores.shape[-2:]
        place = torch.arange(keys, device=scores.device)
        hidden = torch.isin(place, torch.tensor(places, device=scores.device))
        later = place[keys - queries :, None] > place
        return scores.masked_fill(hidden & later, -torch.inf)

    return Hook(f"mask_tokens{_shown(places)}", "blocks.{block}.attn.hook_attn_scores", edit, blocks)


def zero_values(positions: Iterable[int], blocks: tuple[int, ...] | None = None) -> Hook:
    """Let the tokens at `positions` be attended to and give nothing: their value vectors, biases included, become 0.

    Attention weights stay as they are. Positions a prompt does not reach are not there to be zeroed.
    """
    places = _places(positions, "zero_values")

    def edit(values: Tensor) -> Tensor:
        place = torch.arange(values.shape[1], device=values.device)
        hidden = torch.isin(place, torch.tensor(places, device=values.device))
        return values.masked_fill(hidden[:, None, None], 0.0)

    return Hook(f"zero_values{_shown(places)}", VALUES, edit, blocks)


VALUES = "blocks.{block}.attn.hook_v"


def _places(positions: Iterable[int], factory: str) -> tuple[int, ...]:
    places = tuple(positions)
    if not places or any(isinstance(p, bool) or not isinstance(p, int) or p < 0 for p in places):
        raise InputError(
            f"{factory}: {places!r} are not positions.", "Give at least one, counted from 0 at the prompt's start."
        )
    return places


def _shown(places: tuple[int, ...]) -> str:
    inner = ", ".join(map(str, places)) if len(places) <= 6 else f"{places[0]} … {places[-1]}, {len(places)} in all"
    return f"({inner})"


@contextmanager
def hung(model: Bridge, *hooks: Hook) -> Iterator[Bridge]:
    """Run the body with `hooks` on `model` and take exactly those away again; an unknown hook point is refused.

    `squashlens.applied` is this with the proof that every hook bites.
    """
    n_blocks = len(model.blocks)
    with ExitStack() as stack:
        for hook in hooks:
            for name in hook.points(n_blocks):
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
    found = []
    for name, point in sorted(distinct_points(model).items()):
        for direction, handles in (("", point.fwd_hooks), (" (backward)", point.bwd_hooks)):
            for handle in handles:
                function = handle.user_hook
                label = function.name if isinstance(function, Hook) else _function_name(function)
                found.append(f"{name}{direction}: {label}")
    for name, module in model.original_model.named_modules():
        for table in _TABLES:
            hooks = getattr(module, table).values()
            found += [f"{name} (torch): {_function_name(f)}" for f in hooks if not belongs_to_the_bridge(f)]
    return found


# Where PyTorch keeps a module's hooks. The bridge has some of its own there, which are part of the model.
_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def belongs_to_the_bridge(function: object) -> bool:
    """Whether a PyTorch hook is one that TransformerLens itself keeps on its modules."""
    return str(getattr(function, "__module__", "")).startswith("transformer_lens")


def _function_name(function: object) -> str:
    inner = getattr(function, "func", function)  # functools.partial
    return getattr(inner, "__qualname__", type(inner).__name__)


@contextmanager
def without_ambient(model: Bridge) -> Iterator[None]:
    """Run the body with every standing hook asleep, then put each back as it was."""
    points = set(distinct_points(model).values())
    kept = [(m, t, getattr(m, t)) for m in {*model.modules(), *points} for t in _TABLES if getattr(m, t)]
    try:
        for module, table, hooks in kept:
            own = {} if module in points else {k: f for k, f in hooks.items() if belongs_to_the_bridge(f)}
            setattr(module, table, OrderedDict(own))
        yield
    finally:
        for module, table, hooks in kept:
            setattr(module, table, hooks)
