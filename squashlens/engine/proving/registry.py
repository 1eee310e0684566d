"""Remember what was verified of a model, for exactly the state in which it was verified.

Each result belongs to a *stamp* of the model: its fingerprint, the digest of the code that it runs, and the attention
implementation. A changed weight, epsilon, configuration, adapter or function gives another stamp, and everything is
verified again. If the change is undone, the earlier results are valid again.

    good = proved(model, "shared passes", lambda: try_it(model), lengths)

runs `try_it` once for this stamp and these lengths. The key must contain everything else that the result depends on.

Inside `steady` a model is locked, and its stamp is computed once. A stamp reads every weight, so public functions enter
`steady` once, around everything they do (`measured`).
"""

import traceback
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from squashlens._typing import Bridge
from squashlens.bars import share_one_bar
from squashlens.engine.digests import Canonical, sample_digest, sha256
from squashlens.engine.hooking.standing import Tables, ambient, hooks_as_now, standing
from squashlens.engine.locks import locked, run_within
from squashlens.engine.proving.fingerprint import Code, Walk, code_of, fingerprint
from squashlens.errors import BusyModelError, InputError, SquashlensError

KEPT = 16  # number of stamps of a model for which results are remembered

T = TypeVar("T")
P = ParamSpec("P")


@dataclass
class Call:
    """One call of a public function under hooks: the hooks at its begin.

    `tested` says whether functions that edit were tested with one prompt (False) and with several (True).
    """

    at_begin: Tables
    tested: set[bool] = field(default_factory=set)


@dataclass
class _Known:
    """What is known of one model: its results by stamp; inside `steady`, also its stamp and the call."""

    proofs: "OrderedDict[str, dict[tuple[Any, ...], Any]]" = field(default_factory=OrderedDict)
    stamp: str | None = None
    fingerprint: str = ""
    code: Code = field(default_factory=lambda: Code("", ()))
    call: Call | None = None

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


def recall(model: Bridge, what: str, *key: Any) -> Any:
    """What was verified or recorded for the present model, `None` if nothing."""
    with steady(model):
        return _now(model).get((what, *key))


def record(model: Bridge, what: str, value: object, *key: Any) -> None:
    """Record a fact about the present model."""
    with steady(model):
        _now(model)[what, *key] = value


def fingerprint_of(model: Bridge) -> str:
    """The model's fingerprint; inside `steady` it is computed only once."""
    with steady(model):
        return _known[model].fingerprint


def code_in(model: Bridge) -> Code:
    """The code that the model runs; inside `steady` it is read only once."""
    with steady(model):
        return _known[model].code


@dataclass(frozen=True)
class RunState:
    """What runs besides weights and configuration: a digest of the code and of all hooks with what they close over."""

    hooks: tuple[str, ...]  # their names
    digest: str
    unseen: tuple[str, ...]  # of what hooks and replaced functions use, what the digest does not show
    mutable: tuple[str, ...]  # containers in users' hooks, which may change while they run


def run_state(model: Bridge) -> RunState:
    """What would run now."""
    own, users, code, found = Canonical(), Canonical(), code_in(model), list(standing(model))
    lines = [code.digest]
    for hook in found:
        lines.append(f"{hook.name} {(users if hook.is_a_users else own).text(hook.edit)}")
    names, unseen = tuple(hook.name for hook in found), (*code.unseen, *own.unseen, *users.unseen)
    return RunState(names, sha256("\n".join(lines))[:16], unseen, tuple(users.mutable))


def call_of(model: Bridge) -> Call | None:
    """The call of a public function that measures the model now, if users' hooks are on the model."""
    state = _known.get(model)
    return None if state is None else state.call


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
        state.code = code_of(walk)
        implementation = getattr(getattr(model.original_model, "config", None), "_attn_implementation", None)
        state.stamp = f"{state.fingerprint} {state.code.digest} {implementation}"
        before, watched = _versions(model), ambient(model)
        state.call = Call(hooks_as_now(model)) if watched else None
        try:
            yield
        except Exception as error:
            if watched and _in_a_pass(error):
                raise InputError(
                    f"The model failed with its hooks ({'; '.join(watched)}): {type(error).__name__}: {error}.",
                    "Correct the hook, or measure without it: a hook is called as fn(tensor, hook=…) and returns a "
                    "tensor of the same shape and dtype, or None. Certificates run in float64: convert constants with "
                    "`.to(tensor)`.",
                ) from error
            raise
        finally:
            state.stamp = state.call = None
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


def _versions(model: Bridge) -> tuple[list[tuple[int, int]], str]:
    """What changes if a parameter is replaced or written to; for writes through `.data`, only sampled entries count."""
    every = list(model.original_model.parameters())
    return [(id(p), 0 if p.is_inference() else p._version) for p in every], sample_digest(every)


def require_no_modes() -> None:
    """Raise an error inside a PyTorch context that changes results."""
    active = [kind for kind in ("cpu", "cuda", "mps") if torch.is_autocast_enabled(kind)]
    if active:
        raise InputError(
            f"Autocast is on for {active[0]}, which runs parts of the model in another dtype than results say.",
            "Leave `torch.autocast`, and load the model in the dtype of the run.",
        )
