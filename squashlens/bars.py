"""Progress bars for terminals and notebooks, shown after one second, one at a time within a measurement.

A measurement may call others that have their own bars. While one bar is open, the others are not shown:
`share_one_bar` marks a measurement, and `bar` checks whether one of its bars is open.
"""

import functools
import warnings
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # in a notebook without ipywidgets, bars are text
    from tqdm.auto import tqdm

T = TypeVar("T")
P = ParamSpec("P")

_bars: "ContextVar[list[Any] | None]" = ContextVar("bars", default=None)


def bar(given: Iterable[Any] | None = None, *, progress: bool, **options: Any) -> Any:
    """A tqdm bar over `given`; hidden without `progress`, in the first second, and while another bar is open."""
    others = _bars.get()
    another_open = any(not one.disable for one in others or [])  # closing a bar disables it
    made = tqdm(given, delay=1, disable=not progress or another_open, **options)
    if others is not None:
        others.append(made)
    return made


def share_one_bar(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator for public functions: all calls inside the outermost one share a single progress bar."""

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
