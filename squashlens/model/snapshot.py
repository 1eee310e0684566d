"""Tell whether a model is the one that was verified, by what it is at one moment, as far as that is cheap to read.

A `Snapshot` has of every tensor which it is, where its memory is, how often PyTorch saw it written to, and some of its
entries; which modules there are; the configurations; train or eval mode; and the precision of products. Equal snapshots
give equal numbers. Not seen are single entries written through ``.data``, and attributes of modules that stand in no
configuration (docs/limits.md). The *fingerprint* covers every bit, and is the same in every process and on every
device.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
import xxhash
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.errors import InputError
from squashlens.model.anatomy import PLAIN, forget_lengths
from squashlens.model.digests import parts, sha256, tensor_digest, text_of, writes
from squashlens.model.layout import Layout
from squashlens.model.native import is_native

MOST = 16_384  # entries of a tensor that are read
ENTRIES = 300_000  # of a model: a few milliseconds
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
Marks = tuple[int, int, int, bool]


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
    def of(cls, model: Bridge, layout: Layout) -> "Snapshot":
        """Of the model as it is now, through lists that are current."""
        tensors = layout.tensors()
        marks: list[Marks] = []
        for tensor in tensors:
            if type(tensor) in PLAIN and not tensor.is_inference():
                place, written = tensor.data_ptr(), tensor._version
            else:  # a quantized tensor, or one made in inference mode
                place = sum(part.data_ptr() for part in parts(tensor))
                written = sum(writes(part) for part in parts(tensor))
            marks.append((id(tensor), place, written, tensor.requires_grad))
        with torch.no_grad(), torch._C.DisableTorchFunction():
            entries = _entries(layout, tensors, marks)
        return cls(
            marks,
            entries,
            layout.read_parts(),
            [module.training for module in layout.modules],
            [_text(config) for config in layout.configs],
            precision(),
        )

    def changed(self, before: "Snapshot") -> str:
        """What is different from an earlier snapshot, in words."""
        words = {
            "tensors": "weights",
            "entries": "weights",
            "modules": "modules",
            "modes": "train or eval mode",
            "configurations": "configuration",
            "precision": "precision of products",
        }
        changed: list[str] = []
        for name, word in words.items():
            if getattr(self, name) != getattr(before, name):
                changed.append(word)
        return " and ".join(dict.fromkeys(changed))


def _entries(layout: Layout, tensors: list[Tensor], marks: list[Marks]) -> list[str]:
    """A digest of some entries of all tensors of each device and dtype, which are gathered together."""
    places = [mark[:2] for mark in marks]
    if places != layout.places:
        layout.places, layout.samples = places, sampled(tensors)
    gathered = [torch.cat(views) for views in layout.samples.values()]
    arrays = [entries.view(torch.uint8).cpu().numpy() for entries in gathered]
    return [xxhash.xxh3_128_hexdigest(array.data) for array in arrays]


def sampled(tensors: Iterable[Tensor]) -> dict[Any, list[Tensor]]:
    """Views of evenly spaced entries of every tensor, by device and dtype.

    Entries of a matrix of r rows and c columns are s ≤ min(r, c) apart, where s and c have no common factor: so every
    row and every column is met. Models with more rows and columns than `ENTRIES` are read more thinly.
    """
    held = [part for whole in tensors for part in _held(whole)]
    wanted = sum(part.numel() // _apart(part) for part in held)
    thinner = max(1.0, wanted / ENTRIES)
    views: dict[Any, list[Tensor]] = {}
    for part in held:
        step = max(1, int(_apart(part) * thinner))
        while gcd(step, _columns(part)) != 1:
            step -= 1
        count = (part.numel() - 1) // step + 1
        view = part.as_strided((count,), (step,))
        views.setdefault((part.device, part.dtype), []).append(view)
    return views


def _held(whole: Tensor) -> list[Tensor]:
    """The tensors that hold the numbers of a tensor, without empty ones; of an expanded one what is in memory."""
    if whole.is_meta:
        raise InputError(
            "Some weights of this model are offloaded and not in memory.",
            "Load it onto a device.",
        )
    found = []
    for part in parts(whole.detach()):
        room = part.untyped_storage().nbytes() // max(1, part.element_size())
        room -= part.storage_offset()
        if part.numel() > room:
            part = part.as_strided((room,), (1,))
        if part.numel():
            found.append(part)
    return found


def _columns(part: Tensor) -> int:
    return part.shape[-1] if part.ndim else 1


def _apart(part: Tensor) -> int:
    """How far apart entries may be so that every row and column is met, but 16,384 of a tensor at most are read."""
    columns = _columns(part)
    rows = part.numel() // columns
    return max(min(rows, columns), part.numel() // MOST, 1)


def _text(config: Any) -> str:
    """A configuration as text, without those inside it, which are listed themselves."""
    plain = {
        name: value
        for name, value in vars(config).items()
        if name not in LABELS and not hasattr(value, "to_dict")
    }
    return repr(plain)


def precision() -> str:
    """The settings of PyTorch that say how products round; the first word is that of float32."""
    matmul: Any = torch.backends.cuda.matmul
    try:
        known = torch.get_float32_matmul_precision()
    except RuntimeError:  # set by one of PyTorch's two interfaces, then by the other
        known = "mixed"
    # "none" is what it was before it was set, "ieee" what it is put back to.
    newer = [getattr(m, "fp32_precision", "none") for m in (torch.backends, matmul)]
    newer = ["ieee" if setting == "none" else setting for setting in newer]
    names = (
        "bf16_reduced_precision_reduction",
        "fp16_reduced_precision_reduction",
        "fp16_accumulation",
    )
    allowed = [getattr(matmul, f"allow_{name}", None) for name in names]
    return f"{known} {newer} {allowed}"


def fingerprint(model: Bridge, layout: Layout) -> str:
    """16 hexadecimal digits made from every bit of the weights, and from the configuration. Names and paths are left
    out."""
    forget_lengths(model)  # what the last pass left follows from the configuration
    inner: Any = model.original_model
    config = vars(model.cfg) if is_native(model) else inner.config.to_dict()
    counted = {id(tensor) for tensor in layout.tensors()}
    words = [text_of(_without_labels(config))]
    for name, tensor in (*inner.named_parameters(), *inner.named_buffers()):
        if id(tensor) in counted:
            own_name = name.replace("._original_component", "")
            words.append(f"{own_name} {tensor_digest(tensor)}")
    return sha256("\n".join(words))[:16]


def _without_labels(config: Any) -> Any:
    if not isinstance(config, dict):
        return config
    counted = {name: value for name, value in config.items() if name not in LABELS}
    return {name: _without_labels(value) for name, value in counted.items()}
