"""Cells of your own measurements are named by the code that computes them, also when it changes."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import squashlens as sl
from squashlens.errors import InputError

HEAD = "import functools, xarray as xr\ndef made(value):\n    return xr.Dataset({'area': value})\n"
GRID = {"measurement": "own_measure:area", "each": {"x": [1, 2]}, "name": "areas"}

Written = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    """Write modules of one's own and import them anew; the times of files that change in a moment are set apart."""
    monkeypatch.syspath_prepend(tmp_path)
    edits = iter(range(1, 100))

    def write(again: bool = True, **modules: str) -> None:
        for name, text in modules.items():
            (file := tmp_path / f"{name}.py").write_text(text)
            os.utime(file, (at := 1.7e9 + 10 * next(edits), at))
        if again:
            forget()
        importlib.invalidate_caches()

    yield write
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def areas(store: Path) -> list[float]:
    study = sl.Study(GRID, store=store)
    study.run()
    return study.combine()["area"].values.tolist()


def test_cells_have_the_name_of_the_code_that_ran(
    tmp_path: Path, write: Written
) -> None:
    """A file that was edited and not imported again changes nothing; imported again, it has other cells."""
    write(own_measure=HEAD + "K = [2]\ndef area(x: int): return made(K[0] * x)\n")
    assert areas(tmp_path) == [2, 4]
    old = sl.Study(GRID, store=tmp_path)
    write(
        again=False,
        own_measure=HEAD + "K = [9]\ndef area(x: int): return made(K[0] * x)\n",
    )
    assert areas(tmp_path) == [2, 4]
    importlib.reload(sys.modules["own_measure"])
    with pytest.raises(
        InputError, match="changed after the study was described.*Make the Study again"
    ):
        old.run()
    assert areas(tmp_path) == [9, 18]
    assert len([*tmp_path.rglob("*.cell")]) == 4


PLAIN = "def f(x): return x * K\nK = 1\n"


@pytest.mark.parametrize(
    ("imports", "use", "near", "after"),
    [
        ("from own_near import f", "f(x)", PLAIN, "def f(x): return x * K\nK = 2\n"),
        ("import own_near", "own_near.f(x)", PLAIN, "def f(x): return 2 * x\n"),
        (
            "import own_near",
            "own_near.C(x).f()",
            "class C(int):\n def f(self): return self\n",
            "class C(int):\n def f(self): return 2 * self\n",
        ),
        (
            "from own_near import f",
            "f(x)",
            "import functools\n@functools.cache\ndef f(x): return x\n",
            "import functools\n@functools.cache\ndef f(x): return 2 * x\n",
        ),
        (
            "import own_near\nf = functools.partial(own_near.g, k=1)",
            "f(x)",
            "def g(x, k): return x\n",
            "def g(x, k): return x + x\n",
        ),
    ],
)
def test_what_a_measurement_uses_is_part_of_its_name(
    imports: str, use: str, near: str, after: str, tmp_path: Path, write: Written
) -> None:
    """Functions, constants, modules, classes, cached and partial functions; a comment is not."""
    mine = HEAD + f"{imports}\ndef area(x: int): return made({use})\n"
    write(own_measure=mine, own_near=near)
    assert areas(tmp_path) == [1, 2]
    keys = [cell.key for cell in sl.Study(GRID, store=tmp_path).cells]
    write(own_measure=mine + "# a comment\n", own_near="# a comment\n" + near)
    assert [cell.key for cell in sl.Study(GRID, store=tmp_path).cells] == keys
    write(own_near=after)
    assert areas(tmp_path) == [2, 4]


def test_a_measurement_that_cannot_be_imported_is_refused(
    tmp_path: Path, write: Written
) -> None:
    write(own_measure="def area(x: int) return x\n")
    with pytest.raises(InputError, match="cannot be imported: SyntaxError"):
        sl.Study(GRID, store=tmp_path)
