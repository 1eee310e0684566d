"""The script that tries versions: what it reads of pytest, and the page that it has written."""

from typing import Any

from tests.versions.__main__ import EXTRAS, ROOT, failed, outcome, page, ranges

PYPROJECT = """
[project]
dependencies = ["torch>=2.8", "PyYAML>=6.0"]
[project.optional-dependencies]
quant = ["torch>=2.10", "anywidget"]
"""
PRINTED = [
    "..F.s", "SKIPPED [1] tests/test_c.py:3: no browser", "FAILED tests/test_a.py::test_two - assert 1 == 2",
    "1 failed, 3 passed, 1 skipped in 2.05s",
]  # fmt: skip


def test_the_page_names_versions_and_failures() -> None:
    oldest = {"python": "3.11.7", "versions": {"torch": "2.8.0", "pyyaml": "6.0"}} | outcome(1, PRINTED)
    unavailable = {"python": "3.14", "unavailable": "Python 3.14: no interpreter"}
    held: dict[str, Any] = {"oldest": oldest, "3.14": unavailable, "pyright": {"3.11": "0 errors, 0 warnings"}}
    said = page(held, PYPROJECT, ["quant"])
    for line in (
        "| oldest | 3.11.7 | 2.8.0 | 1 failed, 3 passed, 1 skipped (no browser) |",
        "| 3.14 | 3.14 | – | not run: Python 3.14: no interpreter |",
        "| torch | >=2.8, >=2.10 | 2.8.0 |",
        "| anywidget | any | – |",
        "- **oldest**, FAILED tests/test_a.py::test_two - assert 1 == 2",
        "| 3.11 | 0 errors, 0 warnings |",
    ):
        assert line in said


def test_anything_that_fails_fails_the_command() -> None:
    assert not failed({"a": outcome(0, PRINTED[-1:]), "b": {"unavailable": "x"}})
    assert failed({"a": outcome(1, PRINTED)})
    assert failed({"a": outcome(4, ["no tests were found"])})
    assert failed({"pyright": {"3.11": "1 error, 0 warnings"}})


def test_the_page_is_of_the_present_ranges() -> None:
    """A range that was changed is tried again: `make versions`."""
    said = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    allowed = ranges((ROOT / "pyproject.toml").read_text(encoding="utf-8"), EXTRAS)
    missing = [f"{name} {own}" for name, own in allowed.items() if f"| {name} | {own or 'any'} |" not in said]
    assert not missing
