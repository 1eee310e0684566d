"""Searches that are broken off: what was found is kept, found once, and never taken for another search's."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from squashlens.errors import InputError
from squashlens.journal import Journal

FACTS = {"model": "tiny", "call": {"norm": "linf", "every": [2, 3]}, "revision": None}
TEXTS = st.text(st.characters(codec="utf-8"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


class BrokenError(Exception):
    """What an interruption raises here."""


def never() -> Any:
    raise AssertionError("found again")


def raising(error: BaseException) -> Any:
    def find() -> Any:
        raise error

    return find


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(found=st.dictionaries(TEXTS, VALUES, max_size=4))
def test_what_was_found_comes_back(found: dict[str, Any], tmp_path: Path) -> None:
    """Every float to the bit, every name and text; after each finding, by a journal of its own."""
    path = tmp_path / "search.json"
    path.unlink(missing_ok=True)
    for number, (name, value) in enumerate(found.items()):
        assert Journal(path, FACTS).get(name, lambda value=value: value) == value
        assert len(json.loads(path.read_text(encoding="utf-8"))["found"]) == number + 1
    again = Journal(path, FACTS)
    for name, value in found.items():
        assert again.get(name, never) == value
        assert repr(again.get(name, never)) == repr(value)  # −0.0 and 1.0 against 1


def test_each_is_found_once() -> None:
    journal, calls = Journal(None, FACTS), []
    for name in ("a", "b", "a", "a"):
        assert journal.get(name, lambda name=name: calls.append(name) or len(calls)) == {"a": 1, "b": 2}[name]
    assert calls == ["a", "b"]


def test_without_a_path_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Journal(None, FACTS).get("a", lambda: 1) == 1
    assert Journal(None, FACTS).get("a", lambda: 2) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [BrokenError(), KeyboardInterrupt()])
def test_an_interruption_keeps_what_was_had(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    journal = Journal(path, FACTS)
    journal.get("first", lambda: [1.5])
    before = path.read_bytes()
    with pytest.raises(type(error)):
        journal.get("second", raising(error))
    assert path.read_bytes() == before
    again = Journal(path, FACTS)
    assert again.get("first", never) == [1.5]
    assert again.get("second", lambda: 2) == 2


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    journal = Journal(path, FACTS)
    journal.get("first", lambda: 1)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        journal.get("second", lambda: {1, 2})  # no JSON
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_files_are_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the moment of renaming, the new file is complete under another name and the old one still whole."""
    path, seen = tmp_path / "search.json", []
    journal = Journal(path, FACTS)
    journal.get("first", lambda: 1)

    def replace(partial: Path, target: Path) -> None:
        seen.extend(json.loads(Path(p).read_text())["found"] for p in (partial, target))
        Path(partial).rename(target)

    monkeypatch.setattr("squashlens.results.os.replace", replace)
    journal.get("second", lambda: 2)
    assert seen == [{"first": 1, "second": 2}, {"first": 1}]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("facts", "others"),
    [
        ({"model": "other"}, "model"),
        ({"call": {"norm": "l1", "every": [2, 3]}}, "call: norm"),
        ({"call": {"norm": "linf", "every": [3, 2]}, "revision": "main"}, "call: every, revision"),
        ({"hooks": ["mask"]}, "hooks"),
    ],
)
def test_another_search_is_refused(facts: dict[str, Any], others: str, tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    Journal(path, FACTS).get("a", lambda: 1)
    before = path.read_bytes()
    with pytest.raises(InputError, match=f"was begun with another {others}. Give another name, or delete it"):
        Journal(path, {**FACTS, **facts})
    if "hooks" in facts:  # and the other way round
        other = tmp_path / "other.json"
        Journal(other, {**FACTS, **facts}).get("a", lambda: 1)
        with pytest.raises(InputError, match="another hooks"):
            Journal(other, FACTS)
    assert path.read_bytes() == before


def test_facts_are_compared_as_they_are_written(tmp_path: Path) -> None:
    """Tuples, paths and whole numbers as names are the same search after they have been in a file."""
    path = tmp_path / "search.json"
    facts = {"lengths": (1, 2), "folder": tmp_path, "by": {1: "é"}}
    Journal(path, facts).get("a", lambda: 1)
    assert Journal(path, facts).get("a", never) == 1
    assert "é" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "3", "null", '"facts"', "{}", '{"facts": {}}', '{"found": {}}', '{"facts": 1, "found": {}}',
        '{"facts": ["model"], "found": {}}', '{"facts": {}, "found": [1, 2]}', '{"facts": {}, "found": null}', "\udcff",
    ],
)  # fmt: skip
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "search.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match="search.json is no journal of a search. Give another name, or delete it"):
        Journal(path, {})
    assert path.read_bytes() == text.encode("utf-8", "surrogateescape")


def test_a_folder_is_no_file_and_no_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no journal"):
        Journal(tmp_path, FACTS)
    with pytest.raises(InputError, match="There is no folder .*nowhere"):
        Journal(tmp_path / "nowhere" / "search.json", FACTS)
    assert list(tmp_path.iterdir()) == []
    Journal(str(tmp_path / "search.json"), FACTS)
    assert list(tmp_path.iterdir()) == []  # nothing found, nothing written
