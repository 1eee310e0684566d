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

    The listing of public names (`make names`) and the command line read its arguments in the source.

    Args:
        figures: names of figures in `squashlens.figures`: the usual one first.
        captured: whether the command line has the options of `capture` too.
        command: whether the command line has it; not if it takes objects of Python.
    """

    return measured  # what else it says is read in the source, before anything is imported
