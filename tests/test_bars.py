"""Progress bars and warnings as a notebook shows them: one bar for a task, warnings at the caller's line."""

import inspect
import re
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import squashlens as sl
from squashlens import bars


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every bar that is made, shown at once."""
    made: list[Any] = []
    plain = bars.Bar

    def make(*args: Any, **kwargs: Any) -> Any:
        made.append(plain(*args, **kwargs | {"delay": 0}))
        made[-1].was_shown = not made[-1].disable
        return made[-1]

    monkeypatch.setattr(bars, "Bar", make)
    monkeypatch.setenv("SQUASHLENS_PROGRESS", "1")
    return made


@pytest.mark.few(1)
@pytest.mark.parametrize("prompts", ["110 =", ["110 =", "0 ="]], ids=["one", "several"])
def test_a_measurement_made_of_others_has_one_bar(
    prompts: Any, opened: list[Any], tiny: Any
) -> None:
    sl.sensitivity(tiny, prompts)
    assert len(opened) > 2
    assert [one.desc for one in opened if one.was_shown] == [
        "sensitivity" if prompts == "110 =" else "prompts"
    ]


def test_no_bar_where_it_is_quiet(
    opened: list[Any], tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sl.quiet():
        sl.sensitivity(tiny, "110 =")
    monkeypatch.setenv("SQUASHLENS_PROGRESS", "0")
    sl.sensitivity(tiny, "110 =")
    assert not any(one.was_shown for one in opened)


def test_a_long_call_says_what_it_takes_after_its_first_unit_of_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(bars.time, "monotonic", lambda: now)
    monkeypatch.setenv("SQUASHLENS_PROGRESS", "1")
    for each, hidden in (
        (3.0, False),
        (3.0, True),
        (0.4, False),
    ):  # seconds for each of 20 units
        with (
            bars.quiet() if hidden else nullcontext(),
            bars.one_bar("call", "Do less."),
        ):
            for _ in bars.bar(range(4), desc="parts"):
                for _ in bars.bar(range(5)):
                    now += each
        printed = capsys.readouterr()
        said = (
            "call: 4 steps (parts), about 60 s. Do less.\n"
            if each == 3.0 and not hidden
            else ""
        )
        assert (printed.out + printed.err).count("about") == bool(said)
        assert said in printed.out


def test_what_takes_less_names_arguments_of_the_call() -> None:
    for name in sl.__all__:
        said = getattr(getattr(sl, name), "__measures__", None)
        if said is not None and said[1].startswith("Fewer"):
            asked = re.findall(r"(\w+)=", said[1])
            assert {*asked} <= {*inspect.signature(getattr(sl, name)).parameters}, name


@pytest.mark.slow
def test_warnings_point_at_the_callers_line(tiny: Any, tmp_path: Path) -> None:
    model = sl.load("tiny-gemma", dtype="bf16", verify=False)
    calls = (
        lambda: sl.jacobian_norms(model, "0 =", norm="frobenius"),
        lambda: sl.certified_bound(model, "0 =", from_layer=5),
        lambda: sl.sensitivity(model, ["0 =", "1 1 ="], norm="frobenius"),
    )
    for call in calls:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            call()
        ours = [
            one
            for one in said
            if "half precision" in str(one.message) or "certificate" in str(one.message)
        ]
        assert ours
        for one in ours:
            assert one.filename == __file__
            assert one.lineno == inspect.getsourcelines(call)[1]
