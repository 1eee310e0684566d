"""One forward pass that keeps what is asked for and nothing more.

Residual streams and attention patterns leave the pass block by block, to the CPU or to stay on the device;
what they will take is estimated first, and refused where it does not fit.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor
from tqdm.auto import tqdm

from squashlens._typing import Bos, Bridge, Store, Target, one_of
from squashlens.arguments import validated
from squashlens.errors import InputError, StaleCaptureError
from squashlens.model.anatomy import (
    check_layer,
    device_of,
    dtype_of,
    n_blocks,
    pattern_site,
    residual_site,
    width,
)
from squashlens.model.forward import forward
from squashlens.model.hooks import ambient, unnamed
from squashlens.model.memory import human, require_room
from squashlens.model.proof import require_sound
from squashlens.model.registry import fingerprint_of, measured
from squashlens.model.shelf import KINDS, Shelf, prepared, read_index, write_index
from squashlens.model.tokens import Prompts, display_tokens, tokens
from squashlens.results import attributes, versions

SAY_ABOVE = 256e6  # bytes: a capture larger than this says so before it starts


@dataclass(frozen=True)
class Capture:
    """The tensors of one run, by layer, with what is needed to know whether they still apply.

    `residuals[ℓ]` is v⁽ℓ⁾ for ℓ = 0…L, (prompt, position, d); `y` is the last residual after the final norm;
    `patterns[b]` are the attention patterns of block b, (prompt, head, query, key), rows summing to 1.
    Residuals are in the model's own units. The tensors are the model's, detached; nothing is rounded. Of a capture on
    disk each tensor is read when it is looked up.
    """

    ids: Int[Tensor, "prompt position"]
    labels: list[list[str]] = field(repr=False)
    residuals: Mapping[int, Float[Tensor, "prompt position d"]] = field(repr=False)
    patterns: Mapping[int, Float[Tensor, "prompt head query key"]] = field(repr=False)
    y: Float[Tensor, "prompt position d"] | None = field(repr=False)
    fingerprint: str
    ambient_hooks: tuple[str, ...]
    dtype: str
    functions: tuple[object, ...] = field(
        default=(), repr=False, compare=False
    )  # hooks that only memory can tell apart

    def to_xarray(self) -> xr.Dataset:
        """The capture as a labelled Dataset: residual (layer, …), y, pattern (block, …); float32 or wider."""
        data: dict[str, Any] = {}
        if self.residuals and self.y is not None:
            streams = torch.stack([self.residuals[layer] for layer in sorted(self.residuals)])
            data["residual"] = (("layer", "prompt", "position", "coordinate"), _numpy(streams))
            data["y"] = (("prompt", "position", "coordinate"), _numpy(self.y))
        if self.patterns:
            stacked = torch.stack([self.patterns[block] for block in sorted(self.patterns)])
            data["pattern"] = (("block", "prompt", "head", "query", "key"), _numpy(stacked))
        coords: dict[str, Any] = {
            "token": (("prompt", "position"), np.array(self.labels, dtype=object)),
            "token_id": (("prompt", "position"), self.ids.numpy()),
        }
        if self.residuals:
            coords["layer"] = ("layer", np.array(sorted(self.residuals)))
        if self.patterns:
            coords["block"] = ("block", np.array(sorted(self.patterns)))
        facts = {
            "fingerprint": self.fingerprint,
            "ambient_hooks": self.ambient_hooks,
            "dtype": self.dtype,
        }
        dataset = xr.Dataset(data, coords=coords, attrs=attributes("activations of one forward pass", "model", facts))
        units = {"residual": "model", "y": "model", "pattern": "1"}
        for name in dataset.data_vars:
            dataset[name].attrs = {"units": units[str(name)]}
        return dataset

    def require_current(self, model: Bridge, fingerprint: str) -> None:
        """Refuse this capture where weights, configuration, hooks or dtype are no longer those of its run."""
        checks = {
            "weights or configuration": (self.fingerprint, fingerprint),
            "hooks": ((self.ambient_hooks, self.functions), (tuple(ambient(model)), tuple(unnamed(model).values()))),
            "dtype": (self.dtype, str(dtype_of(model))),
        }
        changed = [what for what, (then, now) in checks.items() if then != now]
        if changed:
            raise StaleCaptureError(
                f"The capture was taken with other {' and '.join(changed)}.", "Capture again on this model."
            )


Given = Prompts | Capture  # what a measurement is asked about


def _numpy(tensor: Tensor) -> np.ndarray:
    """numpy has no bfloat16: half precision is widened, which loses nothing."""
    return (tensor.float() if tensor.dtype.itemsize < 4 else tensor).cpu().numpy()


@measured
def capture(
    model: Bridge,
    prompts: Prompts,
    *,
    residuals: bool = True,
    patterns: bool = True,
    layers: Iterable[int] | None = None,
    store: Store = "cpu",
    folder: str | Path | None = None,
    bos: Bos = "family",
    progress: bool = True,
) -> Capture:
    """Run the model once and keep residual streams and attention patterns by layer.

    `layers` chooses among 0…L (`None`: all): v⁽ℓ⁾ for each, and for ℓ < L the pattern of block ℓ. y comes with
    the residuals. ``store="cpu"`` moves each tensor off the device as soon as it exists; ``"disk"`` writes it to
    `folder` (safetensors) and lets it go, and `open_capture` has the folder back. Without patterns none is computed.

    Refuses unknown layers, a capture that does not fit, with its size, and a folder that holds one.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> run = sl.capture(model, "How many ones are in the following sequence? 110 =", layers=[0, 6])
    >>> run.residuals[6].shape, sorted(run.patterns)
    (torch.Size([1, 14, 128]), [0])
    """
    one_of(store, Store, "store")
    if (store == "disk") != (folder is not None):
        raise InputError("A folder goes with store='disk', and only with that.", "Give both or neither.")
    if folder is not None:
        prepared(folder)  # before the model is run
    model = require_sound(model)
    ids = tokens(model, prompts, bos=bos)
    top = n_blocks(model)
    chosen = range(top + 1) if layers is None else [check_layer(layer, model, "layers") for layer in layers]
    if not (residuals or patterns):
        raise InputError("Nothing was asked for.", "Set residuals=True or patterns=True.")
    blocks = [layer for layer in chosen if layer < top] if patterns else []
    streams: list[Target] = [*chosen, "y"] if residuals else []
    target = device_of(model) if store == "device" else torch.device("cpu")
    size = estimate(model, ids.shape, n_streams=len(streams), n_patterns=len(blocks))
    path = None if folder is None else prepared(folder, size)
    if path is None:
        require_room(size, target, "This capture", "Use store='disk', fewer layers=, or patterns=False.")
    if progress and size > SAY_ABOVE:
        tqdm.write(f"capture: {human(size)} to be kept {f'in {path}' if path else f'on {target}'}")

    kept: dict[str, dict[int, Tensor]] = {kind: {} for kind in KINDS}
    shelves = {} if path is None else {kind: Shelf(path, kind) for kind in KINDS}

    def keep(kind: str, number: int) -> Callable[[Tensor], None]:
        def look(tensor: Tensor) -> None:
            if shelves:
                shelves[kind].put(number, tensor.detach().cpu())
            else:
                kept[kind][number] = tensor.detach().to(target)

        return look

    watch = [
        (residual_site(layer, model), keep("y", 0) if layer == "y" else keep("residual", layer)) for layer in streams
    ]
    watch += [(pattern_site(block), keep("pattern", block)) for block in blocks]
    with torch.no_grad():
        forward(model, ids, watch)
    facts: dict[str, Any] = {
        "ids": ids.tolist(),
        "labels": display_tokens(model, ids),
        "fingerprint": fingerprint_of(model),
        "ambient_hooks": ambient(model),
        "dtype": str(dtype_of(model)),
    }
    if path is None:
        return replace(_capture(facts, kept), functions=tuple(unnamed(model).values()))
    write_index(path, facts | {"versions": versions()}, shelves)
    return replace(open_capture(path), functions=tuple(unnamed(model).values()))


@validated
def open_capture(folder: str | Path) -> Capture:
    """The capture that ``capture(store="disk", folder=…)`` wrote, its tensors still on disk.

    The index is checked now, and each tensor when it is looked up: shape, dtype and a digest of its bytes. `y` is
    looked up now. Hooks that are plain functions cannot be told from others of their names, so a capture that was taken
    under such hooks is only for the session that took it.

    Refuses: a folder without a capture; one whose index or tensors are not as they were written.
    """
    return _capture(*read_index(folder))


def _capture(facts: Mapping[str, Any], tensors: Mapping[str, Mapping[int, Tensor]]) -> Capture:
    return Capture(
        ids=torch.tensor(facts["ids"]),
        labels=facts["labels"],
        residuals=tensors["residual"],
        patterns=tensors["pattern"],
        y=tensors["y"].get(0),
        fingerprint=facts["fingerprint"],
        ambient_hooks=tuple(facts["ambient_hooks"]),
        dtype=facts["dtype"],
    )


def estimate(model: Bridge, shape: tuple[int, ...], *, n_streams: int, n_patterns: int) -> int:
    """Bytes that a capture of this shape keeps."""
    prompts, positions = shape
    each_stream = prompts * positions * width(model)
    each_pattern = prompts * int(model.cfg.n_heads) * positions**2
    return (n_streams * each_stream + n_patterns * each_pattern) * dtype_of(model).itemsize
