"""Progress bars for terminals and notebooks, shown after one second, one at a time within a measurement.

A measurement may call others that have their own bars. While one bar is open, the others are not shown:
`one_bar` is around a measurement, and `bar` checks whether one of its bars is open. No bar is shown inside `quiet`,
or if the environment has SQUASHLENS_PROGRESS=0.
"""

import contextlib
import os
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # in a notebook without ipywidgets, bars are text
    from tqdm.auto import tqdm

T = TypeVar("T")
P = ParamSpec("P")

_bars: "ContextVar[list[Any] | None]" = ContextVar("bars", default=None)
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within the context, show no progress bars and print no sizes or expected times; warnings and errors stay.

    The environment variable SQUASHLENS_PROGRESS=0 does the same for a whole program.

    >>> import squashlens as sl
    >>> with sl.quiet():
    ...     model = sl.load("tiny-gemma")
    """
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


def shown() -> bool:
    """Whether progress is shown."""
    return not _quiet.get() and os.environ.get("SQUASHLENS_PROGRESS", "1") != "0"


def write(text: str) -> None:
    """Print a line about the work ahead, such as its size, without breaking an open bar; nothing if quiet."""
    if shown():
        tqdm.write(text)


def bar(given: Iterable[Any] | None = None, **options: Any) -> Any:
    """A tqdm bar over `given`; hidden if quiet, in the first second, and while another bar is open."""
    others = _bars.get()
    another_open = any(not one.disable for one in others or [])  # closing a bar disables it
    made = tqdm(given, delay=1, disable=not shown() or another_open, **options)
    if others is not None:
        others.append(made)
    return made


@contextlib.contextmanager
def one_bar() -> Iterator[None]:
    """Within the outermost such context, all calls share a single progress bar."""
    if _bars.get() is not None:
        yield
        return
    token = _bars.set([])
    try:
        yield
    finally:
        _bars.reset(token)


def human(n_bytes: int | float) -> str:
    """A number of bytes as text with a decimal prefix.

    >>> human(8_300_000_000)
    '8.3 GB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"
