"""Cells of your own measurements and hooks are named by the code that runs, its defaults and what it closes over."""

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.errors import InputError
from squashlens.study.identity import plain
from tests.study.fakes import square, study_of

BOUND = {"model": "tiny-gemma", "prompt": "11 ="}


def key(function: Any, each: Any = None, **arguments: Any) -> str:
    grid = {"measurement": function, "each": each or {}, "arguments": arguments}
    return sl.Study(grid, store="unused").cells[0].key


def defined(text: str) -> Any:
    """The function f that a text defines."""
    names: dict[str, Any] = {}
    exec(text, names)  # noqa: S102
    return names["f"]


CHANGES = {
    "a default": ("def f(x, k=1): return x * k", "k=1", "k=2"),
    "a keyword's default": ("def f(x, *, k=1): return x * k", "k=1", "k=2"),
    "a number": ("def f(x): return x * 1", "* 1", "* 2"),
    "an attribute": ("def f(x): return x.a", "x.a", "x.b"),
    "a closure": ("f = (lambda k: lambda x: x * k)(1)", "(1)", "(2)"),
    "inside a loop": ("def f(x): return [y * 1 for y in x]", "* 1", "* 2"),
    "a call": (
        "class C:\n def __call__(self, x): return x\nf = C()",
        "return x",
        "return -x",
    ),
    "an object's state": (
        "class C:\n def __init__(self): self.k = 1\nf = C()",
        "k = 1",
        "k = 2",
    ),
    "a part": ("from functools import partial\nf = partial(max, 1)", "1)", "2)"),
    "what is wrapped": (
        "import functools\n@functools.cache\ndef f(x): return x",
        "return x",
        "return -x",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_function_does_counts_and_comments_do_not(change: str) -> None:
    text, before, after = CHANGES[change]
    assert plain(defined(text)) == plain(defined("# a comment\n\n" + text))
    assert plain(defined(text)) != plain(defined(text.replace(before, after)))


def test_two_functions_on_one_line_and_arrays_are_told_apart() -> None:
    double, triple = (lambda z: z * 2), (lambda z: z * 3)
    assert plain(double) != plain(triple)
    for zeros in (np.zeros, torch.zeros):
        changed = zeros(3)
        changed[1] = 1
        assert plain(zeros(3)) == plain(zeros(3)) != plain(changed)


@pytest.mark.slow
def test_a_key_is_the_same_in_every_process() -> None:
    code = (
        "from squashlens.study.identity import plain\n"
        "def f(x, k=('a', 'b')): return x in {'a', 'b', 'c', 'd'}\nprint(plain(f))"
    )
    printed = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
            env={"PYTHONHASHSEED": seed},
        )
        printed.append(done.stdout)
    assert printed[0] == printed[1] != ""


def halve(z: Any, hook: Any) -> Any:
    return z / 2


def test_hooks_as_values_are_part_of_a_key_and_keep_it_after_use(tiny: Any) -> None:
    site = "blocks.3.attn.hook_z"
    hooks: list[Any] = [
        [],
        sl.hooks.mask_tokens([2]),
        sl.hooks.mask_tokens([1]),
        (site, halve),
        ("blocks.2.attn.hook_z", halve),
        sl.hooks.Hook("half", site, halve),
        sl.hooks.Hook("half", site, functools.partial(halve, hook=None)),
    ]

    def key_under(hook: Any) -> str:
        return key("path_bound", {"hooks": {"own": hook}}, **BOUND)

    keys = [key_under(hook) for hook in hooks]
    assert len(set(keys)) == len(hooks)
    with sl.applied(tiny, hooks[1], hooks[5]):
        sl.path_bound(tiny, "11 =")
    assert [key_under(hook) for hook in hooks] == keys
    assert key_under([{"mask_tokens": {"positions": [2]}}]) == keys[1]


def test_own_functions_are_measured_and_public_ones_keep_their_names(
    tmp_path: Path,
) -> None:
    assert key(sl.path_bound, **BOUND) == key("path_bound", **BOUND)
    study = study_of(lambda x: square(x), tmp_path, {"x": [1, 2]})
    study.run()
    assert study.combine()["area"].sel(place=10).values.tolist() == [1, 4]


def test_what_has_no_content_of_its_own_is_refused(tiny: Any) -> None:
    for held in (iter([1]), tiny.original_model):
        with pytest.raises(InputError):
            key(lambda held=held: held)
