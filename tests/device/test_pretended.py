"""Everything public that runs a model gives the CPU's numbers on a device that refuses to mix with the CPU."""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import squashlens as sl
from tests.device import calls
from tests.golden import cases

DEVICE = "lazy:0"
DEFAULT = "tiny-gemma"
SMALL = "gemma2"  # which refuses none of the calls
NUMBER = 2e-5  # of the largest entry of an array: sums may be in another order, since batches are larger on a device
# Of two measurements more: a run in bfloat16 has steps of 0.8 %, and a fit of many coordinates to few answers shows
# every rounding.
MORE = {"precision runs": 2e-2, "probe": 1e-4}
LONG = ("report",)  # with the slow tests, since it makes most of the other measurements again
REFUSED = {"constant_gate"}  # by the bundled model, which has no such gate; a family may refuse more, on both devices
NOISE = 30.0  # a noise floor is rounding itself: its order of magnitude
CALLS = {**calls.CALLS, **calls.SPEAKING}


@pytest.fixture(scope="module")
def subjects(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Any]]:
    """A model on the CPU and on the pretended device."""

    @cache
    def both(name: str) -> tuple[cases.Subject, cases.Subject]:
        root = tmp_path_factory.mktemp("pretended")
        on_cpu = cases.Subject(name, tiny, name) if name == DEFAULT else cases.subject(name, Path(root))
        model = sl.load(on_cpu.opened, device=DEVICE, progress=False)
        return on_cpu, cases.Subject(name, model, on_cpu.opened)

    return both


def families(names: Iterable[str]) -> list[Any]:
    """Each name with a small random model, or with the bundled one where words are needed; with all others if slow."""
    found = []
    for family, name in itertools.product((DEFAULT, *cases.FAMILIES), names):
        words, numbers = name in calls.SPEAKING, name in calls.CALLS or name in calls.HOOKS
        if family == DEFAULT or numbers:
            usual = words if family == DEFAULT else numbers and family == SMALL
            marks = () if usual and name not in LONG else pytest.mark.slow
            found.append(pytest.param(family, name, id=f"{family}-{name}", marks=marks))
    return found


def test_all_of_the_public_interface_is_called_or_excused() -> None:
    excused = {name for name in calls.NOT_CALLED if not name.endswith(".*")}
    spaces = tuple(name[:-1] for name in calls.NOT_CALLED if name.endswith(".*"))
    public = set(calls.public())
    as_a_space = {name for name in public - CALLS.keys() if name.startswith(spaces)}
    assert public - as_a_space == CALLS.keys() | excused
    runs_a_model = {name for name in as_a_space if {"model", "device"} & parameters(name)}
    assert {name for name in runs_a_model if not name.startswith(("prompts.", "hooks."))} == set()
    assert not CALLS.keys() & excused
    assert all(any(name.startswith(space) for name in public) for space in spaces)
    assert {*calls.HOOKS, *calls.NO_HOOKS} == set(sl.hooks.__all__)


def parameters(name: str) -> set[str]:
    """The parameters of a public function."""
    value = functools.reduce(getattr, name.split("."), sl)
    return set() if inspect.isclass(value) else set(inspect.signature(value).parameters)


@pytest.mark.few(1)
@pytest.mark.parametrize(("family", "name"), families(CALLS))
def test_the_numbers_are_the_cpus(
    family: str, name: str, subjects: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = counted(name, monkeypatch)
    for call, function in (CALLS if family == DEFAULT else calls.CALLS)[name].items():
        results, before = [], len(called)
        for place, subject in enumerate(subjects(family)):
            folder = tmp_path / f"{call} {place}"
            folder.mkdir()
            results.append(result(family, name, functools.partial(function, subject, folder)))
        assert len(called) >= before + 2, f"{call} does not call {name}"
        require_equal(f"{name} {call}", *results)


@pytest.mark.few(3)
@pytest.mark.parametrize(("family", "name"), families(calls.HOOKS))
def test_hooks_compute_what_they_do_on_the_cpu(family: str, name: str, subjects: Any) -> None:
    hook = calls.HOOKS[name]
    require_equal(name, *(result(family, name, functools.partial(hooked, s, hook)) for s in subjects(family)))


def hooked(subject: cases.Subject, hook: Callable[[cases.Subject], Any]) -> Any:
    return calls.under(subject, hook(subject))


def result(family: str, name: str, call: Callable[[], Any]) -> Any:
    """The result of a call, or the words in which it is refused, where it may be."""
    try:
        return call()
    except sl.errors.SquashlensError as refused:
        if family in (DEFAULT, SMALL) and name not in REFUSED:
            raise
        return f"{type(refused).__name__}: {refused}".replace("Pretended", "Tensor")  # as Python names an operand


def counted(name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows with every call of a public function."""
    space, _, last = name.rpartition(".")
    home = getattr(sl, space) if space else sl
    function, called = getattr(home, last), []

    def counting(*args: Any, **kwargs: Any) -> Any:
        called.append(name)
        return function(*args, **kwargs)

    monkeypatch.setattr(home, last, counting)
    return called


def require_equal(what: str, cpu: Any, device: Any) -> None:
    """The same arrays, with entries that are equal up to rounding, and not a refusal on the device alone."""
    ours, theirs = dict(arrays(what, cpu)), dict(arrays(what, device))
    assert ours.keys() == theirs.keys(), f"{what}: {sorted(ours.keys() ^ theirs.keys())}"
    assert ours, f"{what}: nothing to compare"
    tolerance = MORE.get(what, MORE.get(what.split()[0], NUMBER))
    for name, array in ours.items():
        other = theirs[name]
        assert array.shape == other.shape, name
        if array.dtype.kind != "f":
            assert np.array_equal(array, other), f"{name}: {array} on the CPU, {other} on the device"
            continue
        numbers, others = array.astype(np.float64), other.astype(np.float64)
        assert np.array_equal(np.isnan(numbers), np.isnan(others)), name
        finite = np.isfinite(numbers) & np.isfinite(others)
        assert np.array_equal(numbers[~finite & ~np.isnan(numbers)], others[~finite & ~np.isnan(others)]), name
        if "noise_floor" in name:
            assert np.all((others <= NOISE * numbers) & (numbers <= NOISE * others)), name
            continue
        off = np.abs(numbers - others)[finite]
        allowed = tolerance * np.abs(numbers[finite]).max(initial=0.0)
        assert off.max(initial=0.0) <= allowed, f"{name}: off by {off.max():.2g}, allowed {allowed:.2g}"


def arrays(what: str, result: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Every array of a result, by name."""
    if isinstance(result, xr.DataArray):
        result = result.rename("value").to_dataset()
    if isinstance(result, xr.Dataset):
        for name, variable in result.variables.items():
            values = variable.values
            yield f"{what}: {name}", values.astype(str) if values.dtype.kind == "O" else values
    elif isinstance(result, torch.Tensor):
        yield what, result.cpu().float().numpy() if result.is_floating_point() else result.cpu().numpy()
    elif isinstance(result, Mapping):
        for name, part in result.items():
            yield from arrays(f"{what} {name}", part)
    elif isinstance(result, str | int | float):
        yield what, np.array(result)
    elif hasattr(result, "__dataclass_fields__"):
        yield from arrays(what, {name: getattr(result, name) for name in result.__dataclass_fields__})
    else:
        for number, part in enumerate(result):
            yield from arrays(f"{what} {number}", part)
