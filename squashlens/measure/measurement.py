"""The registration of a measurement: a decorator at its function, from which everything else is found."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from squashlens.engine.proving.registry import measured

T = TypeVar("T")
P = ParamSpec("P")


def measurement(
    *figures: str, captured: bool = False, command: bool = True
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator for a function that is public as `squashlens.NAME`, runs a model, and is a verb of the command line.

    `make names` and the command line read its arguments in the source: the names of figures in `squashlens.figures`,
    the usual one first; whether the command line has the options of `capture` too; and whether it has the function at
    all.
    """

    return measured  # what else it says is read in the source, before anything is imported
