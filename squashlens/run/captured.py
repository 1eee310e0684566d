"""Captures as data, which are used only with the model that gave them: the same snapshot and hooks."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

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


@dataclass(frozen=True, kw_only=True, eq=False)
class CaptureBase(ABC):
    """What every capture has: token ids, and the model and its hooks during the pass."""

    fingerprint: str
    ambient_hooks: tuple[str, ...]
    dtype: str
    snapshot: Snapshot = field(repr=False)
    hooks: list[tuple[Any, ...]] = field(repr=False)
    versions: list[tuple[int, int]] = field(default_factory=list, repr=False)
    ids: Tensor

    @abstractmethod
    def contents(self) -> Iterable[Tensor]:
        """The tensors that are kept, in a fixed order."""

    def sealed(self) -> Self:
        """The capture with the versions of its tensors, by which an edit is seen."""
        return replace(self, versions=self._versions())

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        vars(self).update(versions=self._versions())  # a copy has tensors of its own

    def _versions(self) -> list[tuple[int, int]]:
        return [(id(tensor), writes(tensor)) for tensor in self.contents()]

    def require_current(self, model: Bridge) -> None:
        """Raise an error for an edited capture, or one of a model that is another one now, or has other hooks."""
        if self.versions != self._versions():
            raise StaleCaptureError(
                "The capture was edited after it was taken.", "Capture again."
            )
        now = proof_of(model).snapshot
        if now != self.snapshot:
            raise StaleCaptureError(
                f"The capture was taken with another model, or with other {now.changed(self.snapshot)}.",
                "Capture again with this model.",
            )
        if self.hooks != key_of(model):
            names = dict.fromkeys([*ambient(model), *self.ambient_hooks])
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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
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
        norms: what was measured of the capture by vector–Jacobian products, so that another function can use it again.
        fingerprint, ambient_hooks, dtype: the state of the model during the pass.
    """

    labels: list[list[str]] = field(repr=False)
    residuals: Mapping[int, Float[Tensor, "prompt position d"]] = field(repr=False)
    patterns: Mapping[int, Float[Tensor, "prompt head query key"]] = field(repr=False)
    y: Float[Tensor, "prompt position d"] | None = field(repr=False)
    prompts: list[str] | list[list[int]] = field(repr=False)
    norms: dict[tuple[Any, ...], Tensor] = field(
        default_factory=dict, repr=False, init=False
    )

    def contents(self) -> Iterable[Tensor]:
        kept = [self.ids, *self.residuals.values(), *self.patterns.values()]
        return kept if self.y is None else [*kept, self.y]

    def __repr__(self) -> str:
        many, positions = self.ids.shape
        kept = []
        if self.residuals:
            kept.append(
                f"residual streams of layers {listed_numbers(self.residuals)}, y"
            )
        if self.patterns:
            kept.append(f"patterns of blocks {listed_numbers(self.patterns)}")
        prompts = f"{many} prompt{'s' * (many != 1)} of {positions} tokens"
        return f"<Capture of {prompts}: {'; '.join(kept)}>"

    def __getitem__(self, hook_point: str) -> Tensor:
        """The activation at a hook point, as an `ActivationCache` of TransformerLens gives it.

        Raises:
            InputError: a hook point that is not kept.
        """
        found = None
        if match := re.fullmatch(
            r"blocks\.(\d+)\.(hook_\w+|attn\.hook_pattern)", hook_point
        ):
            block, name = int(match[1]), match[2]
            if name == "attn.hook_pattern":
                found = self.patterns.get(block)
            elif name in ("hook_resid_pre", "hook_in"):
                found = self.residuals.get(block)
            elif name in ("hook_resid_post", "hook_out"):
                found = self.residuals.get(block + 1)
        elif hook_point in ("ln_final.hook_out", "ln_final.hook_normalized"):
            found = self.y
        if found is None:
            raise InputError(
                f"{hook_point!r} is not in {self!r}.",
                "It has residual streams (`blocks.0.hook_resid_pre`), patterns (`blocks.0.attn.hook_pattern`) and y "
                "(`ln_final.hook_out`) of the layers that were captured; `model.run_with_cache` keeps others.",
            )
        return found

    def to_xarray(self) -> xr.Dataset:
        """The capture as a Dataset with residual (layer, …), y and pattern (block, …), in float32 or float64."""
        data: dict[str, Any] = {}
        if self.residuals and self.y is not None:
            streams = torch.stack(
                [self.residuals[layer] for layer in sorted(self.residuals)]
            )
            dims = ("prompt", "position", "coordinate")
            data["residual"] = (
                ("layer", *dims),
                _numpy(streams),
                "residual stream",
                MODEL_UNITS,
            )
            data["y"] = (
                dims,
                _numpy(self.y),
                "last residual stream after the final norm",
                MODEL_UNITS,
            )
        if self.patterns:
            stacked = torch.stack(
                [self.patterns[block] for block in sorted(self.patterns)]
            )
            dims = ("block", "prompt", "head", "query", "key")
            data["pattern"] = (dims, _numpy(stacked), "attention pattern", "1")
        coords: dict[str, Any] = {
            "token": (("prompt", "position"), np.array(self.labels, dtype=object)),
            "token_id": (("prompt", "position"), self.ids.numpy()),
        }
        if self.residuals:
            coords["layer"] = ("layer", np.array(sorted(self.residuals)))
        if self.patterns:
            coords["block"] = ("block", np.array(sorted(self.patterns)))
        facts = {
            "call": {"function": "capture"},
            "fingerprint": self.fingerprint,
            "ambient_hooks": self.ambient_hooks,
            "dtype": self.dtype,
        }
        return dataset_of("activations of one forward pass", coords, data, facts)


def listed_numbers(numbers: Iterable[int]) -> str:
    """Numbers in ascending order, consecutive ones as a range.

    >>> listed_numbers([0, 1, 2, 5])
    '0–2, 5'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(
        str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs
    )


PromptOrCapture = TypeAliasType(
    "PromptOrCapture", Prompts | Capture
)  # what most measurements take


def _numpy(tensor: Tensor) -> np.ndarray:
    """The tensor as a NumPy array; half precision becomes float32, since NumPy has no bfloat16."""
    return (tensor.float() if tensor.dtype.itemsize < 4 else tensor).cpu().numpy()
