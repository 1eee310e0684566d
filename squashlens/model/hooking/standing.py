"""The hooks that are on a model: their names for the provenance, and passes without them or with others."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from squashlens._typing import Bridge
from squashlens.errors import InputError
from squashlens.model.hooking.hook import (
    Hook,
    WholePassesOnly,
    function_name,
    without_partials,
)
from squashlens.model.layout import layout_of


@dataclass(frozen=True)
class Standing:
    """A hook on a model: its place, its function, its module (None if on every module), and the table of PyTorch."""

    place: str
    function: Any
    module: nn.Module | None
    table: str

    @property
    def name(self) -> str:
        """``place: function``, for the provenance of a result."""
        named = (
            self.function.name
            if isinstance(self.function, Hook)
            else function_name(self.function)
        )
        return f"{self.place}: {named}"

    @property
    def edit(self) -> Any:
        """The function itself, without a `Hook` around it."""
        return self.function.edit if isinstance(self.function, Hook) else self.function

    @property
    def is_a_users(self) -> bool:
        """Whether its function is defined neither by squashlens nor by a library that runs the model."""
        return not self._defined_in("squashlens.", *_LIBRARIES)

    @property
    def is_an_intervention(self) -> bool:
        """Whether its function is a user's, or one of `squashlens.hooks`; all others of squashlens read a pass."""
        return self.is_a_users or self._defined_in("squashlens.hooks.")

    def _defined_in(self, *modules: str) -> bool:
        return str(getattr(without_partials(self.edit), "__module__", "")).startswith(
            modules
        )


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
    known = layout_of(model).points
    used = {
        name: point
        for name, point in layout_of(model).distinct.items()
        if point.fwd_hooks or point.bwd_hooks
    }
    for name, point in sorted(used.items()):
        for function in (
            handle.user_hook for handle in point.fwd_hooks if not _joins_points(handle)
        ):
            # A `Hook` has the name of the point that its user gave.
            site = function.site if isinstance(function, Hook) else name
            yield Standing(
                site if known.get(site) is point else name,
                function,
                point,
                "_forward_hooks",
            )
        for handle in point.bwd_hooks:
            yield Standing(
                f"{name} (backward)", handle.user_hook, point, "_backward_hooks"
            )
    for module, name in _with_hooks(model).items():
        for table in _TABLES:
            own = (
                function
                for function in vars(module)[table].values()
                if not belongs_to_a_library(function)
            )
            yield from (
                Standing(f"{name} (torch)", function, module, table) for function in own
            )
    for table in _TABLES:
        everywhere = getattr(torch.nn.modules.module, f"_global{table}").values()
        yield from (
            Standing("every module (torch)", f, None, table) for f in everywhere
        )


def _with_hooks(model: Bridge) -> dict[nn.Module, str]:
    """The modules that have PyTorch's hooks, and their names."""
    return {
        module: name
        for module, name in layout_of(model).names.items()
        if module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    }


# Where PyTorch keeps a module's hooks. Libraries keep hooks there that are part of the model: those of the bridge, and
# those with which transformers collects attentions and hidden states. transformers installs the latter at
# the first pass that asks for either (`run_with_cache` does) and leaves them; they only read. `WholePassesOnly` is not
# an intervention: it only stops passes that other hooks cannot handle. `users_hooks` only looks at tensors.
_TABLES = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_LIBRARIES = (
    "transformer_lens",
    "transformers.utils.output_capturing",
    WholePassesOnly.__module__,
    "squashlens.model.proof",
    "squashlens.run.users_hooks",
)


def belongs_to_a_library(function: object) -> bool:
    """Whether a PyTorch hook belongs to TransformerLens, transformers or this package."""
    return str(getattr(function, "__module__", "")).startswith(_LIBRARIES)


def _joins_points(handle: Any) -> bool:
    """Whether a bridge came with this hook: where an MLP has no module (OPT), it passes tensors on to its points."""
    return handle.is_permanent and belongs_to_a_library(handle.user_hook)


@contextmanager
def without_ambient(model: Bridge) -> Iterator[None]:
    """Run the body without the hooks that are on the model, and then restore them."""
    points, kept = set(layout_of(model).distinct.values()), Tables()
    joining = {
        handle.hook.id
        for point in points
        for handle in point.fwd_hooks
        if _joins_points(handle)
    }
    for (module, table), hooks in hooks_as_now(model).items():
        own = (
            (k, f)
            for k, f in hooks.items()
            if belongs_to_a_library(f) and not isinstance(f, WholePassesOnly)
        )
        kept[module, table] = OrderedDict(
            (k, f) for k, f in own if k in joining or module not in points
        )
    with with_hooks(model, kept):
        yield


Tables = dict[
    tuple[nn.Module, str], OrderedDict[Any, Any]
]  # the hooks of modules, by the tables of PyTorch


def hooks_as_now(model: Bridge) -> Tables:
    """A copy of all hooks of all modules, for `with_hooks`."""
    held = (
        (module, table, getattr(module, table))
        for module in _with_hooks(model)
        for table in _TABLES
    )
    return {
        (module, table): OrderedDict(hooks) for module, table, hooks in held if hooks
    }


@contextmanager
def with_hooks(model: Bridge, wanted: Tables) -> Iterator[None]:
    """Run the body with these hooks alone, and then restore those that the model has now."""
    places = {*wanted, *hooks_as_now(model)}
    kept = [(module, table, getattr(module, table)) for module, table in places]
    try:
        for module, table, _ in kept:
            setattr(module, table, wanted.get((module, table), OrderedDict()))
        yield
    finally:
        for module, table, hooks in kept:
            setattr(module, table, hooks)
