"""The page of benchmarks: what was run again has new numbers, and what was not run keeps its row."""

import inspect

from tests.benchmarks import works
from tests.benchmarks.__main__ import COMPARISONS


def test_every_side_names_a_work_and_its_arguments() -> None:
    """A run in a process of its own that fails leaves a row, and no error."""
    sides = [side for one in COMPARISONS for side in (one.ours, one.theirs)]
    for side in sides:
        inspect.signature(getattr(works, side.work)).bind(**side.arguments)
