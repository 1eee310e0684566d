"""Searches that are broken off: what was found is kept, found once, and never taken for another search's."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from squashlens.errors import InputError
from squashlens.saving.journal import Journal

ROOT = Path(__file__).parent.parent
FACTS = {"model": "tiny", "call": {"norm": "linf", "every": [2, 3]}, "revision": None}
TEXTS = st.text(st.characters(codec="utf-8"))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
VALUES = PLAIN | st.lists(PLAIN, max_size=4) | st.dictionaries(TEXTS, PLAIN, max_size=3)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=40,
    deadline=None,
)
@given(findings=st.dictionaries(TEXTS, VALUES, max_size=4))
def test_what_was_found_comes_back(findings: dict[str, Any], tmp_path: Path) -> None:
    """Every float to the bit, every name and text; each finding is kept by a journal of its own."""
    path = tmp_path / "search.json"
    path.unlink(missing_ok=True)
    for name, value in findings.items():
        Journal(path, FACTS).keep({name: value})
    # repr tells −0.0 from 0.0, and 1.0 from 1.
    assert repr(Journal(path, FACTS).found) == repr(findings)


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "other"},
        {"call": {"norm": "l1", "every": [2, 3]}},
        {"call": {"norm": "linf", "every": [3, 2]}},
        {"revision": "main"},
        {"hooks": ["mask"]},
    ],
)
def test_another_search_is_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    Journal(path, FACTS).keep({"a": 1})
    before = path.read_bytes()
    with pytest.raises(InputError):
        Journal(path, {**FACTS, **changed})
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"  ", b"[1]", b"{}", b"\xff\xff"])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    path.write_bytes(content)
    with pytest.raises(InputError):
        Journal(path, {})
    assert path.read_bytes() == content


def test_a_line_that_was_only_begun_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "search"
    Journal(path, FACTS).keep({"b": 1, "a": [1.5, "é"]})
    whole = path.read_bytes()
    line = len(whole.splitlines()[-1])
    for missing in range(1, line + 1):
        path.write_bytes(whole[:-missing])
        again = Journal(path, FACTS)
        assert again.found == {"b": 1}
        again.keep({"a": 2})
        assert Journal(path, FACTS).found == {"a": 2, "b": 1}


def keep_all(path: Path, names: list[str], start: Any) -> None:
    journal = Journal(path, FACTS)
    start.wait()
    for name in names:
        journal.keep({name: name})


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    """Both begin before there is a file; each writes names of its own and some that both have."""
    path = tmp_path / "search"
    shared = [f"both {n}" for n in range(5)]
    first = [f"first {n}" for n in range(15)]
    second = [f"second {n}" for n in range(15)]
    fork = multiprocessing.get_context("fork")
    start = fork.Event()
    writers = [
        fork.Process(target=keep_all, args=(path, names + shared, start))
        for names in (first, second)
    ]
    for writer in writers:
        writer.start()
    start.set()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    found = Journal(path, FACTS).found
    assert found == {name: name for name in first + second + shared}
    assert list(tmp_path.iterdir()) == [path]


WRITER = """
import sys
from squashlens.saving.journal import Journal
journal = Journal(sys.argv[1], {"model": "tiny"})
number = len(journal.found)
while True:
    journal.keep({str(number): "x" * 3000})
    print(number, flush=True)
    number += 1
"""


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_writers_lose_nothing(kills: int, tmp_path: Path) -> None:
    """Killed at any moment, also while the file is made: whatever was said to be kept is there for the next."""
    path = tmp_path / "search"
    rng = random.Random(1)
    n_kept = 0
    for turn in range(kills):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert writer.stdout is not None
        # Now and then it is killed before anything was kept.
        first = writer.stdout.readline() if turn % 5 else ""
        time.sleep(rng.random() / 5)
        writer.send_signal(signal.SIGKILL)
        printed = (first + writer.communicate()[0]).split()
        if printed:
            n_kept = int(printed[-1]) + 1
        found = Journal(path, {"model": "tiny"}).found
        # One may have been kept and not yet printed.
        assert n_kept <= len(found) <= n_kept + 1
        assert list(found) == [str(n) for n in range(len(found))]
        n_kept = len(found)
    assert list(tmp_path.iterdir()) == [path]
