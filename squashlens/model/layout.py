"""List the parts of a bridge once, and keep the list with the bridge."""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from squashlens._typing import Bridge
from squashlens.errors import BusyModelError
from squashlens.model.anatomy import length_dependent_encodings

if TYPE_CHECKING:
    from squashlens.model.hooking.standing import Standing, Tables
    from squashlens.model.proof import Proof
    from squashlens.model.text.start import Known

# Where PyTorch keeps a module's hooks.
HOOK_TABLES = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
KEPT = "_squashlens"  # the attribute of a bridge in which its `Kept` is
Thread = tuple[int, int]  # a process, and a thread in it


class Layout:
    """The parts of a bridge, listed once: to walk through its 1,700 modules takes 2 ms."""

    def __init__(self, model: Bridge) -> None:
        from transformer_lens.hook_points import HookPoint

        inner = model.original_model
        names: dict[nn.Module, str] = {}
        for name, module in model.named_modules():
            names[module] = f"bridge.{name}".removesuffix(".")
        for name, module in inner.named_modules():
            names[module] = name  # as in the checkpoint
        # By all their names; the bridge makes this anew each time that it is read.
        self.points: dict[str, HookPoint] = model.hook_dict
        self.distinct = {
            point.name or name: point for name, point in self.points.items()
        }
        for name, point in self.points.items():
            names.setdefault(point, name)
        self.names = names
        self.modules = [one for one in names if not isinstance(one, HookPoint)]
        self.configs = _configurations(model)
        self.sorted_points = sorted(self.distinct.items())
        adapting = bool(length_dependent_encodings(model))
        tables: list[dict[str, Any]] = []
        self._frequencies: list[Mapping[str, Tensor | None]] = []
        for module in self.modules:
            tables.append(module._parameters)
            if adapting and "original_max_seq_len" in vars(module):
                self._frequencies.append(module._buffers)
            else:
                tables.append(module._buffers)
        self._tables = [table for table in tables if table]
        self._children = [one._modules for one in self.modules if one._modules]
        self.parts = self.read_parts()
        # Where a bridge keeps tensors of its last pass, with their graph.
        self.traces: list[tuple[dict[str, Any], str]] = []
        for module in self.modules:
            for name in {"_pattern", "_captured_pre_ln_residual"} & {*vars(module)}:
                self.traces.append((vars(module), name))
        # Of the last snapshot: where tensors were, and views of their sampled entries.
        self.places: list[tuple[int, int]] = []
        self.samples: dict[Any, list[Tensor]] = {}

    def read_parts(self) -> list[int]:
        """Which modules there are now, and how many parameters and buffers they have."""
        children = chain.from_iterable(map(dict.values, self._children))
        return [*map(id, children), *map(len, self._tables)]

    def is_current(self) -> bool:
        """Whether no module was replaced, and no parameter or buffer added or removed."""
        return self.parts == self.read_parts()

    def with_hooks(self) -> list[nn.Module]:
        """The modules that have hooks of PyTorch now."""
        found: list[nn.Module] = []
        for module in self.names:
            # Written out: a loop over four tables takes several times as long, in every call.
            if (
                module._forward_hooks
                or module._forward_pre_hooks
                or module._backward_hooks
                or module._backward_pre_hooks
            ):
                found.append(module)
        return found

    def tensors(self) -> list[Tensor]:
        """Parameters and buffers as they are now, but for those that follow from the length of a pass."""
        found = [*chain.from_iterable(map(dict.values, self._tables))]
        for frequencies in self._frequencies:
            for name, tensor in frequencies.items():
                if "original" in name:
                    found.append(tensor)
        return [tensor for tensor in found if tensor is not None]


def _configurations(model: Bridge) -> list[Any]:
    """The configurations of a model, and those inside them, each once."""
    inner: Any = model.original_model
    waiting: list[Any] = [model.cfg, vars(inner).get("cfg")]
    for module in inner.modules():
        config = vars(module).get("config")
        # The bridge gives copies of its own to blocks.
        if config is not None and type(config) is not type(model.cfg):
            waiting.append(config)
    found: dict[int, Any] = {}
    for config in waiting:
        if hasattr(config, "__dict__") and id(config) not in found:
            found[id(config)] = config
            waiting += [one for one in vars(config).values() if hasattr(one, "to_dict")]
    return [*found.values()]


@dataclass
class Kept:
    """What a bridge carries with it: its lists, the present proof, and who has opened it. A copy starts without."""

    layout: Layout | None = None
    proof: "Proof | None" = None
    # Those before the present one: a setting that is put back brings them back.
    proofs: "list[Proof]" = field(default_factory=list)
    owner: Thread | None = None
    # What its tokenizer puts before a text.
    start: "Known | None" = None
    # While it is open: the hooks on it, and the tables of those that it had at the begin, if there were any.
    hooks: "list[Standing] | None" = None
    at_begin: "tuple[Tables, list[Standing]] | None" = None

    def __deepcopy__(self, memo: Any) -> "Kept":
        return Kept()

    def __reduce__(self) -> Any:
        return Kept, ()

    def is_open(self) -> bool:
        """Whether this thread has opened the model. Raises an error if another one has."""
        return self.owner is not None and is_this_thread(self.owner)


def kept_of(model: Bridge) -> Kept:
    """What this bridge carries with it."""
    held = vars(model)
    if KEPT not in held:
        held[KEPT] = Kept()
    return held[KEPT]


def layout_of(model: Bridge) -> Layout:
    """The lists of a model's parts; between two calls they are made again if a module was replaced."""
    kept = kept_of(model)
    if kept.layout is None or not (kept.is_open() or kept.layout.is_current()):
        kept.layout = Layout(model)
    return kept.layout


def this_thread() -> Thread:
    return os.getpid(), threading.get_ident()


def is_this_thread(owner: Thread) -> bool:
    """Whether the owner of a model is this thread; not in a forked process. Raises an error if it is another thread."""
    process, thread = owner
    if process != os.getpid():
        return False
    if thread != threading.get_ident():
        raise busy()
    return True


def busy() -> BusyModelError:
    """The error for a thread that runs a model while another one measures it."""
    return BusyModelError(
        "Another thread measures this model.",
        "Wait until it is done, or use a copy of the model in this thread.",
    )
