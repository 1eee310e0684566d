"""Cells of your own measurements and hooks are named by the code that runs, its defaults and what it closes over."""

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.errors import InputError
from squashlens.study.identity import plain
from tests.study.fakes import square

HEAD = "import xarray as xr\n"


def key(function: Any, **grid: Any) -> str:
    return (
        sl.Study({"measurement": function, "name": "own", **grid}, store="unused")
        .cells[0]
        .key
    )


def defined(text: str, name: str = "f") -> Any:
    names: dict[str, Any] = {}
    exec(text, names)  # noqa: S102
    return names[name]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def f(x, k=1): return x * k", "def f(x, k=2): return x * k"),
        ("def f(x, *, k=1): return x * k", "def f(x, *, k=2): return x * k"),
        ("def f(x): return x * 1", "def f(x): return x * 2"),
        ("def f(x): return x.a", "def f(x): return x.b"),
        ("f = (lambda k: lambda x: x * k)(1)", "f = (lambda k: lambda x: x * k)(2)"),
        ("def f(x): return [y * 1 for y in x]", "def f(x): return [y * 2 for y in x]"),
        (
            "class C:\n def __call__(self, x): return x\nf = C()",
            "class C:\n def __call__(self, x): return 2 * x\nf = C()",
        ),
        (
            "class C:\n def __init__(self): self.k = 1\nf = C()",
            "class C:\n def __init__(self): self.k = 2\nf = C()",
        ),
        (
            "from functools import partial\nf = partial(max, 1)",
            "from functools import partial\nf = partial(max, 2)",
        ),
        (
            "import functools\n@functools.cache\ndef f(x): return x",
            "import functools\n@functools.cache\ndef f(x): return 2 * x",
        ),
    ],
)
def test_what_a_function_does_counts_and_comments_do_not(
    before: str, after: str
) -> None:
    assert plain(defined(before)) == plain(defined("# a comment\n\n" + before))
    assert plain(defined(before)) != plain(defined(after))


def test_two_functions_on_one_line_and_arrays_are_told_apart() -> None:
    one, two = (lambda z: z * 2), (lambda z: z * 3)
    assert plain(one) != plain(two)
    for make in (np.zeros, torch.zeros):
        first, second = make(3), make(3)
        second[1] = 1
        assert plain(first) != plain(second)


@pytest.mark.slow
def test_a_key_is_the_same_in_every_process() -> None:
    code = (
        "from squashlens.study.identity import plain\n"
        "def f(x, k=('a', 'b')): return x in {'a', 'b', 'c', 'd'}\nprint(plain(f))"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1] != ""


def test_hooks_as_values_are_part_of_a_key_and_keep_it_after_use(tiny: Any) -> None:
    def halve(z: Any, hook: Any) -> Any:
        return z / 2

    bound = {"arguments": {"model": "tiny-gemma", "prompt": "11 ="}}
    hooks: list[Any] = [
        [],
        sl.hooks.mask_tokens([2]),
        sl.hooks.mask_tokens([1]),
        ("blocks.3.attn.hook_z", halve),
        ("blocks.2.attn.hook_z", halve),
        sl.hooks.Hook("half", "blocks.3.attn.hook_z", halve),
        sl.hooks.Hook(
            "half", "blocks.3.attn.hook_z", functools.partial(halve, hook=None)
        ),
    ]
    keys = [
        key(sl.path_bound, each={"hooks": {"own": made}}, **bound) for made in hooks
    ]
    assert len({*keys}) == len(hooks)
    with sl.applied(tiny, hooks[1], hooks[5]):
        sl.path_bound(tiny, "11 =")
    assert [
        key(sl.path_bound, each={"hooks": {"own": made}}, **bound) for made in hooks
    ] == keys
    named = key(
        "path_bound",
        each={"hooks": {"by name": [{"mask_tokens": {"positions": [2]}}]}},
        **bound,
    )
    assert named == keys[1]


def test_own_functions_are_measured_and_public_ones_keep_their_names(
    tmp_path: Path,
) -> None:
    bound = {"arguments": {"model": "tiny-gemma", "prompt": "11 ="}}
    assert key(sl.path_bound, **bound) == key("path_bound", **bound)
    one = sl.Study(
        {"measurement": lambda x: square(x), "each": {"x": [1, 2]}, "name": "own"},
        store=tmp_path,
    )
    one.run()
    assert one.combine()["area"].sel(place=10).values.tolist() == [1, 4]


def test_a_file_that_was_edited_and_not_imported_again_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    monkeypatch.syspath_prepend(tmp_path)
    module, grid = tmp_path / "own_measure.py", {"each": {"x": [1, 2]}}
    module.write_text(
        HEAD + "def area(x: int, k: int = 2): return xr.Dataset({'area': k * x})\n"
    )
    before = key("own_measure:area", **grid)
    old = sl.Study(
        {"measurement": "own_measure:area", "name": "own", **grid},
        store=tmp_path / "store",
    )
    module.write_text(
        HEAD + "\n\ndef area(x: int, k: int = 33): return xr.Dataset({'area': k * x})\n"
    )
    assert key("own_measure:area", **grid) == before
    importlib.reload(sys.modules["own_measure"])
    assert key("own_measure:area", **grid) != before
    assert old.run()["done"].item() == 2
    assert old.combine()["area"].values.tolist() == [2, 4]  # of what was described
    del sys.modules["own_measure"]


def test_a_measurement_that_cannot_be_imported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_broken.py").write_text("def area(x: int) return x\n")
    with pytest.raises(InputError, match="cannot be imported: SyntaxError"):
        key("own_broken:area")


NO_NAME: list[Callable[[Any], Any]] = [
    lambda _: iter([1]),
    lambda tiny: tiny.original_model,
]


@pytest.mark.parametrize("make", NO_NAME)
def test_what_has_no_content_of_its_own_is_refused(
    make: Callable[[Any], Any], tiny: Any
) -> None:
    held = make(tiny)
    with pytest.raises(InputError, match=r"cannot be named by|holds a loaded model"):
        key(lambda: held)
