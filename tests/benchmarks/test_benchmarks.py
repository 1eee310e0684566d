"""The page of benchmarks: what was run again has new numbers, and what was not run keeps its row."""

import inspect
from typing import Any

from tests.benchmarks import works
from tests.benchmarks.__main__ import COMPARISONS, page, rows_of


def found(seconds: float) -> dict[str, Any]:
    ours, theirs = ({"median": s, "peak": 5.0, "sketch": {}} for s in (seconds, 2.0))
    return {"ours": ours, "theirs": theirs}


def test_rows_that_were_not_run_stay() -> None:
    first, second, third = COMPARISONS[:3]
    before = rows_of(page({first.name: found(1.0), second.name: found(1.0)}, {}))
    after = rows_of(page({first.name: found(3.0)}, before))
    assert "time 0.5" in before[first.name]
    assert "time 1.5" in after[first.name]
    assert after[second.name] == before[second.name]
    assert third.name not in after


def test_every_side_names_a_work_and_its_arguments() -> None:
    """A run in a process of its own that fails leaves a row, and no error."""
    sides = [side for one in COMPARISONS for side in (one.ours, one.theirs)]
    for side in sides:
        inspect.signature(getattr(works, side.work)).bind(**side.arguments)
