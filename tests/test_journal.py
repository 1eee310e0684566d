"""Searches that are broken off: what was found is kept, found once, and never taken for another search's."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import squashlens as sl
from squashlens.errors import InputError
from squashlens.saving.journal import Journal

FACTS = {"model": "tiny", "call": {"norm": "linf", "every": [2, 3]}, "revision": None}
TEXTS = st.text(st.characters(codec="utf-8"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3)
    ),
    max_leaves=8,
)


def rows(path: Path) -> int:
    return (
        len(path.read_text().splitlines()) - 2
    )  # the first line is empty, and the second has the facts


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=40,
    deadline=None,
)
@given(found=st.dictionaries(TEXTS, VALUES, max_size=4))
def test_what_was_found_comes_back(found: dict[str, Any], tmp_path: Path) -> None:
    """Every float to the bit, every name and text; after each finding, by a journal of its own."""
    path = tmp_path / "search.json"
    path.unlink(missing_ok=True)
    for number, (name, value) in enumerate(found.items()):
        Journal(path, FACTS).keep({name: value})
        assert rows(path) == number + 1
    again = Journal(path, FACTS)
    assert repr(again.found) == repr(found)  # −0.0 and 1.0 against 1
    with pytest.raises(TypeError):
        again.keep({"a set": {1, 2}})  # no JSON
    assert Journal(path, FACTS).found == found


@pytest.mark.parametrize(
    ("facts", "others"),
    [
        ({"model": "other"}, "model"),
        ({"call": {"norm": "l1", "every": [2, 3]}}, "call: norm"),
        (
            {"call": {"norm": "linf", "every": [3, 2]}, "revision": "main"},
            "call: every, revision",
        ),
        ({"hooks": ["mask"]}, "hooks"),
    ],
)
def test_another_search_is_refused(
    facts: dict[str, Any], others: str, tmp_path: Path
) -> None:
    path = tmp_path / "search.json"
    Journal(path, FACTS).keep({"a": 1})
    before = path.read_bytes()
    with pytest.raises(
        InputError,
        match=f"was saved for a different {others}. Give another name, or delete the file",
    ):
        Journal(path, {**FACTS, **facts})
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"  ", b"[1]", b"{}", b"\xff\xff"])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    path.write_bytes(content)
    with pytest.raises(
        InputError,
        match="search.json is not a journal of a search.*Give another name, or delete it",
    ):
        Journal(path, {})
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.replace("1.5", "2.5"),
        lambda line: line[:-9],
        lambda line: "",
        lambda line: '["a", 3]',
    ],
)
def test_a_finding_that_was_changed_or_only_begun_is_found_again(
    change: Any, tmp_path: Path
) -> None:
    path = tmp_path / "search"
    Journal(path, FACTS).keep({"a": [1.5, 2], "b": 1})
    empty, facts, a, b = path.read_text().split("\n")
    path.write_text("\n".join([empty, facts, b, change(a)]))
    again = Journal(path, FACTS)
    assert again.found == {"b": 1}
    again.keep({"a": [1.5, 2]})
    assert Journal(path, FACTS).found == {"a": [1.5, 2], "b": 1}


def keeps(path: Path, names: list[str], start: Any) -> None:
    journal = Journal(path, FACTS)
    start.wait()
    for name in names:
        journal.keep({name: [name, os.getpid()]})


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    """Both begin before there is a file; each writes names of its own and some that both have."""
    path, both = tmp_path / "search", [f"both {n}" for n in range(5)]
    fork = multiprocessing.get_context("fork")
    start = fork.Event()
    own = [[f"{who} {n}" for n in range(15)] for who in "ab"]
    writers = [
        fork.Process(target=keeps, args=(path, [*names, *both], start)) for names in own
    ]
    for writer in writers:
        writer.start()
    start.set()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    found = Journal(path, FACTS).found
    assert set(found) == {*own[0], *own[1], *both}
    assert all(name == said for name, (said, _) in found.items())
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
    path, rng, told = tmp_path / "search", random.Random(1), -1
    environment = os.environ | {"PYTHONPATH": str(Path(sl.__file__).parent.parent)}
    for turn in range(kills):
        writer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert writer.stdout is not None
        # Now and then before anything was kept.
        first = writer.stdout.readline() if turn % 5 else ""
        time.sleep(rng.random() / 5)
        writer.send_signal(signal.SIGKILL)
        said = [int(line) for line in (first + writer.communicate()[0]).split()]
        told = max([told, *said])
        found = Journal(path, {"model": "tiny"}).found
        assert set(found) >= {str(n) for n in range(told + 1)}
        assert len(found) <= told + 2  # what was committed, and not yet told
        told = len(found) - 1
    Journal(path, {"model": "tiny"}).keep({"last": 1})
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_was_deleted_is_written_again(tmp_path: Path) -> None:
    one = Journal(tmp_path / "search", FACTS)
    one.keep({"a": 1})
    (tmp_path / "search").unlink()
    one.keep({"b": 2})
    assert Journal(tmp_path / "search", FACTS).found == {"a": 1, "b": 2}
    late = Journal(tmp_path / "search", FACTS)
    late.keep({"b": 3})
    assert Journal(tmp_path / "search", FACTS).found["b"] == 2  # the first is believed
