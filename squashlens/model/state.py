"""Notice that a model was changed, and remember what was verified of it in each state.

The state of a model is read at the begin of every public call (`reader`). If it changed, the weights get a fingerprint.
What was verified in a state holds again if the state comes back.

    good = proved(model, "shared passes", lambda: try_it(model), lengths)

runs `try_it` once for this state and these lengths. The key must contain everything else that the result depends on.

Inside `steady` a model is locked, its state is read once, and gradients are off; public functions enter it around
everything they do (`measured`), and turn gradients on where they need them.
"""

import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import BoundArguments
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn

from squashlens._typing import Bridge
from squashlens.errors import BusyModelError, InputError, SquashlensError
from squashlens.model.hooking.standing import Tables, ambient, hooks_as_now
from squashlens.model.locks import locked, run_within
from squashlens.model.memory import awaited
from squashlens.model.reader import (
    Reader,
    contents_of,
    copied,
    held_in,
    marks_of,
    reader_of,
    same,
)

AUTOGRAD = os.path.dirname(
    torch.autograd.__file__
)  # where errors are raised about edits that have no derivative
KEPT = 8  # number of states of a model for which results are remembered

T = TypeVar("T")
P = ParamSpec("P")


@dataclass
class _State:
    """A model in one state, and what is known of it there."""

    structure: list[Any]
    weights: list[Any]
    fingerprint: str
    facts: dict[tuple[Any, ...], Any] = field(default_factory=dict)


@dataclass
class _Known:
    """What is known of one model: its states, the present one last; inside `steady` also its hooks."""

    states: list[_State] = field(default_factory=list)
    busy: bool = False
    at_begin: Tables | None = (
        None  # the hooks on the model when the call began, if there were any
    )
    learned: bool = False  # of a model that hooks must not change past PyTorch; a bridge may have set itself up

    def look(self, model: Bridge, *, settled: bool = False) -> Reader:
        """Read the state of the model; of a new one nothing is known, unless it has only `settled`."""
        reader = reader_of(model, again=True)
        structure, tensors = (
            [reader.settings(), reader.surroundings()],
            reader.tensors(),
        )
        weights = [marks_of(tensors), contents_of(tensors)]
        if (
            self.states
            and self.states[-1].weights == weights
            and same(self.states[-1].structure, structure)
        ):
            return reader
        mark = reader.fingerprint(model)
        before = [
            one
            for one in self.states
            if one.fingerprint == mark and same(one.structure, structure)
        ]
        state = (
            self.states[-1] if settled else before[0] if before else _State([], [], "")
        )
        state.structure, state.weights, state.fingerprint = (
            copied(structure),
            weights,
            mark,
        )
        self.states = [*(one for one in self.states if one is not state), state][-KEPT:]
        return reader

    def require_unchanged(self, model: Bridge, watched: object) -> None:
        """Raise an error if the model is in another state than at the begin; `watched` if it has hooks."""
        reader = reader_of(
            model, again=bool(watched)
        )  # hooks may have added tensors to modules
        state, tensors = self.states[-1], reader.tensors()
        weights = [
            marks_of(tensors),
            contents_of(tensors) if watched or self.learned else state.weights[1],
        ]
        now = [reader.settings(), reader.surroundings()] if watched else state.structure
        if weights != state.weights or not same(state.structure, now):
            raise BusyModelError(
                "A tensor or a setting of the model was changed during a measurement.",
                "Change it before or after the call, not in a hook or another thread. Hooks keep counts and tensors in "
                "a dict or list of yours or in `hook.ctx`, not on modules. A model that writes into its own tensors as "
                "it runs, as recurrent ones do, is not measured.",
            )


def _known_of(model: Bridge) -> _Known:
    held = held_in(model)
    held.known = held.known or _Known()
    return held.known


def proved(model: Bridge, what: str, make: Callable[[], T], *key: Any) -> T:
    """The result of `make` for the present model, computed once for each state and `key`; errors are not kept."""
    with steady(model):
        known = _known_of(model)
        facts, name = known.states[-1].facts, (what, *key)
        if name not in facts:
            facts[name] = make()
            known.learned = True
        return facts[name]


def recall(model: Bridge, what: str, *key: Any) -> Any:
    """What was verified or recorded for the present model, `None` if nothing."""
    with steady(model):
        return _known_of(model).states[-1].facts.get((what, *key))


def record(model: Bridge, what: str, value: object, *key: Any) -> None:
    """Record a fact about the present model."""
    with steady(model):
        _known_of(model).states[-1].facts[what, *key] = value


def fingerprint_of(model: Bridge) -> str:
    """The model's fingerprint, computed once for a state."""
    with steady(model):
        return _known_of(model).states[-1].fingerprint


def watch(model: Bridge) -> None:
    """Look at the end of the present call for what hooks that it added wrote to weights, also past PyTorch."""
    _known_of(model).learned = True


def hooks_at_begin(model: Bridge) -> Tables | None:
    """The hooks that were on the model when the call of a public function began; `None` if there were none."""
    return _known_of(model).at_begin


@contextmanager
def steady(model: Bridge) -> Iterator[None]:
    """Lock the model and read its state, unless this thread has done so; raise an error if the body changes it."""
    with locked(model):
        known = _known_of(model)
        if known.busy:
            yield
            return
        require_no_modes()
        reader, watched = known.look(model), ambient(model)
        known.at_begin, known.busy, known.learned = (
            hooks_as_now(model) if watched else None,
            True,
            False,
        )
        try:
            with (
                torch.inference_mode(False),
                torch.no_grad(),
                awaited(),
            ):  # whatever the caller's mode
                yield
        except Exception as error:
            if isinstance(error, SquashlensError | torch.OutOfMemoryError):
                raise
            files = [
                frame.filename for frame in traceback.extract_tb(error.__traceback__)
            ]
            in_a_pass = nn.modules.module.__file__ in files
            if not in_a_pass:
                known.require_unchanged(
                    model, watched
                )  # autograd has its own words for a weight that was written to
            if watched and (in_a_pass or files[-1].startswith(AUTOGRAD)):
                raise InputError(
                    f"The model failed with its hooks ({'; '.join(watched)}): {type(error).__name__}: {error}.",
                    "Correct the hook, or measure without it: a hook is called as fn(tensor, hook=…) and returns a "
                    "tensor of the same shape and dtype, or None. Where derivatives are taken, it edits a copy, "
                    "`z = z.clone()`, and detaches nothing. Certificates run in float64: convert constants with "
                    "`.to(tensor)`.",
                ) from error
            raise
        finally:
            known.at_begin, known.busy = None, False
            reader.forget_last_pass()
        known.require_unchanged(model, watched)
        if known.learned:
            known.look(model, settled=True)


def measured(
    function: Callable[P, T],
    call: Callable[[BoundArguments], T] | None = None,
    cheaper: str = "",
) -> Callable[P, T]:
    """Decorator for public functions that run a model: they run inside `steady`. For the rest see `run_within`."""
    return run_within(steady, function, call, cheaper)


def require_no_modes() -> None:
    """Raise an error under autocast, which runs parts of the model in another dtype."""
    active = [
        kind for kind in ("cpu", "cuda", "mps") if torch.is_autocast_enabled(kind)
    ]
    if active:
        raise InputError(
            f"Autocast is on for {active[0]}, which runs parts of the model in another dtype than results say.",
            "Leave `torch.autocast`, and load the model in the dtype of the run.",
        )
