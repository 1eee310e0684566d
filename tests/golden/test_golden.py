"""Every public measurement gives what it gave when the record was made: see `numbers` for how near."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests import measurements
from tests.golden import numbers

kept = cache(numbers.read)


def recorded(measurement: str) -> list[str]:
    """The models that have it on record."""
    return [
        model
        for model in measurements.MODELS
        if any(name.startswith(f"{measurement}/") for name in kept(model))
    ]


def by_default(model: str, measurement: str) -> bool:
    """One random family for each measurement in turn, the bundled model for what needs words, and a measurement of a
    real model; `slow` has all."""
    if model in measurements.REAL:
        return (model, measurement) == ("smollm2-135m", "path_bound")
    families = [name for name in recorded(measurement) if name in measurements.FAMILIES]
    place = list(measurements.MEASUREMENTS).index(measurement)
    return model == (
        families[place % len(families)] if families else recorded(measurement)[0]
    )


def marks(model: str, measurement: str) -> list[pytest.MarkDecorator]:
    """Slow, and what a real model's package is needed for."""
    needed = {
        "gemma-3-270m": [pytest.mark.gemma],
        "smollm2-135m": [pytest.mark.smollm],
    }.get(model, [])
    return needed if by_default(model, measurement) else [*needed, pytest.mark.slow]


CASES = [
    pytest.param(model, measurement, marks=marks(model, measurement))
    for measurement in measurements.MEASUREMENTS
    for model in recorded(measurement)
]


@pytest.fixture(scope="module")
def subject_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], measurements.Subject]:
    root = tmp_path_factory.mktemp("golden")
    fixtures = {"tiny-gemma": "tiny", "gemma-3-270m": "gemma", "smollm2-135m": "smollm"}

    @cache
    def subject(name: str) -> measurements.Subject:
        if name in fixtures:
            return measurements.Subject(
                name, request.getfixturevalue(fixtures[name]), name
            )
        return measurements.subject(name, Path(root))

    return subject


@pytest.mark.parametrize(("model", "measurement"), CASES)
def test_numbers_are_those_on_record(
    model: str, measurement: str, subject_of: Any
) -> None:
    require_as_recorded(subject_of(model), measurement)


def require_as_recorded(subject: measurements.Subject, measurement: str) -> None:
    """Fail where a number is not as on record."""
    entries = {
        name: entry
        for name, entry in kept(subject.name).items()
        if name.startswith(f"{measurement}/")
    }
    found = {
        f"{measurement}/{call}/{variable}": array.values
        for call, result in measurements.calls(subject, measurement)
        if not isinstance(result, Exception)
        for variable, array in numbers.arrays(result).items()
    }
    assert set(entries) <= set(found), f"missing: {sorted(set(entries) - set(found))}"
    wrong = {
        name: numbers.differences(name, entry, found[name])
        for name, entry in entries.items()
    }
    wrong = {name: text for name, text in wrong.items() if text}
    assert not wrong, "\n".join(
        [
            f"{subject.name} is not as on record:",
            *(f"  {name} {text}" for name, text in wrong.items()),
        ]
    )


@pytest.mark.parametrize("measurement", measurements.others())
def test_a_new_measurement_is_on_record(measurement: str, subject_of: Any) -> None:
    record = numbers.FOLDER / f"{measurement}.npz"
    assert record.exists(), (
        f"Run `python -m tests.golden add {measurement}`, and commit the file that it writes."
    )
    subject = subject_of("tiny-gemma")
    found = numbers.arrays(measurements.others()[measurement](subject))
    for name, entry in numbers.read(measurement).items():
        assert not numbers.differences(
            name, entry, found[name.rsplit("/", 1)[1]].values
        )
