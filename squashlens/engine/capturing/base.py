"""Record the state of the model during a capture, and check it before the capture is used again."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.engine.anatomy import device_of, dtype_of, residual_sites
from squashlens.engine.digests import tensor_digest
from squashlens.engine.hooking.hook import ambient, plain_functions
from squashlens.engine.proving.registry import fingerprint_of
from squashlens.engine.running.forward import forward
from squashlens.errors import StaleCaptureError


@dataclass(frozen=True, kw_only=True, eq=False)
class CaptureBase(ABC):
    """What every capture has: fingerprint, hooks and dtype of the model during the run, and a digest of the tensors.

    `ids` are token ids (prompt, position). `functions` are the hooks that are plain functions: their names do not say
    what they do, so the objects are kept, and `shown` is the digest of the streams of one pass under them; without such
    hooks it is empty. `digest` shows whether the capture was edited after the run.
    """

    fingerprint: str
    ambient_hooks: tuple[str, ...]
    dtype: str
    functions: tuple[object, ...] = field(default=(), repr=False)
    shown: str = field(default="", repr=False)
    digest: str = field(default="", repr=False)
    ids: Tensor

    @abstractmethod
    def contents(self) -> tuple[str, Iterable[Tensor]]:
        """What the digest covers: text and tensors."""

    def signed(self) -> Self:
        """The capture with the digest of its present contents."""
        return replace(self, digest=_digest(*self.contents()))

    def require_current(self, model: Bridge) -> None:
        """Raise an error if the capture was edited, or the model's weights, configuration, hooks or dtype changed.

        What a plain function reads, such as a global variable, can change too. With such hooks one pass is run again.
        """
        if self.digest != _digest(*self.contents()):
            raise StaleCaptureError("The capture was edited after it was taken.", "Capture again.")
        named = {
            "weights or configuration": ("fingerprint",),
            "hooks": ("ambient_hooks", "functions"),
            "dtype": ("dtype",),
        }
        now = model_state(model)
        changed = [what for what, fields in named.items() if any(getattr(self, f) != now[f] for f in fields)]
        if changed:
            raise StaleCaptureError(
                f"The capture was taken with other {' and '.join(changed)}.", "Capture again with this model."
            )
        if self.shown != streams_shown(model, self.ids):
            raise StaleCaptureError(
                f"A hook gives other numbers than during the capture: {', '.join(plain_functions(model))}.",
                "Capture again, or restore what the function reads.",
            )


def _digest(words: str, tensors: Iterable[Tensor]) -> str:
    return hashlib.sha256(" ".join([words, *map(tensor_digest, tensors)]).encode()).hexdigest()[:32]


def streams_shown(model: Bridge, ids: Tensor) -> str:
    """The digest of all residual streams of a pass; empty, without a pass, if no hook is a plain function."""
    if not plain_functions(model):
        return ""
    digests: list[str] = []
    with torch.inference_mode(False), torch.no_grad():
        sites = residual_sites(model)
        forward(model, ids.to(device_of(model)), [(site, lambda t: digests.append(tensor_digest(t))) for site in sites])
    return _digest(" ".join(digests), [])


def model_state(model: Bridge) -> dict[str, Any]:
    """The fields of `CaptureBase` for the present state of the model."""
    return {
        "fingerprint": fingerprint_of(model),
        "ambient_hooks": tuple(ambient(model)),
        "dtype": str(dtype_of(model)),
        "functions": tuple(plain_functions(model).values()),
    }
