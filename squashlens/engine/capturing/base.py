"""Record the state of the model during a capture, and check it before the capture is used again."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from torch import Tensor

from squashlens._typing import Bridge
from squashlens.engine.anatomy import dtype_of
from squashlens.engine.digests import tensor_digest
from squashlens.engine.proving.registry import fingerprint_of, run_state
from squashlens.errors import StaleCaptureError


@dataclass(frozen=True, kw_only=True, eq=False)
class CaptureBase(ABC):
    """What every capture has: token ids, the state of the model during the run, and a digest of its tensors."""

    fingerprint: str
    ambient_hooks: tuple[str, ...]
    dtype: str
    run_state: str = field(repr=False)
    digest: str = field(default="", repr=False)
    ids: Tensor

    @abstractmethod
    def contents(self) -> tuple[str, Iterable[Tensor]]:
        """What the digest covers: text and tensors."""

    @abstractmethod
    def is_given_by(self, model: Bridge) -> bool:
        """Whether the model gives the same activations now: bit for bit, or of a sequence at three lengths, up to
        rounding."""

    def signed(self) -> Self:
        """The capture with the digest of its present contents."""
        return replace(self, digest=_digest(*self.contents()))

    def require_current(self, model: Bridge) -> None:
        """Raise an error for an edited capture, or one that the model would not give now: run again if in doubt."""
        if self.digest != _digest(*self.contents()):
            raise StaleCaptureError("The capture was edited after it was taken.", "Capture again.")
        now = {"weights or configuration": (self.fingerprint, fingerprint_of(model))}
        now |= {"dtype": (self.dtype, str(dtype_of(model)))}
        changed = [what for what, (before, after) in now.items() if before != after]
        if changed:
            raise StaleCaptureError(
                f"The capture was taken with other {' and '.join(changed)}.", "Capture again with this model."
            )
        run = run_state(model)
        if (self.run_state != run.digest or run.unseen) and not self.is_given_by(model):
            what = "; ".join(dict.fromkeys([*run.hooks, *self.ambient_hooks])) or "a function of a library"
            raise StaleCaptureError(
                f"The model gives other activations than during the capture, with other hooks or other code: {what}.",
                "Capture again, or restore the hooks and what they read.",
            )


def _digest(words: str, tensors: Iterable[Tensor]) -> str:
    return hashlib.sha256(" ".join([words, *map(tensor_digest, tensors)]).encode()).hexdigest()[:32]


def model_state(model: Bridge) -> dict[str, Any]:
    """The fields of `CaptureBase` for the present state of the model."""
    run = run_state(model)
    return {
        "fingerprint": fingerprint_of(model),
        "ambient_hooks": run.hooks,
        "dtype": str(dtype_of(model)),
        "run_state": run.digest,
    }
