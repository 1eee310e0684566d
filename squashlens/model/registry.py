"""What has been proved of a model, held for exactly what was proved.

A proof belongs to a *stamp*: the fingerprint, and what else can change a model inside one process (methods and
functions that were replaced, the attention implementation). A changed weight, epsilon, configuration or adapter gives
another stamp, and what was proved before is proved again. When the change is taken back, the earlier proof holds again.

    good = proved(model, "shared passes", lambda: try_it(model), lengths)

runs `try_it` once for this stamp and these lengths. Add to the key whatever else the proof depends on.

Inside `steady` a model is locked and its stamp computed once. It reads every weight, so public functions open it once,
around everything they do (`measured`); the many proofs asked for inside cost nothing then.
"""

import hashlib
import traceback
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from squashlens._typing import Bridge
from squashlens.bars import alone
from squashlens.errors import BusyModelError, InputError, SquashlensError
from squashlens.model.fingerprint import fingerprint, modules
from squashlens.model.hooks import ambient
from squashlens.model.locks import locked, within
from squashlens.model.surroundings import replaced_functions, require_no_modes
from squashlens.model.words import sample_digest

KEPT = 16  # stamps of a model of which proofs are remembered

T = TypeVar("T")
P = ParamSpec("P")


@dataclass
class _Known:
    """What is known of one model: its proofs by stamp; while it is held steady, its stamp, its fingerprint, and what
    was tried in this call."""

    proofs: "OrderedDict[str, dict[tuple[Any, ...], Any]]" = field(default_factory=OrderedDict)
    stamp: str | None = None
    fingerprint: str = ""
    tried: dict[tuple[Any, ...], object] = field(default_factory=dict)

    def of(self, stamp: str) -> dict[tuple[Any, ...], Any]:
        found = self.proofs.setdefault(stamp, {})
        self.proofs.move_to_end(stamp)
        while len(self.proofs) > KEPT:
            self.proofs.popitem(last=False)
        return found


_known: "weakref.WeakKeyDictionary[Any, _Known]" = weakref.WeakKeyDictionary()


def proved(model: Bridge, what: str, make: Callable[[], T], *key: Any) -> T:
    """What `make` gives for the model as it is now, computed once for each stamp and `key`; errors are not kept."""
    with steady(model):
        found, name = _now(model), (what, *key)
        if name not in found:
            found[name] = make()
        return found[name]


def once(model: Bridge, try_it: Callable[[], None], about: Sequence[object], *key: Any) -> None:
    """Try something once in the outermost call that holds the model steady, for these very objects and this `key`."""
    with steady(model):
        tried, name = _known[model].tried, (*map(id, about), *key)
        if name not in tried:
            try_it()
            tried[name] = about  # kept alive, so that no other object can have its identity meanwhile


def known(model: Bridge, what: str, *key: Any) -> Any:
    """What was proved or recorded of the model as it is now, `None` if nothing."""
    with steady(model):
        return _now(model).get((what, *key))


def record(model: Bridge, what: str, value: object, *key: Any) -> None:
    """Write down something about the model as it is now."""
    with steady(model):
        _now(model)[what, *key] = value


def forget(model: Bridge, what: str | None = None) -> None:
    """Drop what was proved of a model, everything or one thing: it is proved again at its next use."""
    for found in _known.setdefault(model, _Known()).proofs.values():
        for name in [name for name in found if what in (None, name[0])]:
            del found[name]


def fingerprint_of(model: Bridge) -> str:
    """The model's fingerprint; inside `steady` it is not computed again."""
    with steady(model):
        return _known[model].fingerprint


@contextmanager
def steady(model: Bridge) -> Iterator[None]:
    """Lock the model and compute its stamp, unless this thread has done so already; refuse changes in the body."""
    with locked(model):
        state = _known.setdefault(model, _Known())
        if state.stamp is not None:
            yield
            return
        require_no_modes()
        state.fingerprint = fingerprint(model)
        state.stamp = f"{state.fingerprint} {_in_this_process(model)}"
        before, watched = _versions(model), ambient(model)
        try:
            yield
        except Exception as error:
            if watched and _in_a_pass(error):
                raise InputError(
                    f"The model failed under the hooks that stand on it ({'; '.join(watched)}): "
                    f"{type(error).__name__}: {error}.",
                    "A hook is called as fn(tensor, hook=…) and returns a tensor of the same shape and dtype, or None. "
                    "Correct it, or measure without it.",
                ) from error
            raise
        finally:
            state.stamp = None
            state.tried.clear()
        # A hook can write in ways that PyTorch does not count, so under hooks everything is read once more.
        if _versions(model) != before or (watched and fingerprint(model) != state.fingerprint):
            raise BusyModelError(
                "The model's weights were changed while it was measured.",
                "Change them before or after the call, not from a hook or another thread.",
            )


def _in_a_pass(error: Exception) -> bool:
    """Whether an error of another kind than ours came out of a module while the model was run."""
    if isinstance(error, SquashlensError | torch.OutOfMemoryError):
        return False
    return any(frame.filename == nn.modules.module.__file__ for frame in traceback.extract_tb(error.__traceback__))


def measured(function: Callable[P, T]) -> Callable[P, T]:
    """For public functions that run a model: hold it steady from beginning to end; other threads wait. One bar."""
    return within(steady, alone(function))


def _now(model: Bridge) -> dict[tuple[Any, ...], Any]:
    state = _known[model]
    return state.of(str(state.stamp))


def _in_this_process(model: Bridge) -> str:
    """What only this process can tell: the methods of every class, how attention is computed, the bridge's mode."""
    inner: Any = model.original_model
    config = getattr(inner, "config", None)
    said = [str(getattr(config, "_attn_implementation", None)), str(getattr(model, "compatibility_mode", None))]
    for kind in {type(module) for _, module in modules(model)}:
        own = [base for base in kind.__mro__ if base not in torch.nn.Module.__mro__]
        methods = {name: id(value) for base in own for name, value in vars(base).items() if callable(value)}
        said.append(f"{kind.__module__}.{kind.__qualname__} {sorted(methods.items())}")
    said += replaced_functions(model)
    said.sort()
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


def _versions(model: Bridge) -> list[tuple[int, int, str]]:
    """What changes when a parameter is written to or replaced; of writes through `.data`, those to what is sampled."""
    return [(id(p), 0 if p.is_inference() else p._version, sample_digest(p)) for p in model.original_model.parameters()]
