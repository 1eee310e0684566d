"""List what a bridge is made of, and tell whether it is still the model that was verified.

A `Layout` lists the parts of a bridge once. A `Snapshot` has of every tensor which it is, where its memory is, how
often PyTorch saw it written to, and some of its entries; which modules there are; the configurations; train or eval
mode; and the precision of products. Equal snapshots give equal numbers. Not seen are single entries written through
``.data``, and attributes of modules that stand in no configuration (docs/limits.md). The *fingerprint* covers every
bit, and is the same in every process and on every device. `Kept` is what a bridge carries with it.
"""

import threading
from dataclasses import dataclass, field
from functools import cache
from math import gcd
from typing import TYPE_CHECKING, Any

import torch
import xxhash
from torch import Tensor, nn

from squashlens._typing import Bridge
from squashlens.errors import BusyModelError, InputError
from squashlens.model.anatomy import (
    forget_lengths,
    is_native,
    length_dependent_encodings,
)
from squashlens.model.digests import parts, sha256, tensor_digest, text_of, writes

if TYPE_CHECKING:
    from squashlens.model.hooking.standing import Tables
    from squashlens.model.proof import Proof
    from squashlens.model.text.start import Start

# Where PyTorch keeps a module's hooks.
HOOK_TABLES = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
KEPT = "_squashlens"  # the attribute of a bridge in which its `Kept` is
TRACES = ("_pattern", "_captured_pre_ln_residual")  # what a bridge keeps of a pass
ENTRIES = 2048  # of a tensor that are read, or about so many
# Names, versions and formats in a configuration, which change no number.
LABELS = frozenset(
    {
        "_name_or_path",
        "_commit_hash",
        "transformers_version",
        "architectures",
        "dtype",
        "torch_dtype",
        "use_cache",
        "squashlens_origin",
        "model_name",
        "tokenizer_name",
        "device",
        "n_devices",
        "seed",
    }
)
# Of a tensor: its identity, its address, the number of writes, and `requires_grad`.
Marks = tuple[int, int, int, bool]


class Layout:
    """The parts of a bridge, listed once: to walk through its 1,700 modules takes 2 ms.

    Attributes:
        points: the hook points by all their names; the bridge makes this dict anew each time that it is read.
        distinct: each hook point once, under its own name, in alphabetical order.
        names: the modules and hook points with the names of the modules in the checkpoint.
        modules: the modules that are no hook points.
        configs: the configurations.
    """

    def __init__(self, model: Bridge) -> None:
        """List the parts of a bridge as they are now."""
        from transformer_lens.hook_points import HookPoint

        self.points: dict[str, HookPoint] = model.hook_dict
        self.distinct: dict[str, HookPoint] = {}
        for name, point in sorted(self.points.items()):
            self.distinct[point.name or name] = point
        # The names of the checkpoint replace those that the bridge gives to the same modules.
        self.names: dict[nn.Module, str] = {}
        for name, module in model.named_modules():
            self.names[module] = f"bridge.{name}".removesuffix(".")
        for name, module in model.original_model.named_modules():
            self.names[module] = name
        for name, point in self.points.items():
            self.names.setdefault(point, name)
        self.modules: list[nn.Module] = []
        for module in self.names:
            if not isinstance(module, HookPoint):
                self.modules.append(module)
        self.configs = _configurations(model)
        self._adapts = bool(length_dependent_encodings(model))
        self.children = self.read_children()

    def read_children(self) -> list[int]:
        """The identities of the modules inside each module, as they are now."""
        children: list[int] = []
        for module in self.modules:
            children += map(id, module._modules.values())
        return children

    def is_current(self) -> bool:
        """Whether no module was replaced, added or removed."""
        return self.children == self.read_children()

    def with_hooks(self) -> list[nn.Module]:
        """The modules that have hooks of PyTorch now."""
        with_hooks: list[nn.Module] = []
        for module in self.names:
            # Written out: a loop over four tables takes several times as long, in every call.
            if (
                module._forward_hooks
                or module._forward_pre_hooks
                or module._backward_hooks
                or module._backward_pre_hooks
            ):
                with_hooks.append(module)
        return with_hooks

    def tensors(self) -> list[Tensor]:
        """Parameters and buffers as they are now, but for those that follow from the length of a pass."""
        tensors: list[Tensor | None] = []
        for module in self.modules:
            tensors += module._parameters.values()
            # Rotary frequencies that depend on the length of the last pass; only the original ones stay.
            adapts = self._adapts and "original_max_seq_len" in vars(module)
            for name, buffer in module._buffers.items():
                if not adapts or "original" in name:
                    tensors.append(buffer)
        return [tensor for tensor in tensors if tensor is not None]

    def forget_last_pass(self) -> None:
        """Let go of what the bridge keeps of a pass: its graph would stay in memory, and no copy could be made."""
        for module in self.modules:
            attributes = vars(module)
            for name in TRACES:
                if isinstance(attributes.get(name), Tensor):
                    attributes[name] = None


def _configurations(model: Bridge) -> list[Any]:
    """The configurations of a model, and those inside them, each once."""
    inner: Any = model.original_model
    waiting: list[Any] = [model.cfg, vars(inner).get("cfg")]
    for module in inner.modules():
        config = vars(module).get("config")
        # The bridge gives copies of its own to blocks.
        if config is not None and type(config) is not type(model.cfg):
            waiting.append(config)
    configs: dict[int, Any] = {}
    for config in waiting:  # which grows by the configurations inside
        if hasattr(config, "__dict__") and id(config) not in configs:
            configs[id(config)] = config
            waiting += filter(_is_config, vars(config).values())
    return [*configs.values()]


def _is_config(value: object) -> bool:
    return hasattr(value, "to_dict")


@dataclass(frozen=True)
class Snapshot:
    """What a model is at one moment; equal ones give equal numbers."""

    tensors: list[Marks]
    entries: list[str]
    modules: list[int]
    modes: list[bool]
    configurations: list[str]
    precision: str

    @classmethod
    def of(
        cls, model: Bridge, layout: Layout, entries: list[str] | None = None
    ) -> "Snapshot":
        """The snapshot of a model as it is now.

        `layout` must be current (`layout_of`). Without `entries` some of each tensor's entries are read.
        """
        marks: list[Marks] = []
        samples: dict[Any, list[Tensor]] = {}
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for tensor in layout.tensors():
                for part in parts(tensor):
                    written = writes(part)
                    address = part.data_ptr()
                    marks.append((id(tensor), address, written, tensor.requires_grad))
                    if entries is None:
                        # Those of one device and dtype come to the CPU together.
                        kind = (part.device, part.dtype)
                        samples.setdefault(kind, []).append(_some_entries(part))
            if entries is None:
                entries = [_digest_of(sample) for sample in samples.values()]
        modes = [module.training for module in layout.modules]
        texts = [_text(config) for config in layout.configs]
        return cls(marks, entries, layout.read_children(), modes, texts, precision())


def _some_entries(tensor: Tensor) -> Tensor:
    """Evenly spaced entries: of a vector `ENTRIES`, of a matrix as many as it has rows or columns, see `_step`."""
    if tensor.is_meta:
        raise InputError(
            "Some weights of this model are offloaded and not in memory.",
            "Load it onto a device.",
        )
    return tensor.reshape(-1)[:: _step(tensor.shape)]


@cache
def _step(shape: torch.Size) -> int:
    """The distance in memory from one entry that is read to the next, for tensors of this shape.

    Every row and column of a matrix is met if there are at most `ENTRIES` of each.
    """
    size = shape.numel()
    if len(shape) < 2:
        return max(1, size // ENTRIES)
    # Each entry is a cache line of its own: more of them would take as long as the rest of a short call.
    step = max(1, size // min(ENTRIES, max(shape)))
    while gcd(step, shape[-1]) > 1:  # with a common factor only some columns are met
        step -= 1
    return step


def _digest_of(entries: list[Tensor]) -> str:
    """A digest of entries of one device and dtype, which come to the CPU together."""
    gathered = torch.cat(entries).view(torch.uint8).cpu().numpy()
    return xxhash.xxh3_128_hexdigest(gathered.data)


def _text(config: Any) -> str:
    """A configuration as text, without those inside it, which are listed themselves."""
    plain: dict[str, Any] = {}
    for name, value in vars(config).items():
        if name not in LABELS and not hasattr(value, "to_dict"):
            plain[name] = value
    return repr(plain)


def precision() -> str:
    """How PyTorch rounds the factors of float32 products."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set by one of PyTorch's two interfaces, then by the other
        return "mixed"


def fingerprint(model: Bridge, layout: Layout) -> str:
    """16 hexadecimal digits of every bit of the weights, and of the configuration without names and paths."""
    forget_lengths(model)  # what the last pass left follows from the configuration
    inner: Any = model.original_model
    config = vars(model.cfg) if is_native(model) else inner.config.to_dict()
    # Frequencies that depend on the length of a pass are left out.
    counted = set(map(id, layout.tensors()))
    words = [text_of(_without_labels(config))]
    for name, tensor in (*inner.named_parameters(), *inner.named_buffers()):
        if id(tensor) in counted:
            name = name.replace("._original_component", "")
            words.append(f"{name} {tensor_digest(tensor)}")
    return sha256("\n".join(words))[:16]


def _without_labels(config: Any) -> Any:
    if not isinstance(config, dict):
        return config
    counted = config.keys() - LABELS
    return {name: _without_labels(config[name]) for name in counted}


@dataclass
class Kept:
    """What a bridge carries with it; a copy of the bridge starts without.

    Attributes:
        layout: the lists of its parts.
        proof: what was found of it as it is now.
        proofs: some of those before: a setting that is put back brings them back.
        owner: the thread that has opened it.
        start: what its tokenizer puts before a text.
        at_begin: the tables of hooks with which it was opened, if there were any but the libraries'.
    """

    layout: Layout | None = None
    proof: "Proof | None" = None
    proofs: "list[Proof]" = field(default_factory=list)
    owner: int | None = None
    start: "Start | None" = None
    at_begin: "Tables | None" = None

    def __deepcopy__(self, memo: Any) -> "Kept":
        return Kept()

    def __reduce__(self) -> Any:
        return Kept, ()

    def is_open(self) -> bool:
        """Whether this thread has opened the model. Raises an error if another one has."""
        if self.owner is None:
            return False
        if self.owner != threading.get_ident():
            raise BusyModelError(
                "Another thread measures this model, as a map in a notebook does after a click.",
                "Wait until it is done, or use a copy of the model in this thread.",
            )
        return True


def kept_of(model: Bridge) -> Kept:
    """What this bridge carries with it."""
    attributes = vars(model)
    if KEPT not in attributes:
        attributes[KEPT] = Kept()
    return attributes[KEPT]


def layout_of(model: Bridge) -> Layout:
    """The lists of a model's parts; unless the model is open, they are made again if a module was replaced."""
    kept = kept_of(model)
    if kept.layout is None or not (kept.is_open() or kept.layout.is_current()):
        kept.layout = Layout(model)
    return kept.layout
