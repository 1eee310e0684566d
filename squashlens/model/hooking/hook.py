"""Hooks as values that do not belong to a model, and the context manager that adds and removes them.

A `Hook` has a hook point (`site`), a function (`edit`) and a name that appears in the provenance. `attached`
adds it to a model and removes exactly that hook again; other hooks are not touched. A pair of a hook point and a
function, as in TransformerLens, becomes a `Hook`.

TransformerLens calls every hook as `fn(tensor, hook=point)`. A function of the tensor alone is also accepted. The model
continues with its result, so it must be a tensor of the same shape, dtype and device.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import TypeAliasType

from squashlens._typing import Bridge, short_repr, whole
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.model.digests import writes


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
            that continues a cache then raises an error, since it has only the new tokens.
        takes_sink: whether `edit` takes the logits of a block's learned sink as `sink`, one more key of each row.

    Raises:
        InputError: an argument is not of this kind; or, during a forward pass, `edit` returns something else than
            described.

    >>> Hook("half", "blocks.{block}.attn.hook_z", lambda z: z / 2, blocks=(1,)).points(n_blocks=3)
    ['blocks.1.attn.hook_z']
    """

    name: str
    site: str
    edit: Callable[..., Any]
    blocks: Iterable[int] | None = None
    positional: bool | tuple[int, ...] = False
    takes_sink: bool = False
    _with_point: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the blocks and the function's signature, which says how it is called."""
        # `vars(self).update` sets fields of a frozen dataclass.
        if self.blocks is not None:
            # In the given order, each once, as integers of Python.
            blocks = tuple(dict.fromkeys(map(whole, self.blocks)))
            if not blocks:
                raise InputError(
                    f"{self.name}: blocks=() are not block numbers.",
                    "Give at least one, or None for all.",
                )
            if "{block}" not in self.site:
                raise InputError(
                    f"{self.name}: blocks= is given, but the site {self.site!r} is a single hook point.",
                    "Write {block} in the site in place of the block number, or leave blocks= out.",
                )
            vars(self).update(blocks=blocks)
        with_point = takes_point(self.edit, self.name)
        vars(self).update(_with_point=with_point)

    def __call__(self, tensor: Tensor, *, hook: object) -> Tensor | None:
        """What TransformerLens calls at a hook point: the checked replacement for the tensor, or None to keep it."""
        if torch.is_grad_enabled() and self.site.endswith(".hook_pattern"):
            # The softmax's derivative needs the pattern as it was, and `edit` may write to it.
            tensor = tensor.clone()
        before = writes(tensor)
        result = self.edit(tensor, hook=hook) if self._with_point else self.edit(tensor)
        if writes(tensor) != before and (result is None or result is tensor):
            # It was edited in place. The bridge's norms use an edit only if they get another tensor.
            return tensor.clone()
        if result is not None:
            self._require_like(tensor, result)
        return result

    def _require_like(self, tensor: Tensor, result: object) -> None:
        """Raise an error for a result that is not a tensor like the one that the hook got."""
        if not isinstance(result, Tensor):
            raise InputError(
                f"The hook {self.name} at {self.site} returned a {type(result).__name__}, not a tensor.",
                "Return the tensor that the model should continue with, or None to keep the given one.",
            )
        for what in ("shape", "dtype", "device"):
            wanted = getattr(tensor, what)
            returned = getattr(result, what)
            if wanted != returned:
                raise InputError(
                    f"The hook {self.name} at {self.site} returned a tensor of {what} {returned}, but got one of "
                    f"{what} {wanted}.",
                    "Return one like it: `.to(tensor)` sets dtype and device, `.expand_as(tensor)` repeats one prompt.",
                )

    def __repr__(self) -> str:
        return self.name

    def points(self, n_blocks: int) -> list[str]:
        """The hook points of this hook in a model with `n_blocks` blocks."""
        if "{block}" not in self.site:
            return [self.site]
        blocks = range(n_blocks) if self.blocks is None else self.blocks
        require_blocks(blocks, n_blocks, self.name)
        return [self.site.replace("{block}", str(block)) for block in blocks]


def require_blocks(blocks: Iterable[int], n_blocks: int, name: str) -> None:
    """Raise an error for a block of the hook `name` that a model with `n_blocks` blocks does not have."""
    for block in blocks:
        if not 0 <= block < n_blocks:
            raise InputError(
                f"{name} has block {block}, which the model does not have.",
                f"Use blocks 0 to {n_blocks - 1}.",
            )


class Watcher(NamedTuple):
    """A function of squashlens that looks at a hook point, or replaces its tensor: nothing about it is checked."""

    site: str
    edit: Callable[[Tensor], Any]

    def __call__(self, tensor: Tensor, *, hook: object) -> Tensor | None:
        return self.edit(tensor)


def watchers(
    sites: Iterable[str], function: Callable[[str, Tensor], Any]
) -> list[Watcher]:
    """A function at each of these hook points, which also gets the name of its point."""
    return [Watcher(site, functools.partial(function, site)) for site in sites]


@dataclass(frozen=True)
class Recipe:
    """Hooks that depend on the model: `make(model)` returns them each time that the recipe is applied."""

    name: str
    make: Callable[[Bridge], Sequence[Hook]]

    def __repr__(self) -> str:
        return self.name


def torch_hook(
    stack: ExitStack,
    module: nn.Module,
    function: Callable[..., Any],
    *,
    before: bool,
    **how: bool,
) -> None:
    """Register a PyTorch hook before or after `module`, and remove it when `stack` is left.

    `how` has options of PyTorch's `register_forward_hook`, such as `with_kwargs`.
    """
    register = module.register_forward_hook
    if before:
        register = module.register_forward_pre_hook
    stack.callback(register(function, **how).remove)


HookPair = tuple[str | Callable[[str], Any], Callable[..., Any]]
# One hook in any form, or several.
HookLike = TypeAliasType("HookLike", Hook | Recipe | HookPair | Iterable[Any])


def is_pair(value: object) -> bool:
    """Whether this is a hook in the form of TransformerLens: ``(hook point, function)`` or ``(filter, function)``.

    A pair of two `Hook` objects, which can be called too, is a list of hooks instead.
    """
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    where, function = value
    if isinstance(where, Hook | Recipe) or isinstance(function, Hook | Recipe):
        return False
    return isinstance(where, str) or (callable(where) and callable(function))


def one_or_several(value: Any) -> tuple[Any, ...]:
    """The items of a list, or a single hook as a tuple; a pair is one hook."""
    if is_pair(value) or not isinstance(value, Iterable):
        return (value,)
    return tuple(value)


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


def takes_point(function: Callable[..., Any], name: str) -> bool:
    """True for a function ``fn(tensor, hook=point)``, and False for ``fn(tensor)``; an error for any other.

    `name` is the hook's, for the message. A function without a signature, as some of C, gets the tensor alone.
    """
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        signature = inspect.signature(called)
    except (ValueError, TypeError):
        return False
    # Binding raises a TypeError if the function cannot be called so.
    with contextlib.suppress(TypeError):
        signature.bind(None, hook=None)
        return True
    with contextlib.suppress(TypeError):
        signature.bind(None)
        return False
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


def _without_derivative(pattern: Tensor) -> Tensor:
    return pattern.detach()


# In `squashlens.hooks` as `freeze_attention`. Passes without patterns freeze attention themselves.
FROZEN_ATTENTION = Hook(
    "freeze_attention", "blocks.{block}.attn.hook_pattern", _without_derivative
)


def split_frozen_attention(
    hooks: Sequence[Hook | Recipe],
) -> tuple[bool, list[Hook | Recipe]]:
    """Whether `FROZEN_ATTENTION` is among the hooks for all blocks, and the other hooks."""
    others: list[Hook | Recipe] = []
    for hook in hooks:
        is_freezing = hook.name == FROZEN_ATTENTION.name
        if not is_freezing or not isinstance(hook, Hook) or hook.blocks is not None:
            others.append(hook)
    return len(others) < len(hooks), others
