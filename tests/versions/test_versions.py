"""The script that tries versions: what it installs, what it reads from reports, and the page that it has written."""

import json
from pathlib import Path
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
UNAVAILABLE = "Python 3.14: no interpreter was found, and none could be downloaded"
FOUND: dict[str, Any] = {
    "oldest": {
        "python": "3.11.7", "versions": {"torch": "2.8.0", "pyyaml": "6.0", "transformer-lens": "4.3.0"}, "passed": 1,
        "failed": {"tests.test_a::test_two": "a | b"}, "skipped": {"tests.test_c::test_three": "no browser"},
    },
    "python-3.14": {"python": "3.14", "unavailable": "Python 3.14: no interpreter"},
    "pyright": {"3.11": "0 errors, 0 warnings", "3.12": "2 errors, 0 warnings"},
}  # fmt: skip


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """No program is run: the list of those that would be. A page is written into an empty folder."""
    ran: list[list[str]] = []

    def pretend(line: list[str], seconds: float, accept: tuple[int, ...] = (0,)) -> str | None:
        ran.append(line)
        return "dns error" if "3.14" in line else None

    monkeypatch.setattr(command, "run", pretend)
    monkeypatch.setattr(command, "FOLDER", tmp_path / "runs")
    monkeypatch.setattr(command, "PAGE", tmp_path / "versions.md")
    return ran


def test_each_environment_is_resolved_without_constraints() -> None:
    for one in command.ENVIRONMENTS:
        lines = [line for _, line in command.installation(one)]
        assert one.python in lines[0]
        assert one.resolution in lines[1]
        assert one.resolution == ("lowest-direct" if "oldest" in one.name else "highest")
        assert lines[1][-1] == str(command.ROOT) + (f"[{','.join(one.extras)}]" if one.extras else "")
        assert "lowest-direct" not in lines[2]  # the newest pytest runs the tests
        assert not any("constraints" in word for line in lines for word in line)
        paths = [test.partition("::")[0] for test in one.tests]
        assert all((command.ROOT / path).exists() for path in paths)


def test_an_interpreter_that_cannot_be_had_is_told(scripted: list[list[str]]) -> None:
    assert command.main(["python-3.14"]) == 0
    assert len(scripted) == 1
    held = json.loads((command.FOLDER / "results.json").read_text())
    assert held == {"python-3.14": {"python": "3.14", "unavailable": UNAVAILABLE}}
    assert f"| python-3.14 | 3.14 | – | not run: {UNAVAILABLE} |" in command.PAGE.read_text()


def test_what_was_found_before_is_kept(scripted: list[list[str]]) -> None:
    command.FOLDER.mkdir()
    (command.FOLDER / "results.json").write_text(json.dumps(FOUND))
    assert command.main(["--page-only"]) == 1
    assert not scripted
    assert json.loads((command.FOLDER / "results.json").read_text()) == FOUND
    assert command.PAGE.read_text() == page.page(FOUND, (command.ROOT / "pyproject.toml").read_text(), command.EXTRAS)


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["latest"])
    assert "unknown: latest; choose from oldest," in capsys.readouterr().err


def test_the_outcome_is_what_pytest_reports() -> None:
    assert command.outcome(REPORT) == {
        "passed": 1,
        "failed": {"tests.test_a::test_two[x]": "assert 1 == 2", "tests.test_b": "collection failure"},
        "skipped": {"tests.test_c::test_three": "no browser"},
    }


def test_a_program_that_fails_gives_its_last_words() -> None:
    assert command.run(["true"], 10) is None
    assert command.run(["sh", "-c", "echo before; echo because >&2; exit 3"], 10) == "because"
    assert command.run(["sh", "-c", "exit 1"], 10, accept=(0, 1)) is None
    assert command.run(["sh", "-c", "exit 3"], 10) == "exit code 3"
    assert command.run(["sleep", "9"], 0.1) == "took longer than 0 s"


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
