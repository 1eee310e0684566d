"""Record the state of the model during a capture, and check it before the capture is used again."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from torch import Tensor

from squashlens._typing import Bridge
from squashlens.errors import StaleCaptureError
from squashlens.model.anatomy import dtype_of
from squashlens.model.digests import sha256, tensor_digest
from squashlens.model.hooking.standing import ambient
from squashlens.model.proof import fingerprint_of, proof_of
from squashlens.model.snapshot import precision
from squashlens.run.users_hooks import key_of


@dataclass(frozen=True, kw_only=True, eq=False)
class CaptureBase(ABC):
    """What every capture has: token ids, the state of the model during the run, and a digest of its tensors."""

    fingerprint: str
    ambient_hooks: tuple[str, ...]
    dtype: str
    precision: str = field(repr=False)
    digest: str = field(default="", repr=False)
    ids: Tensor

    @abstractmethod
    def contents(self) -> tuple[str, Iterable[Tensor]]:
        """What the digest covers: text and tensors."""

    @abstractmethod
    def is_given_by(self, model: Bridge) -> bool:
        """Whether the model gives the same activations now: bit for bit, or of a sequence at three lengths, up to
        rounding."""

    def signed(self, model: Bridge | None = None) -> Self:
        """The capture with the digest of its present contents; that `model` gives it, in its present state, is kept."""
        found = replace(self, digest=_digest(*self.contents()))
        if model is not None:
            _given_in(model).append((found.digest, key_of(model)))
        return found

    def require_current(self, model: Bridge) -> None:
        """Raise an error for an edited capture, or one that the model would not give now.

        In the state and under the hooks in which it was taken it is used as it is. Otherwise the model is run again,
        once for a state.
        """
        if self.digest != _digest(*self.contents()):
            raise StaleCaptureError(
                "The capture was edited after it was taken.", "Capture again."
            )
        now = {"weights or configuration": (self.fingerprint, fingerprint_of(model))}
        now |= {
            "dtype": (self.dtype, str(dtype_of(model))),
            "precision of products": (self.precision, precision()),
        }
        changed = [what for what, (before, after) in now.items() if before != after]
        if changed:
            raise StaleCaptureError(
                f"The capture was taken with other {' and '.join(changed)}.",
                "Capture again with this model.",
            )
        given, key, names = (
            _given_in(model),
            (self.digest, key_of(model)),
            ambient(model),
        )
        if key not in given and not self.is_given_by(model):
            what = (
                "; ".join(dict.fromkeys([*names, *self.ambient_hooks]))
                or "a function of a library"
            )
            raise StaleCaptureError(
                f"The model gives other activations than during the capture, with other hooks or other code: {what}.",
                "Capture again, or restore the hooks and what they read.",
            )
        given += [] if key in given else [key]


def _given_in(model: Bridge) -> list[Any]:
    """The captures, with hooks, that the model is known to give in its present state."""
    return proof_of(model).once("captures", list[Any])


def _digest(words: str, tensors: Iterable[Tensor]) -> str:
    return sha256(" ".join([words, *map(tensor_digest, tensors)]))[:32]


def model_state(model: Bridge) -> dict[str, Any]:
    """The fields of `CaptureBase` for the present state of the model."""
    return {
        "fingerprint": fingerprint_of(model),
        "ambient_hooks": tuple(ambient(model)),
        "dtype": str(dtype_of(model)),
        "precision": precision(),
    }
