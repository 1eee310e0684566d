"""The JavaScript of the map has tests of its own, which Node runs."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from squashlens.pages.maps.view import program, styles

HERE = Path(__file__).parent
NODE = shutil.which("node")


@pytest.mark.skipif(
    NODE is None,
    reason="node is not installed, so the program's own tests were not run",
)
def test_the_programs_own_tests(tmp_path: Path) -> None:
    module = tmp_path / "map.mjs"  # Node takes a module's kind from its ending
    module.write_text(program(), encoding="utf-8")
    done = subprocess.run(
        [str(NODE), "--test", str(HERE / "map.test.mjs")],
        capture_output=True,
        text=True,
        env=os.environ | {"MAP_PROGRAM": module.as_uri()},
    )
    assert done.returncode == 0, done.stdout
    assert "# pass 10" in done.stdout


def test_the_program_needs_nothing_and_makes_no_markup_of_text() -> None:
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "fetch(",
        "import(",
    ):
        assert word not in program()
    assert program().count("http") == 1  # the name of SVG's namespace
    for text in ("http", "url(", "@import"):
        assert text not in styles()
