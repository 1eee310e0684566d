"""What CONTRIBUTING.md says is enough to add a measurement, a figure and a hook: done in a copy of the repository."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STEP = re.compile(r"```(python|sh)\n(?:# (\S+\.py)\n)?(.*?)```", re.DOTALL)
USED = """
import squashlens as sl
from squashlens.study.measurements import measurements
found = sl.attention_entropy(sl.load("tiny-gemma"), "110 =")
assert sl.figures.entropy_bars(found) == sl.figures.of(found)
assert "attention_entropy" in measurements()
"""
# The tests that find what is public: those of whole lists, and those that have the new names as parameters.
GENERIC = [
    "tests/test_package.py",
    "tests/test_results.py",
    "tests/test_options.py",
    "tests/test_arguments.py",
    "tests/figures/test_specimens.py",
    "tests/study/test_description.py",
    "tests/device/test_pretended.py",
]
NAMED = "attention_entropy or entropy_bars or every_measurement or every_public or public_name or measurement_names"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_its_steps_alone_add_a_measurement_a_figure_and_a_hook(tmp_path: Path) -> None:
    left_out = (".venv", ".git", "_build", "node_modules", "runs")
    shutil.copytree(
        ROOT,
        tmp_path,
        ignore=shutil.ignore_patterns(*left_out),
        dirs_exist_ok=True,
        symlinks=True,
    )
    here = os.environ | {"PYTHONPATH": str(tmp_path)}

    def run(*words: str) -> str:
        done = subprocess.run(
            words, cwd=tmp_path, env=here, capture_output=True, text=True
        )
        assert done.returncode == 0, (
            f"{words}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
        return done.stdout

    python = ".venv/bin/python"
    instead = {
        "make names": f"{python} -m tests.names",
        ".venv/bin/pytest": f"{python} -m pytest -q",
    }
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    steps = text.partition("## Add a measurement")[2]
    new: list[str] = []
    for language, name, text in STEP.findall(steps):
        if language == "python":
            assert not (tmp_path / name).exists()
            (tmp_path / name).write_text(text, encoding="utf-8")
            new += [name] * name.startswith(("squashlens/", "hooks/"))
            continue
        for said, done in instead.items():
            text = text.replace(said, done)
        for line in text.replace(python, sys.executable).splitlines():
            run(*shlex.split(line))
    run(sys.executable, "-c", USED)
    default = ["-q", "-m", "not slow and not cuda", "-k", NAMED]
    run(sys.executable, "-m", "pytest", *default, *GENERIC)
    run(sys.executable, "-m", "ruff", "check", "squashlens", "hooks")
    run(sys.executable, "-m", "ruff", "format", "--check", "squashlens", "hooks")
    run(sys.executable, "-m", "pyright", "--pythonpath", sys.executable, *new)
