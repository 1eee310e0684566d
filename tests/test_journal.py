"""Searches that are broken off: what was found is kept, found once, and never taken for another search's."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from squashlens.errors import InputError
from squashlens.saving.journal import Journal

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
