"""Remember what was verified of a model, for exactly the state in which it was verified.

Each result belongs to a *stamp* of the model: its fingerprint, and everything else that can change a model inside one
process (replaced methods and functions, the attention implementation). A changed weight, epsilon, configuration or
adapter gives another stamp, and everything is verified again. If the change is undone, the earlier results are valid
again.

    good = proved(model, "shared passes", lambda: try_it(model), lengths)

runs `try_it` once for this stamp and these lengths. The key must contain everything else that the result depends on.

Inside `steady` a model is locked, and its stamp is computed once. A stamp reads every weight, so public functions enter
`steady` once, around everything they do (`measured`).
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
from squashlens.bars import share_one_bar
from squashlens.engine.anatomy import parameters
from squashlens.engine.digests import sample_digest
from squashlens.engine.hooking.hook import ambient
from squashlens.engine.locks import locked, run_within
from squashlens.engine.proving.fingerprint import Walk, fingerprint
from squashlens.engine.proving.surroundings import replaced_functions, require_no_modes
from squashlens.errors import BusyModelError, InputError, SquashlensError

KEPT = 16  # number of stamps of a model for which results are remembered

T = TypeVar("T")
P = ParamSpec("P")


@dataclass
class _Known:
    """What is known of one model: its results by stamp; inside `steady`, also its stamp and what was tried there."""

    proofs: "OrderedDict[str, dict[tuple[Any, ...], Any]]" = field(default_factory=OrderedDict)
    stamp: str | None = None
    fingerprint: str = ""
    replaced: list[str] = field(default_factory=list)
    tried: dict[tuple[Any, ...], object] = field(default_factory=dict)

    def of(self, stamp: str) -> dict[tuple[Any, ...], Any]:
        found = self.proofs.setdefault(stamp, {})
        self.proofs.move_to_end(stamp)
        while len(self.proofs) > KEPT:
            self.proofs.popitem(last=False)
        return found


_known: "weakref.WeakKeyDictionary[Any, _Known]" = weakref.WeakKeyDictionary()


def proved(model: Bridge, what: str, make: Callable[[], T], *key: Any) -> T:
    """The result of `make` for the present model, computed once for each stamp and `key`; errors are not kept."""
    with steady(model):
        found, name = _now(model), (what, *key)
        if name not in found:
            found[name] = make()
        return found[name]


def once(model: Bridge, try_it: Callable[[], None], about: Sequence[object], *key: Any) -> None:
    """Call `try_it` once within the outermost `steady`, for these objects (by identity) and this `key`."""
    with steady(model):
        tried, name = _known[model].tried, (*map(id, about), *key)
        if name not in tried:
            try_it()
            tried[name] = about  # kept alive, so that no other object can get the same id


def known(model: Bridge, what: str, *key: Any) -> Any:
    """What was verified or recorded for the present model, `None` if nothing."""
    with steady(model):
        return _now(model).get((what, *key))


def record(model: Bridge, what: str, value: object, *key: Any) -> None:
    """Record a fact about the present model."""
    with steady(model):
        _now(model)[what, *key] = value


def forget(model: Bridge, what: str | None = None) -> None:
    """Forget everything, or one fact, that was verified of a model, so that it is verified again at the next use."""
    for found in _known.setdefault(model, _Known()).proofs.values():
        for name in [name for name in found if what in (None, name[0])]:
            del found[name]


def fingerprint_of(model: Bridge) -> str:
    """The model's fingerprint; inside `steady` it is computed only once."""
    with steady(model):
        return _known[model].fingerprint


def replaced_in(model: Bridge) -> list[str]:
    """`replaced_functions` of the model; inside `steady` they are computed only once."""
    with steady(model):
        return _known[model].replaced


@contextmanager
def steady(model: Bridge) -> Iterator[None]:
    """Lock the model and compute its stamp, unless this thread has done so; raise an error if the body changes it."""
    with locked(model):
        state = _known.setdefault(model, _Known())
        if state.stamp is not None:
            yield
            return
        require_no_modes()
        walk = Walk.over(model)
        state.fingerprint = fingerprint(model, walk)
        state.replaced = replaced_functions(walk)
        state.stamp = f"{state.fingerprint} {_in_this_process(model, walk, state.replaced)}"
        before, watched = _versions(model), ambient(model)
        try:
            yield
        except Exception as error:
            if watched and _in_a_pass(error):
                raise InputError(
                    f"The model failed with its hooks ({'; '.join(watched)}): {type(error).__name__}: {error}.",
                    "Correct the hook, or measure without it: a hook is called as fn(tensor, hook=…) and returns a "
                    "tensor of the same shape and dtype, or None.",
                ) from error
            raise
        finally:
            state.stamp = None
            state.tried.clear()
        # A hook can write in ways that PyTorch does not count, so with hooks the fingerprint is computed again.
        if _versions(model) != before or (watched and fingerprint(model) != state.fingerprint):
            raise BusyModelError(
                "The model's weights were changed during a measurement.",
                "Change them before or after the call, not from a hook or another thread.",
            )


def _in_a_pass(error: Exception) -> bool:
    """Whether an error that is not ours came from a module while the model was running."""
    if isinstance(error, SquashlensError | torch.OutOfMemoryError):
        return False
    return any(frame.filename == nn.modules.module.__file__ for frame in traceback.extract_tb(error.__traceback__))


def measured(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator for public functions that run a model: they run inside `steady`, with a single progress bar."""
    return run_within(steady, share_one_bar(function))


def _now(model: Bridge) -> dict[tuple[Any, ...], Any]:
    state = _known[model]
    return state.of(str(state.stamp))


def _in_this_process(model: Bridge, walk: Walk, replaced: list[str]) -> str:
    """A digest of what only this process has: methods of all classes, attention implementation, bridge mode."""
    inner: Any = model.original_model
    config = getattr(inner, "config", None)
    lines = [str(getattr(config, "_attn_implementation", None)), str(getattr(model, "compatibility_mode", None))]
    for kind in {type(module) for _, module in walk.modules}:
        own = [base for base in kind.__mro__ if base not in torch.nn.Module.__mro__]
        methods = {name: id(value) for base in own for name, value in vars(base).items() if callable(value)}
        lines.append(f"{kind.__module__}.{kind.__qualname__} {sorted(methods.items())}")
    lines += replaced
    lines.sort()
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _versions(model: Bridge) -> tuple[list[tuple[int, int]], str]:
    """What changes if a parameter is replaced or written to; for writes through `.data`, only sampled entries count."""
    every = parameters(model.original_model)
    return [(id(p), 0 if p.is_inference() else p._version) for p in every], sample_digest(every)
