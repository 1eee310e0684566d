"""Progress bars: for a terminal or a notebook, shown after a second, one at a time in a measurement.

A measurement calls others, each with a bar of its own. While one is shown the others are not: `alone` marks what one
measurement is, and `bar` looks whether one of its bars is still open.
"""

import functools
import warnings
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # in a notebook without ipywidgets: bars are text then, and work
    from tqdm.auto import tqdm

T = TypeVar("T")
P = ParamSpec("P")

_bars: "ContextVar[list[Any] | None]" = ContextVar("bars", default=None)


def bar(given: Iterable[Any] | None = None, *, progress: bool, **options: Any) -> Any:
    """A tqdm bar over `given`; not shown without `progress`, in the first second, or while another one is."""
    others = _bars.get()
    taken = any(not one.disable for one in others or [])  # closing a bar disables it
    made = tqdm(given, delay=1, disable=not progress or taken, **options)
    if others is not None:
        others.append(made)
    return made


def alone(function: Callable[P, T]) -> Callable[P, T]:
    """For public functions: everything that is called inside the outermost one has one bar between them."""

    @functools.wraps(function)
    def measure(*args: P.args, **kwargs: P.kwargs) -> T:
        if _bars.get() is not None:
            return function(*args, **kwargs)
        token = _bars.set([])
        try:
            return function(*args, **kwargs)
        finally:
            _bars.reset(token)

    return measure
