"""One thread at a time on a model: hooks and configurations are the model's, so two threads would see each other's.

Every measurement and every context that changes a model holds the model's lock. The lock is re-entrant: a thread that
holds it may take it again. Other threads wait. Locks are kept beside models, not on them, so that models can still be
copied and pickled, and a copy has a lock of its own.
"""

import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ParamSpec, TypeVar

from squashlens._typing import Bridge
from squashlens.arguments import validated
from squashlens.errors import BusyModelError, InputError
from squashlens.remarks import remark

T = TypeVar("T")
P = ParamSpec("P")

PATIENCE = 60.0  # seconds of waiting before a warning says what is waited for

_turn = threading.Condition()  # guards everything below
_locks: "weakref.WeakKeyDictionary[Any, _Lock]" = weakref.WeakKeyDictionary()
_waiting: "dict[int, _Lock]" = {}


class _Lock:
    """Which thread holds a model, and how many times it took it."""

    def __init__(self) -> None:
        self.owner: int | None = None
        self.depth = 0

    def acquire(self, name: str) -> None:
        me = threading.get_ident()
        with _turn:
            warned = False
            while self.owner not in (None, me):
                self._refuse_deadlock(me, name)
                _waiting[me] = self
                try:
                    woken = _turn.wait(PATIENCE)
                finally:
                    del _waiting[me]
                if not (woken or warned):
                    warned = True
                    remark(f"Waiting for another thread that holds the model {name}.")
            self.owner, self.depth = me, self.depth + 1

    def release(self) -> None:
        with _turn:
            self.depth -= 1
            if self.depth == 0:
                self.owner = None
                _turn.notify_all()

    def _refuse_deadlock(self, me: int, name: str) -> None:
        """Follow who waits for whom: where the chain comes back to this thread, nobody could ever go on."""
        lock: _Lock | None = self
        while lock is not None and lock.owner is not None:
            if lock.owner == me:
                raise BusyModelError(
                    f"This thread and another each hold a model that the other waits for ({name} is held elsewhere).",
                    "Leave `applied` on one model before measuring another, or take them in the same order.",
                )
            lock = _waiting.get(lock.owner)


@contextmanager
def locked(model: Any) -> Iterator[None]:
    """Keep other threads off `model` until the body is left, also by an exception."""
    # Two bridges around one model share its modules, and so its lock.
    inner = getattr(model, "original_model", model)
    with _turn:
        lock = _locks.setdefault(inner, _Lock())
    lock.acquire(type(inner).__name__)
    try:
        yield
    finally:
        lock.release()


def exclusive(function: Callable[P, T]) -> Callable[P, T]:
    """For public functions that use a model without running it, such as its tokenizer: other threads wait."""
    return within(locked, function)


def require_bridge(model: object) -> None:
    """Refuse what is not a model of TransformerLens, or is one of another kind."""
    home = sys.modules.get("transformer_lens.model_bridge")  # until this is imported there is no bridge
    if home is None or not isinstance(model, home.TransformerBridge):
        raise InputError(
            f"model must be a TransformerBridge, not {type(model).__name__}.",
            "Load one: `squashlens.load('tiny-gemma')`, or `TransformerBridge.boot_transformers(…)`.",
        )


def within(context: Callable[[Any], AbstractContextManager[None]], function: Callable[P, T]) -> Callable[P, T]:
    """`function`, whose first parameter is `model`, run inside a context on that model.

    Other arguments are checked first (`squashlens.arguments`). Anything but a bridge is refused, unless the annotation
    of `model` allows it.
    """
    first = next(iter(inspect.signature(function).parameters.values()))
    if first.name != "model":
        raise TypeError(f"{function.__name__} does not take the model first.")

    @validated
    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        model: Any = args[0] if args else kwargs.get("model")
        if first.annotation is Bridge:
            require_bridge(model)
        elif getattr(model, "original_model", None) is None:
            return function(*args, **kwargs)
        with context(model):
            return function(*args, **kwargs)

    alone.__within__ = context  # pyright: ignore[reportAttributeAccessIssue]
    return alone
