"""Progress bars for terminals and notebooks, shown after one second, one at a time within a measurement.

A measurement may call others that have their own bars. While one bar is open, the others are not shown, but count:
all open bars together know the share of the work that is done. From that and the time so far, a call that takes more
than ten seconds says how long it will take. `one_bar` is around each measurement. No bar is shown inside `quiet`, or if
the environment has SQUASHLENS_PROGRESS=0.
"""

import contextlib
import math
import os
import time
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # in a notebook without ipywidgets, bars are text
    from tqdm.auto import tqdm

LONG = 10.0  # seconds from which a call says what it will take
# Seconds of work from which its time is estimated: the first passes are slower.
FIRST = 1.0
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


class Bar(tqdm):  # pyright: ignore[reportUntypedBaseClass]
    """A bar that counts when it is hidden too."""

    what: str | None = None

    def __eq__(self, other: object) -> bool:
        """A bar equals itself alone; those of tqdm are equal where they stand on one line."""
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __iter__(self) -> Iterator[Any]:
        """The items, each of which is counted once it is done."""
        try:
            for item in self.iterable:
                yield item
                self.update()
        finally:
            self.close()

    def update(self, n: float | None = 1) -> bool | None:
        """Count `n` more, and say once what a long call will take."""
        if self.disable:
            self.n += n
        super().update(n)
        call = _call.get()
        if call is not None:
            call.tell()

    def close(self) -> None:
        """The bar is done, and no other is inside it."""
        super().close()
        call = _call.get()
        if call is not None and self in call.open:
            del call.open[call.open.index(self) :]


@dataclass
class Call:
    """An outermost call and its open bars, from the outermost to the innermost.

    `cheaper` is a sentence about what would take less time; `told` is true once the expected time was printed.
    """

    name: str
    cheaper: str
    open: list[Any] = field(default_factory=list)
    start: float = 0.0  # of the outermost bar
    told: bool = False

    def share(self) -> float:
        """The share of the work that is done: a step of a bar consists of the steps of the bar inside it."""
        share = 0.0
        step = 1.0  # share of the work that one step of the bar is
        for inner in self.open:
            # Of a bar without a total no share is known to be done.
            step /= inner.total or math.inf
            share += step * inner.n
        return share

    def tell(self) -> None:
        """Say what the outermost bar will take, once, if it is long."""
        share = self.share()
        taken = time.monotonic() - self.start
        can_estimate = bool(self.open) and taken >= FIRST
        is_short = taken <= LONG * share  # since taken / share is the expected time
        if self.told or not can_estimate or is_short:
            return
        self.told = True
        if share:  # which is 0 for a bar without a total
            outermost = self.open[0]
            work = f"{outermost.total} steps ({outermost.what})"
            line = (
                f"{self.name}: {work}, about {_rounded(taken / share)}. {self.cheaper}"
            )
            write(line.strip())


_call: ContextVar[Call | None] = ContextVar("call", default=None)


def bar(given: Iterable[Any] | None = None, **options: Any) -> Any:
    """A tqdm bar over `given`; hidden if quiet, in the first second, and while another bar is open."""
    call = _call.get()
    is_inside = call is not None and len(call.open) > 0
    is_hidden = is_inside or not shown()
    new_bar = Bar(given, delay=1, disable=is_hidden, **options)
    # A hidden bar has neither, but the line about a long call names the steps.
    new_bar.what = options.get("desc") or options.get("unit")
    if call is not None:
        if not is_inside:
            call.start = time.monotonic()
        call.open.append(new_bar)
    return new_bar


@contextlib.contextmanager
def one_bar(name: str, cheaper: str = "") -> Iterator[None]:
    """Within the outermost such context, all calls share a single progress bar; `cheaper` says what takes less."""
    if _call.get() is not None:
        yield
        return
    token = _call.set(Call(name, cheaper))
    try:
        yield
    finally:
        _call.reset(token)


def _rounded(seconds: float) -> str:
    """A time to one digit: it is an estimate."""
    if seconds < 90:
        return f"{float(f'{seconds:.1g}'):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"


def human(n_bytes: int | float) -> str:
    """A number of bytes as text with a decimal prefix.

    >>> human(8_300_000_000), human(999_600)
    ('8.3 GB', '1 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 999.5:  # else three digits would round to 1000
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"
