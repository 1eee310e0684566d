"""Captures as data, which are used only with the model that gave them: the same snapshot and hooks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor
from typing_extensions import TypeAliasType

from squashlens._typing import Bridge
from squashlens.errors import InputError, StaleCaptureError
from squashlens.model.anatomy import dtype_of
from squashlens.model.digests import writes
from squashlens.model.hooking.standing import ambient, key_of
from squashlens.model.proof import fingerprint_of, proof_of
from squashlens.model.snapshot import Snapshot
from squashlens.model.text.tokens import Prompts
from squashlens.records.labels import MODEL_UNITS, dataset_of


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in dicts, tuples and dataclasses, in a fixed order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from tensors_in(tuple(value.values()))
    elif isinstance(value, tuple):
        for part in value:
            yield from tensors_in(part)
    elif is_dataclass(value):
        yield from tensors_in(vars(value))


@dataclass(frozen=True, kw_only=True, eq=False)
class CaptureBase:
    """What every capture has: token ids, and the model and its hooks during the pass."""

    fingerprint: str
    ambient_hooks: tuple[str, ...]
    dtype: str
    snapshot: Snapshot
    hooks: list[tuple[Any, ...]]
    # Of each tensor of the capture its identity and number of writes, which show an edit.
    versions: list[tuple[int, int]] = field(init=False)
    ids: Tensor

    def __post_init__(self) -> None:
        vars(self).update(versions=self._versions())

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()  # a copy has tensors of its own

    def _versions(self) -> list[tuple[int, int]]:
        # Without what was measured of it later.
        fields = {**vars(self), "norms": None}
        return [(id(tensor), writes(tensor)) for tensor in tensors_in(fields)]

    def require_current(self, model: Bridge) -> None:
        """Raise an error for an edited capture, or one of a model that is another one now, or has other hooks."""
        if self.versions != self._versions():
            raise StaleCaptureError(
                "The capture was edited after it was taken.", "Capture again."
            )
        if proof_of(model).snapshot != self.snapshot:
            raise StaleCaptureError(
                "The capture was taken with another model, or with other weights or settings of this one.",
                "Capture again with this model.",
            )
        if self.hooks != key_of(model):
            names = dict.fromkeys(ambient(model) + list(self.ambient_hooks))
            raise StaleCaptureError(
                f"The capture was taken with other hooks: {'; '.join(names)}.",
                "Capture again, or restore the hooks.",
            )


def model_state(model: Bridge) -> dict[str, Any]:
    """The fields of `CaptureBase` for the present model."""
    return {
        "fingerprint": fingerprint_of(model),
        "ambient_hooks": tuple(ambient(model)),
        "dtype": str(dtype_of(model)),
        "snapshot": proof_of(model).snapshot,
        "hooks": key_of(model),
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class Capture(CaptureBase):
    """The activations of one forward pass, and the state of the model during it; `capture` makes one.

    The tensors are detached and not rounded.

    Attributes:
        ids: token ids (prompt, position).
        labels: the tokens as text, for each prompt.
        residuals: residual streams by layer: ``residuals[ℓ]`` is v⁽ℓ⁾ (prompt, position, d) for ℓ = 0…L, in the model's
            own units.
        patterns: attention patterns by block: ``patterns[b]`` is (prompt, head, query, key), with rows that sum to 1,
            or to less in a block with a learned sink.
        y: the last residual stream after the final norm, (prompt, position, d); None without residuals.
        prompts: the prompts as they were given, texts or token ids.
        fingerprint, ambient_hooks, dtype: the state of the model during the pass.
    """

    labels: list[list[str]]
    residuals: Mapping[int, Float[Tensor, "prompt position d"]]
    patterns: Mapping[int, Float[Tensor, "prompt head query key"]]
    y: Float[Tensor, "prompt position d"] | None
    prompts: list[str] | list[list[int]]

    def __repr__(self) -> str:
        """``<Capture of 1 prompt of 14 tokens: residual streams of 7 layers and y; patterns of 6 blocks>``."""
        many, positions = self.ids.shape
        contents: list[str] = []
        if self.residuals:
            contents.append(f"residual streams of {len(self.residuals)} layers and y")
        if self.patterns:
            contents.append(f"patterns of {len(self.patterns)} blocks")
        prompts = f"{many} prompt{'s' * (many != 1)} of {positions} tokens"
        return f"<Capture of {prompts}: {'; '.join(contents)}>"

    def __getitem__(self, hook_point: str) -> Tensor:
        """The activation at a hook point, as an `ActivationCache` of TransformerLens gives it.

        Raises:
            InputError: a hook point that is not kept.
        """
        by_point = {"ln_final.hook_out": self.y, "ln_final.hook_normalized": self.y}
        # v⁽ℓ⁾ enters block ℓ and leaves block ℓ − 1; the names of blocks that do not exist are harmless.
        for layer, stream in self.residuals.items():
            for name in ("hook_resid_pre", "hook_in"):
                by_point[f"blocks.{layer}.{name}"] = stream
            for name in ("hook_resid_post", "hook_out"):
                by_point[f"blocks.{layer - 1}.{name}"] = stream
        for block, pattern in self.patterns.items():
            by_point[f"blocks.{block}.attn.hook_pattern"] = pattern
        activation = by_point.get(hook_point)
        if activation is None:
            raise InputError(
                f"{hook_point!r} is not in {self!r}.",
                "It has residual streams (`blocks.0.hook_resid_pre`), patterns (`blocks.0.attn.hook_pattern`) and y "
                "(`ln_final.hook_out`) of the layers that were captured; `model.run_with_cache` keeps others.",
            )
        return activation

    def to_xarray(self) -> xr.Dataset:
        """The capture as a Dataset with residual (layer, …), y and pattern (block, …), in float32 or float64."""
        dims = ("prompt", "position", "coordinate")  # of a stream
        coords: dict[str, Any] = {
            "token": (("prompt", "position"), np.array(self.labels, dtype=object)),
            "token_id": (("prompt", "position"), self.ids.numpy()),
        }
        data: dict[str, Any] = {}

        def add(
            name: str, dims: tuple[str, ...], values: Tensor, text: str, unit: str
        ) -> None:
            """Add a variable with its long name `text` and its unit."""
            data[name] = dims, _numpy(values), text, unit

        if self.y is not None:
            layers = sorted(self.residuals)
            coords["layer"] = ("layer", np.array(layers))
            streams = torch.stack([self.residuals[layer] for layer in layers])
            add("residual", ("layer", *dims), streams, "residual stream", MODEL_UNITS)
            text = "last residual stream after the final norm"
            add("y", dims, self.y, text, MODEL_UNITS)
        if self.patterns:
            blocks = sorted(self.patterns)
            coords["block"] = ("block", np.array(blocks))
            patterns = torch.stack([self.patterns[block] for block in blocks])
            dims = ("block", "prompt", "head", "query", "key")
            add("pattern", dims, patterns, "attention pattern", "1")
        facts = {
            "call": {"function": "capture"},
            "fingerprint": self.fingerprint,
            "ambient_hooks": self.ambient_hooks,
            "dtype": self.dtype,
        }
        return dataset_of("activations of one forward pass", coords, data, facts)


# What most measurements take.
PromptOrCapture = TypeAliasType("PromptOrCapture", Prompts | Capture)


def _numpy(tensor: Tensor) -> np.ndarray:
    """The tensor as a NumPy array; half precision becomes float32, since NumPy has no bfloat16."""
    return (tensor.float() if tensor.dtype.itemsize < 4 else tensor).cpu().numpy()
