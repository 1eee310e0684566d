"""Let only one thread at a time use a model, since two threads would see each other's hooks and configuration.

Every measurement and every context that changes a model holds the model's lock. The lock is re-entrant: the thread that
holds it may take it again. Other threads wait. Locks are not attributes of models, so models can still be copied and
pickled, and a copy has its own lock.
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
from squashlens.checks.arguments import validated
from squashlens.errors import BusyModelError, InputError
from squashlens.remarks import remark

T = TypeVar("T")
P = ParamSpec("P")

WARN_AFTER = 60.0  # seconds of waiting before a warning

_turn = threading.Condition()  # guards everything below
_locks: "weakref.WeakKeyDictionary[Any, _Lock]" = weakref.WeakKeyDictionary()
_waiting: "dict[int, _Lock]" = {}


class _Lock:
    """The thread that holds a model, and how many times it took the lock."""

    def __init__(self) -> None:
        self.owner: int | None = None
        self.depth = 0

    def acquire(self, name: str, wait: bool = True) -> None:
        me = threading.get_ident()
        with _turn:
            if not wait and self.owner not in (None, me):
                raise BusyModelError(
                    f"Another thread holds the model {name}: it measures, or is inside `applied`.",
                    "Wait until it is done, or leave `applied`; then try again.",
                )
            warned = False
            while self.owner not in (None, me):
                self._require_no_deadlock(me, name)
                _waiting[me] = self
                try:
                    woken = _turn.wait(WARN_AFTER)
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

    def _require_no_deadlock(self, me: int, name: str) -> None:
        """Raise an error if the thread that holds this lock waits, directly or indirectly, for this thread."""
        lock: _Lock | None = self
        while lock is not None and lock.owner is not None:
            if lock.owner == me:
                raise BusyModelError(
                    f"Deadlock: this thread and another each hold a model that the other waits for ({name}).",
                    "Leave `applied` on one model before you measure another, or use the models in the same order.",
                )
            lock = _waiting.get(lock.owner)


@contextmanager
def locked(model: Any, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of `model` while the body runs; other threads wait.

    If another thread holds it, this one waits too, or without `wait` raises an error.
    """
    # Two bridges around one model share its modules, so they share its lock.
    inner = getattr(model, "original_model", model)
    with _turn:
        lock = _locks.setdefault(inner, _Lock())
    lock.acquire(type(inner).__name__, wait)
    try:
        yield
    finally:
        lock.release()


def exclusive(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator for public functions that use a model without running it, such as its tokenizer; other threads wait."""
    return run_within(locked, function)


def require_bridge(model: object) -> None:
    """Raise an error for anything that is not a `TransformerBridge`."""
    home = sys.modules.get("transformer_lens.model_bridge")  # before this is imported, no bridge exists
    if home is None or not isinstance(model, home.TransformerBridge):
        raise InputError(
            f"model must be a TransformerBridge, not {model.__class__.__name__}.",
            "Load one: `squashlens.load('tiny-gemma')`, or `TransformerBridge.boot_transformers(…)`.",
        )


def run_within(context: Callable[[Any], AbstractContextManager[None]], function: Callable[P, T]) -> Callable[P, T]:
    """Wrap `function`, whose first parameter is `model`, so that it runs inside a context on that model.

    Other arguments are checked first (`squashlens.checks.arguments`). Anything but a bridge raises an error, unless the
    annotation of `model` allows it.
    """
    first = next(iter(inspect.signature(function).parameters.values()))
    if first.name != "model":
        raise TypeError(f"The first parameter of {function.__name__} is not model.")

    @validated
    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        model: Any = args[0] if args else kwargs.get("model")
        if first.annotation is Bridge:
            require_bridge(model)
        elif getattr(model, "original_model", None) is None:
            return function(*args, **kwargs)
        with context(model):
            return function(*args, **kwargs)

    run.__within__ = context  # pyright: ignore[reportAttributeAccessIssue]
    return run
