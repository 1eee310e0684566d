"""One forward pass that keeps what is asked for and nothing more.

Residual streams and attention patterns leave the pass block by block, to the CPU or to stay on the device;
what they will take is estimated first, and refused where it does not fit.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor
from tqdm import tqdm

from squashlens._typing import Bos, Bridge, Store, Target, one_of
from squashlens.errors import InputError, StaleCaptureError
from squashlens.model.anatomy import check_layer, device_of, dtype_of, n_blocks, pattern_site, residual_site, width
from squashlens.model.fingerprint import weights_fingerprint
from squashlens.model.hooks import Hook, ambient, hung
from squashlens.model.memory import human, require_room
from squashlens.model.proof import require_sound
from squashlens.model.tokens import Prompts, display_tokens, tokens
from squashlens.results import attributes

SAY_ABOVE = 256e6  # bytes: a capture larger than this says so before it starts


@dataclass(frozen=True)
class Capture:
    """The tensors of one run, by layer, with what is needed to know whether they still apply.

    `residuals[ℓ]` is v⁽ℓ⁾ for ℓ = 0…L, (prompt, position, d); `y` is the last residual after the final norm;
    `patterns[b]` are the attention patterns of block b, (prompt, head, query, key), rows summing to 1.
    Residuals are in the model's own units. The tensors are the model's, detached; nothing is rounded.
    """

    ids: Int[Tensor, "prompt position"]
    labels: list[list[str]] = field(repr=False)
    residuals: dict[int, Float[Tensor, "prompt position d"]] = field(repr=False)
    patterns: dict[int, Float[Tensor, "prompt head query key"]] = field(repr=False)
    y: Float[Tensor, "prompt position d"] | None = field(repr=False)
    fingerprint: str
    ambient_hooks: tuple[str, ...]
    dtype: str

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
            "weights_fingerprint": self.fingerprint,
            "ambient_hooks": self.ambient_hooks,
            "dtype": self.dtype,
        }
        dataset = xr.Dataset(data, coords=coords, attrs=attributes("activations of one forward pass", "model", facts))
        units = {"residual": "model", "y": "model", "pattern": "1"}
        for name in dataset.data_vars:
            dataset[name].attrs = {"units": units[str(name)]}
        return dataset

    def require_current(self, model: Bridge, ids: Int[Tensor, "prompt position"]) -> None:
        """Refuse this capture where weights, hooks, dtype or tokens are no longer those of its run."""
        checks = {
            "weights": (self.fingerprint, weights_fingerprint(model)),
            "hooks": (self.ambient_hooks, tuple(ambient(model))),
            "dtype": (self.dtype, str(dtype_of(model))),
            "tokens": (self.ids.tolist(), ids.tolist()),
        }
        changed = [what for what, (then, now) in checks.items() if then != now]
        if changed:
            raise StaleCaptureError(
                f"The capture was taken with other {' and '.join(changed)}.", "Capture again on this model."
            )


def _numpy(tensor: Tensor) -> np.ndarray:
    """numpy has no bfloat16: half precision is widened, which loses nothing."""
    return (tensor.float() if tensor.dtype.itemsize < 4 else tensor).cpu().numpy()


def forward(
    model: Bridge,
    ids: Int[Tensor, "prompt position"],
    watch: Iterable[tuple[str, Callable[[Tensor], Tensor | None]]],
    context: Mapping[str, Any] | None = None,
) -> Tensor:
    """Run the model with `watch` (hook point, function) added; returns the logits at the last position.

    `context` is what the tokens stand in, in the model's own words: cache, mask, positions.
    """
    hooks = [Hook("squashlens", site, function) for site, function in watch]
    options: dict[str, Any] = {"use_cache": False} | dict(context or {})
    if "logits_to_keep" in inspect.signature(model.original_model.forward).parameters:
        options["logits_to_keep"] = 1  # position × vocabulary is the largest tensor of many models
    with hung(model, *hooks):
        return model(ids, **options)[:, -1]


def capture(
    model: Bridge,
    prompts: Prompts,
    *,
    residuals: bool = True,
    patterns: bool = True,
    layers: Iterable[int] | None = None,
    store: Store = "cpu",
    bos: Bos = "family",
    progress: bool = True,
) -> Capture:
    """Run the model once and keep residual streams and attention patterns by layer.

    `layers` chooses among 0…L (`None`: all): v⁽ℓ⁾ for each, and for ℓ < L the pattern of block ℓ. y comes with
    the residuals. ``store="cpu"`` moves each tensor off the device as soon as it exists.

    Refuses unknown layers and a capture that does not fit, with its size.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> run = sl.capture(model, "How many ones are in the following sequence? 110 =", layers=[0, 6])
    >>> run.residuals[6].shape, sorted(run.patterns)
    (torch.Size([1, 14, 128]), [0])
    """
    one_of(store, Store, "store")
    model = require_sound(model)
    ids = tokens(model, prompts, bos=bos)
    top = n_blocks(model)
    chosen = range(top + 1) if layers is None else [check_layer(layer, model, "layers") for layer in layers]
    if not (residuals or patterns):
        raise InputError("Nothing was asked for.", "Set residuals=True or patterns=True.")
    blocks = [layer for layer in chosen if layer < top] if patterns else []
    streams: list[Target] = [*chosen, "y"] if residuals else []
    target = torch.device("cpu") if store == "cpu" else device_of(model)
    size = estimate(model, ids.shape, n_streams=len(streams), n_patterns=len(blocks))
    require_room(size, target, "This capture", "Choose fewer layers=, patterns=False, or a shorter prompt.")
    if progress and size > SAY_ABOVE:
        tqdm.write(f"capture: {human(size)} to be kept on {target}")

    kept: dict[Any, Tensor] = {}

    def keep(key: Any) -> Callable[[Tensor], None]:
        def look(tensor: Tensor) -> None:
            kept[key] = tensor.detach().to(target)

        return look

    watch = [(residual_site(layer, model), keep(layer)) for layer in streams]
    watch += [(pattern_site(block), keep(("pattern", block))) for block in blocks]
    with torch.no_grad():
        forward(model, ids, watch)
    return Capture(
        ids=ids.cpu(),
        labels=display_tokens(model, ids),
        residuals={k: v for k, v in kept.items() if isinstance(k, int)},
        patterns={b: kept["pattern", b] for b in blocks},
        y=kept.get("y"),
        fingerprint=weights_fingerprint(model),
        ambient_hooks=tuple(ambient(model)),
        dtype=str(dtype_of(model)),
    )


def estimate(model: Bridge, shape: tuple[int, ...], *, n_streams: int, n_patterns: int) -> int:
    """Bytes that a capture of this shape keeps."""
    prompts, positions = shape
    each_stream = prompts * positions * width(model)
    each_pattern = prompts * int(model.cfg.n_heads) * positions**2
    return (n_streams * each_stream + n_patterns * each_pattern) * dtype_of(model).itemsize


def head_mean(pattern: Float[Tensor, "prompt head query key"]) -> Float[Tensor, "prompt query key"]:
    """A pattern averaged over its heads, as the path bound has it: float32, on the CPU."""
    return pattern.detach().float().mean(dim=1).cpu()


def mean_patterns(
    model: Bridge, ids: Int[Tensor, "prompt position"], blocks: Iterable[int]
) -> dict[int, Float[Tensor, "prompt query key"]]:
    """Attention averaged over heads, block by block, reduced on the device and kept on the CPU in float32."""
    blocks = list(blocks)
    size = len(blocks) * ids.shape[0] * ids.shape[1] ** 2 * 4
    require_room(size, torch.device("cpu"), "The attention patterns", "Use a shorter prompt.")
    kept: dict[int, Tensor] = {}

    def keep(block: int) -> Callable[[Tensor], None]:
        def look(tensor: Tensor) -> None:
            kept[block] = head_mean(tensor)

        return look

    with torch.no_grad():
        forward(model, ids, [(pattern_site(b), keep(b)) for b in blocks])
    return kept
