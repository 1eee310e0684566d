"""Progress bars and warnings as a notebook shows them: one bar for a task, warnings at the caller's line."""

import inspect
import re
from typing import Any

import pytest

import squashlens as sl
from squashlens import bars


def test_a_measurement_made_of_others_has_one_bar(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUASHLENS_PROGRESS", "1")
    made: list[Any] = []

    class Noted(bars.Bar):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self.disable)

    monkeypatch.setattr(bars, "Bar", Noted)
    sl.bound_vs_jacobian(tiny, ["110 =", "0 ="])
    assert made.count(False) == 1
    assert made.count(True) > 1
    with sl.quiet():
        sl.bound_vs_jacobian(tiny, ["110 =", "0 ="])
    monkeypatch.setenv("SQUASHLENS_PROGRESS", "0")
    sl.bound_vs_jacobian(tiny, ["110 =", "0 ="])
    assert made.count(False) == 1


def test_a_bar_that_ends_leaves_the_one_around_it_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where tqdm would draw both on one line."""
    monkeypatch.setenv("SQUASHLENS_PROGRESS", "1")
    with bars.one_bar("a call"):
        outer = bars.bar(range(3))
        for _ in range(2):
            inner = bars.bar(range(3))
            assert inner.disable
            inner.pos = outer.pos
            inner.close()
        outer.close()


@pytest.mark.slow
def test_warnings_point_at_the_callers_line() -> None:
    model = sl.load("tiny-gemma", dtype="bf16", verify=False)
    calls = (
        lambda: sl.jacobian_norms(model, "0 =", norm="frobenius"),
        lambda: sl.certified_bound(model, "0 =", from_layer=5),
        lambda: sl.bound_vs_jacobian(model, ["0 =", "1 1 ="], norm="frobenius"),
    )
    for call in calls:
        with pytest.warns(UserWarning, match=r"half precision|certificate") as caught:
            call()
        for warning in caught:
            if re.search("half precision|certificate", str(warning.message)):
                assert warning.filename == __file__
                assert warning.lineno == inspect.getsourcelines(call)[1]
