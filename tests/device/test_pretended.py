"""Everything public that runs a model gives its recorded numbers on a device that refuses to mix with the CPU."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import squashlens as sl
from squashlens.records.provenance import PREFIX
from tests import measurements
from tests.golden.test_golden import recorded, require_as_recorded

DEVICE = "lazy:0"
# What the default run takes: a capture, and derivatives. The others are slow.
DEFAULT = [("gemma2", "capture"), ("gemma2", "jacobian_norms")]
CASES = [
    pytest.param(
        model,
        measurement,
        marks=[pytest.mark.slow] * ((model, measurement) not in DEFAULT),
    )
    for measurement in measurements.MEASUREMENTS
    for model in recorded(measurement)
    if model != "tiny-gemma" or measurement != "certified_bound"  # which takes minutes
]
STACK = sl.synthetic.Stack(depth=1, heads=2, width=8)
LENGTHS = [8, 12, 16, 24, 32, 48, 64]


def stored(s: measurements.Subject, folder: Path) -> Any:
    """What a study stores of one cell, read back; the model is loaded by the study's own worker."""
    grid = {
        "measurement": "path_bound",
        "arguments": {"model": str(s.opened)},
        "each": {"prompt": {"ids": [s.short]}},
    }
    study = sl.Study(grid, store=folder / "store")
    assert int(study.run(device=device_of(s))["done"].sum()) == 1
    return study.combine().load()


def page(s: measurements.Subject, folder: Path) -> Any:
    """The report's numbers are those of the measurements that it makes: only that it is written is compared."""
    written = sl.report(s.model, prompt="110 =", out=folder / "report.html")
    return xr.DataArray(written.stat().st_size > 0)


# What the record does not have: calls with files, with a device= of their own, and those without golden numbers.
MORE: dict[str, Callable[[measurements.Subject, Path], Any]] = {
    "load": lambda s, f: sl.capture(
        sl.load(s.opened, device=device_of(s)), [s.short]
    ).to_xarray(),
    "squash_map": lambda s, f: sl.squash_map(s.model, [s.short]).result,
    "Study": stored,
    "report": page,
    "convergence": lambda s, f: sl.synthetic.convergence(
        STACK, LENGTHS, seeds=2, device=device_of(s)
    ),
} | {
    name: lambda s, f, call=call: call(s)
    for name, call in measurements.others().items()
}


def device_of(s: measurements.Subject) -> Any:
    return str(next(s.model.parameters()).device)


@pytest.fixture(scope="module")
def there(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], measurements.Subject]:
    """A model on the pretended device."""
    root = tmp_path_factory.mktemp("pretended")
    return cache(lambda name: measurements.subject(name, root, DEVICE))


@pytest.mark.parametrize(("model", "measurement"), CASES)
def test_the_numbers_are_those_on_record(
    model: str, measurement: str, there: Any
) -> None:
    require_as_recorded(there(model), measurement)


@pytest.mark.parametrize(
    "call",
    [
        "report",
        *(pytest.param(c, marks=pytest.mark.slow) for c in MORE if c != "report"),
    ],
)
def test_other_calls_give_the_cpus_numbers(
    call: str, tiny: Any, there: Any, tmp_path: Path
) -> None:
    results = []
    for place, subject in enumerate((measurements.bundled(tiny), there("tiny-gemma"))):
        folder = tmp_path / str(place)
        folder.mkdir()
        results.append(MORE[call](subject, folder))
    require_equal(*results)


def require_equal(cpu: Any, device: Any) -> None:
    """The same arrays, up to 2·10⁻⁵ of the largest entry: batches are larger on a device."""
    ours, theirs = (
        one.rename("value").to_dataset() if isinstance(one, xr.DataArray) else one
        for one in (cpu, device)
    )
    assert set(ours.variables) == set(theirs.variables)
    for name, array in ours.variables.items():
        if str(name).startswith(PREFIX):
            continue
        if array.dtype.kind != "f":
            np.testing.assert_array_equal(theirs[name].values, array.values)
            continue
        if str(name).endswith("_noise"):  # rounding itself: its order of magnitude
            assert (theirs[name].values < 30 * array.values).all()
            continue
        atol = 2e-5 * np.abs(array.values[np.isfinite(array.values)]).max(initial=0.0)
        np.testing.assert_allclose(
            theirs[name].values, array.values, rtol=0, atol=atol, err_msg=str(name)
        )
