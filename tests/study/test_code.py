"""Cells of your own measurements are named by the code that computes them, also when a file changes."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import squashlens as sl
from squashlens.errors import InputError
from squashlens.study.describing.own_code import code_of
from squashlens.study.work import Worker

HEAD = "import xarray as xr\ndef made(value):\n    return xr.Dataset({'area': value})\n"
GRID = {"measurement": "own_measure:area", "each": {"x": [1, 2]}, "name": "areas"}

Written = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    """Write modules of one's own, that can be imported; the times of files that change in a moment are set apart."""
    monkeypatch.syspath_prepend(tmp_path)
    edits = iter(range(1, 100))

    def write(**modules: str) -> None:
        for name, text in modules.items():
            file = tmp_path / f"{name}.py"
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
            os.utime(file, (at := 1.7e9 + 10 * next(edits), at))
        importlib.invalidate_caches()

    yield write
    forget()


def areas(study: sl.Study) -> list[float]:
    study.run()
    return study.combine()["area"].values.tolist()


def anew(folder: Path) -> sl.Study:
    """The study of a process that imports what the files have now."""
    forget()
    return sl.Study(GRID, store=folder / "store")


def forget() -> None:
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def test_a_measurement_that_changed_has_other_cells(tmp_path: Path, write: Written) -> None:
    write(own_measure=HEAD + "K = [2]\ndef area(x: int): return made(K[0] * x)\n")
    old = sl.Study(GRID, store=tmp_path / "store")
    assert areas(old) == [2, 4]
    write(own_measure=HEAD + "K = [9]\ndef area(x: int): return made(K[0] * x + 1)\n")
    for use in (old.run, old.status):
        with pytest.raises(InputError, match="edited after it was imported. Restart Python"):
            use()
    assert old.combine()["area"].values.tolist() == [2, 4]  # what is stored stays what it was
    with pytest.raises(InputError, match="edited after it was imported"):
        sl.Study(GRID, store=tmp_path / "store")
    importlib.reload(sys.modules["own_measure"])
    with pytest.raises(InputError, match="changed after the study was described.*Make the Study again"):
        old.run()
    new = sl.Study(GRID, store=tmp_path / "store")
    assert new.status()["left"].tolist() == [2]
    assert areas(new) == [10, 19]
    assert anew(tmp_path).combine()["area"].values.tolist() == [10, 19]


def test_modules_that_a_measurement_imports_are_part_of_it(tmp_path: Path, write: Written) -> None:
    """Directly, through others, in a package, and when a function is called; not those that are installed."""
    write(
        own_measure="import numpy, os, own_far.rule\nfrom own_near import area\n",
        own_near=HEAD + "def area(x: int):\n    from own_late import late\n    return made(late(x))\n",
        own_late="def late(x): return 2 * x\n", own_alone="",
        **{"own_far/__init__": "", "own_far/rule": "from . import other\n", "own_far/other": ""},
    )  # fmt: skip
    known = code_of("own_measure", importlib.import_module("own_near").area)
    files = {"own_measure", "own_near", "own_late", "own_far", "own_far.rule", "own_far.other"}
    assert set(known) == files
    assert "own_late" not in sys.modules
    study = sl.Study(GRID, store=tmp_path / "store")
    assert study.cells[0].code == known
    assert areas(study) == [2, 4]
    for name, text in (("own_late", "def late(x): return 3 * x\n"), ("own_far/other", "# none\n")):
        write(**{name: text})
        again = anew(tmp_path)
        assert again.status()["left"].tolist() == [2]
        assert areas(again) == [3, 6]


@pytest.mark.parametrize(("imports", "use", "stale"), [("from own_near import f", "f(x)", True),
                                                       ("import own_near", "own_near.f(x)", False)])  # fmt: skip
def test_a_helper_that_is_older_than_its_file_is_refused(
    imports: str, use: str, stale: bool, tmp_path: Path, write: Written
) -> None:
    """A helper that is imported again leaves the old one in modules that imported its names."""
    write(own_measure=f"{HEAD}{imports}\ndef area(x: int): return made({use})\n", own_near="def f(x): return x\n")
    assert areas(sl.Study(GRID, store=tmp_path / "store")) == [1, 2]
    write(own_near="def f(x): return 2 * x\n")
    with pytest.raises(InputError, match="own_near.py' was edited after it was imported"):
        sl.Study(GRID, store=tmp_path / "store")
    importlib.reload(sys.modules["own_near"])
    if stale:
        with pytest.raises(InputError, match="own_near was imported again, and own_measure has its old f"):
            sl.Study(GRID, store=tmp_path / "store")
        importlib.reload(sys.modules["own_measure"])
    assert areas(sl.Study(GRID, store=tmp_path / "store")) == [2, 4]


def test_a_worker_goes_on_with_the_code_that_it_imported(tmp_path: Path, write: Written) -> None:
    write(own_measure=HEAD + "def area(x: int): return made(2 * x)\n")
    study = sl.Study(GRID, store=tmp_path / "store")
    write(own_measure=HEAD + "def area(x: int): return made(9 * x)\n")
    Worker(study.store).run(study.cells)
    assert study.combine()["area"].values.tolist() == [2, 4]
    assert anew(tmp_path).status()["left"].tolist() == [2]


def test_a_measurement_whose_changes_cannot_be_seen_is_refused(
    tmp_path: Path, write: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(own_measure="def area(x: int) return x\n")
    with pytest.raises(InputError, match="cannot be imported: SyntaxError"):
        sl.Study(GRID, store=tmp_path / "store")
    module = ModuleType("own_measure")
    module.area = lambda x: x  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "own_measure", module)
    with pytest.raises(InputError, match="is in no file"):
        sl.Study(GRID, store=tmp_path / "store")
