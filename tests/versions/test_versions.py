"""The script that tries versions: what it installs, what it reads from reports, and the page that it has written."""

from typing import Any

import pytest

from tests.versions import __main__ as command
from tests.versions import page

PYPROJECT = """
[project]
dependencies = ["torch>=2.8", "PyYAML>=6.0", "transformer-lens>=4.3,<5"]
[project.optional-dependencies]
quant = ["torch>=2.10", "torchao>=0.18"]
notebook = ["anywidget"]
"""
REPORT = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="test_one"/>
<testcase classname="tests.test_a" name="test_two[x]">
  <failure message="assert 1 == 2&#10;more">long</failure>
</testcase>
<testcase classname="" name="tests.test_b"><error message="collection failure"/></testcase>
<testcase classname="tests.test_c" name="test_three"><skipped message="no browser"/></testcase>
</testsuite></testsuites>"""
FOUND: dict[str, Any] = {
    "oldest": {
        "python": "3.11.7", "versions": {"torch": "2.8.0", "pyyaml": "6.0", "transformer-lens": "4.3.0"}, "passed": 1,
        "failed": {"tests.test_a::test_two": "a | b"}, "skipped": {"tests.test_c::test_three": "no browser"},
    },
    "python-3.14": {"python": "3.14", "unavailable": "Python 3.14: no interpreter"},
    "pyright": {"3.11": "0 errors, 0 warnings", "3.12": "2 errors, 0 warnings"},
}  # fmt: skip


def test_the_outcome_is_what_pytest_reports() -> None:
    assert command.outcome(REPORT) == {
        "passed": 1,
        "failed": {"tests.test_a::test_two[x]": "assert 1 == 2", "tests.test_b": "collection failure"},
        "skipped": {"tests.test_c::test_three": "no browser"},
    }


def test_the_page_names_versions_and_failures() -> None:
    said = page.page(FOUND, PYPROJECT, ["quant", "notebook"])
    assert "| oldest | 3.11.7 | 2.8.0 | 1 passed, 1 failed, 1 skipped (no browser) |" in said
    assert "| torch | >=2.8, >=2.10 | 2.8.0 |" in said
    assert "| PyYAML | >=6.0 | 6.0 |" in said
    assert "| anywidget | any | – |" in said
    assert "- **oldest**, `tests.test_a::test_two`: a \\| b" in said
    assert "| 3.12 | 2 errors, 0 warnings |" in said


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"a": {"failed": {}, "passed": 0}}, True),
        ({"a": {"failed": {}, "passed": 3}, "pyright": {"3.11": "0 errors, 0 warnings"}}, False),
        ({"a": {"failed": {"t": "x"}, "passed": 3}}, True),
        ({"a": {"unavailable": "x"}}, False),
        ({"pyright": {"3.11": "1 error, 0 warnings"}}, True),
    ],
)
def test_anything_that_fails_fails_the_command(found: dict[str, Any], expected: bool) -> None:
    assert page.failed(found) is expected


def test_the_page_is_of_the_present_ranges() -> None:
    """A range that was changed is tried again: `make versions`."""
    said = (command.ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    allowed = page.ranges((command.ROOT / "pyproject.toml").read_text(encoding="utf-8"), command.EXTRAS)
    missing = [f"{name} {own}" for name, own in allowed.items() if f"| {name} | {own or 'any'} |" not in said]
    assert not missing
