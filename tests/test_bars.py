"""Progress bars and warnings as a notebook shows them: one bar for a task, warnings at the caller's line."""

import inspect
import re
import time
from typing import Any

import pytest

import squashlens as sl
from squashlens import bars


@pytest.mark.few(1)
@pytest.mark.parametrize("prompts", ["110 =", ["110 =", "0 ="]], ids=["one", "several"])
def test_a_measurement_made_of_others_has_one_bar(
    prompts: Any, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUASHLENS_PROGRESS", "1")
    made: list[Any] = []

    class Noted(bars.Bar):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self.disable)

    monkeypatch.setattr(bars, "Bar", Noted)
    sl.bound_vs_jacobian(tiny, prompts)
    assert made.count(False) == 1
    assert made.count(True) > 1
    with sl.quiet():
        sl.bound_vs_jacobian(tiny, prompts)
    monkeypatch.setenv("SQUASHLENS_PROGRESS", "0")
    sl.bound_vs_jacobian(tiny, prompts)
    assert made.count(False) == 1


def printed(
    seconds: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """What a call of 4 parts with 5 steps says, if a step takes this time."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with bars.one_bar("call", "Do less."):
        for _ in bars.bar(range(4), desc="parts"):
            for _ in bars.bar(range(5)):
                now[0] += seconds
    return capsys.readouterr().out


def test_a_long_call_says_once_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SQUASHLENS_PROGRESS", "1")
    said = printed(3.0, monkeypatch, capsys)
    assert said == "call: 4 steps (parts), about 60 s. Do less.\n"
    assert not printed(0.4, monkeypatch, capsys)
    with bars.quiet():
        assert not printed(3.0, monkeypatch, capsys)


MEASUREMENTS = [
    name for name in sl.__all__ if hasattr(getattr(sl, name), "__measures__")
]


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_what_takes_less_names_arguments_of_the_call(name: str) -> None:
    measurement = getattr(sl, name)
    cheaper = measurement.__measures__[1]
    if cheaper.startswith("Fewer"):
        named = re.findall(r"(\w+)=", cheaper)
        assert set(named) <= inspect.signature(measurement).parameters.keys()


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
