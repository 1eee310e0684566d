"""Let only one thread at a time use a model, since two threads would see each other's hooks and configuration.

Every measurement and every context that changes a model holds the model's lock. The lock is re-entrant: the thread that
holds it may take it again. Locks are not attributes of models, so models can still be copied and pickled.
"""

import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ParamSpec, TypeVar

from squashlens._typing import Bridge
from squashlens.bars import one_bar
from squashlens.checks.arguments import checked
from squashlens.errors import BusyModelError, InputError
from squashlens.remarks import remark

T = TypeVar("T")
P = ParamSpec("P")

REMARK_AFTER = 60.0  # seconds of waiting

_locks: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()
_looking = threading.Lock()


@contextmanager
def locked(model: Any, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of `model` while the body runs; other threads wait, or without `wait` get an error."""
    # Two bridges around one model share its modules, so they share its lock.
    inner = getattr(model, "original_model", model)
    name = type(inner).__name__
    with _looking:
        lock = _locks.setdefault(inner, threading.RLock())
    if not lock.acquire(timeout=REMARK_AFTER if wait else 0):
        if not wait:
            raise BusyModelError(
                f"Another thread holds the model {name}: it measures, or is inside `applied`.",
                "Wait until it is done, or leave `applied`; then try again.",
            )
        remark(
            f"Waiting for another thread that holds the model {name}. If that thread waits for a model that this one "
            "holds, neither goes on: use models in the same order in both."
        )
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def exclusive(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator for public functions that use a model without running it, such as its tokenizer; other threads wait."""
    return run_within(locked, function)


def require_bridge(model: object) -> None:
    """Raise an error for anything that is not a `TransformerBridge`."""
    home = sys.modules.get(
        "transformer_lens.model_bridge"
    )  # before this is imported, no bridge exists
    if home is None or not isinstance(model, home.TransformerBridge):
        raise InputError(
            f"model must be a TransformerBridge, not {model.__class__.__name__}.",
            "Load one: `squashlens.load('tiny-gemma')`, or `TransformerBridge.boot_transformers(…)`.",
        )


def run_within(
    context: Callable[[Any], AbstractContextManager[None]],
    function: Callable[P, T],
    call: Callable[[inspect.BoundArguments], T] | None = None,
    cheaper: str = "",
) -> Callable[P, T]:
    """Wrap `function`, after a check of its arguments, in a context on its first parameter, `model`, and in one bar.

    `call` gets the arguments that were given, and calls the function; by default it is just called with them. `cheaper`
    says what takes less time.
    """
    first = next(iter(inspect.signature(function).parameters.values()))
    if first.name != "model":
        raise TypeError(f"The first parameter of {function.__name__} is not model.")

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = checked(function, args, kwargs)
        model: Any = bound.arguments.get("model", first.default)
        if first.annotation is Bridge:
            require_bridge(model)
        within = (
            nullcontext()
            if getattr(model, "original_model", None) is None
            else context(model)
        )
        with one_bar(function.__name__, cheaper), within:
            return (
                function(*bound.args, **bound.kwargs) if call is None else call(bound)
            )

    setattr(run, "__validated__", True)  # noqa: B010
    setattr(run, "__within__", context)  # noqa: B010
    return run
