"""The hooks that are on a model: their names for the provenance, and passes without them or with others."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from squashlens._typing import Bridge
from squashlens.errors import InputError
from squashlens.model.hooking.hook import (
    Hook,
    WholePassesOnly,
    function_name,
    without_partials,
)
from squashlens.model.layout import HOOK_TABLES, kept_of, layout_of


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
        if isinstance(self.function, Hook):
            return f"{self.place}: {self.function.name}"
        return f"{self.place}: {function_name(self.function)}"

    @property
    def point(self) -> str | None:
        """The name of its hook point; None for a hook of PyTorch on another module."""
        if not hasattr(self.module, "fwd_hooks"):
            return None
        return str(getattr(self.module, "name", self.place))

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
        home = getattr(without_partials(self.edit), "__module__", "")
        return str(home).startswith(modules)


# How the names of hook points begin that every pass comes to before y, or at y.
UP_TO_Y = (
    "blocks.",
    "embed.",
    "pos_embed.",
    "hook_embed",
    "hook_pos_embed",
    "ln_final.",
)


def needs_the_head(hook: Standing) -> bool:
    """Whether a hook may act after y: at a hook point of the output head, or as a PyTorch hook on any module."""
    return hook.point is None or not hook.point.startswith(UP_TO_Y)


def ambient(model: Bridge) -> list[str]:
    """The names of the hooks that are on a model, on hook points and as PyTorch hooks, for the provenance."""
    return [hook.name for hook in standing(model)]


def key_of(model: Bridge) -> list[tuple[Any, ...]]:
    """What tells the hooks on a model apart: a user's function itself, and of ours the name, which says everything."""
    hooks = standing(model)
    return [(hook.name, hook.edit if hook.is_a_users else None) for hook in hooks]


def require_no_backward_hooks(model: Bridge) -> None:
    """Raise an error for backward hooks: they change derivatives, but not the model."""
    for hook in standing(model):
        if hook.table.startswith("_backward"):
            raise InputError(
                f"The model has a backward hook at {hook.place}, which changes derivatives but not the model's output.",
                "Remove it, or edit the forward pass instead: the derivative then follows.",
            )


def standing(model: Bridge) -> list[Standing]:
    """Every hook on a model, except those that libraries keep there as parts of the model.

    While the model is open they are known: those at the begin, and those that `attached` has added.
    """
    hooks = kept_of(model).hooks
    return look_for_hooks(model) if hooks is None else hooks


def look_for_hooks(model: Bridge) -> list[Standing]:
    """The same, looked for in all modules."""
    found: list[Standing] = []
    layout = layout_of(model)
    for name, point in layout.sorted_points:
        if point.fwd_hooks or point.bwd_hooks:
            found += _at_point(layout.points, name, point)
    for module in layout.with_hooks():
        place = f"{layout.names[module]} (torch)"
        for table in HOOK_TABLES:
            for function in vars(module)[table].values():
                if not belongs_to_a_library(function):
                    found.append(Standing(place, function, module, table))
    for table in HOOK_TABLES:
        for function in getattr(nn.modules.module, f"_global{table}").values():
            found.append(Standing("every module (torch)", function, None, table))
    return found


def _at_point(points: Mapping[str, Any], name: str, point: Any) -> Iterator[Standing]:
    for handle in point.fwd_hooks:
        function = handle.user_hook
        if not _joins_points(handle):
            # A `Hook` has the name of the point that its user gave.
            site = function.site if isinstance(function, Hook) else name
            place = site if points.get(site) is point else name
            yield Standing(place, function, point, "_forward_hooks")
    for handle in point.bwd_hooks:
        function = handle.user_hook
        yield Standing(f"{name} (backward)", function, point, "_backward_hooks")


@contextmanager
def known_hooks(model: Bridge, hooks: list[Standing]) -> Iterator[None]:
    """In the body these are the hooks on a model that is open."""
    kept = kept_of(model)
    before = kept.hooks
    if before is None:
        yield
        return
    kept.hooks = hooks
    try:
        yield
    finally:
        if kept.hooks is hooks:  # the model may have been closed meanwhile
            kept.hooks = before


# Libraries keep hooks in PyTorch's tables that are part of the model: those of the bridge, and
# those with which transformers collects attentions and hidden states. transformers installs the latter at
# the first pass that asks for either (`run_with_cache` does) and leaves them; they only read. `WholePassesOnly` is not
# an intervention: it only stops passes that other hooks cannot handle. `users_hooks` only looks at tensors.
_LIBRARIES = (
    "transformer_lens",
    "transformers.utils.output_capturing",
    "squashlens.model.hooking",
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
    points = {*layout_of(model).distinct.values()}
    joining: set[Any] = set()
    for point in points:
        joining |= {held.hook.id for held in point.fwd_hooks if _joins_points(held)}
    stay = Tables()
    for (module, table), hooks in hooks_as_now(model).items():
        stay[module, table] = OrderedDict()
        for key, function in hooks.items():
            is_part = belongs_to_a_library(function)
            is_part = is_part and not isinstance(function, WholePassesOnly)
            if is_part and (key in joining or module not in points):
                stay[module, table][key] = function
    with with_hooks(model, stay, []):
        yield


# The hooks of modules, by the tables of PyTorch.
Tables = dict[tuple[nn.Module, str], OrderedDict[Any, Any]]


def hooks_as_now(model: Bridge) -> Tables:
    """A copy of all hooks of all modules, for `with_hooks`."""
    found = Tables()
    for module in layout_of(model).with_hooks():
        for table in HOOK_TABLES:
            if vars(module)[table]:
                found[module, table] = OrderedDict(vars(module)[table])
    return found


@contextmanager
def with_hooks(model: Bridge, wanted: Tables, known: list[Standing]) -> Iterator[None]:
    """Run the body with these hooks alone, and then restore those that the model has now; `known` are the users'."""
    places = {*wanted, *hooks_as_now(model)}
    kept = [(module, table, getattr(module, table)) for module, table in places]
    try:
        for module, table, _ in kept:
            setattr(module, table, wanted.get((module, table), OrderedDict()))
        with known_hooks(model, known):
            yield
    finally:
        for module, table, hooks in kept:
            setattr(module, table, hooks)
