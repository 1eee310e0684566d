"""What CONTRIBUTING.md says is enough to add a measurement: its files, put into a copy of the repository."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILE = re.compile(r"```python\n# (\S+\.py)\n(.*?)```", re.DOTALL)
USED = """
import contextlib, io
import squashlens as sl
from squashlens.cli import main
found = sl.attention_entropy(sl.load("tiny-gemma"), "110 =")
assert sl.figures.of(found).data[0].y.tolist() == found.values.tolist()
assert sl.figures.attention_entropy(found) == sl.figures.of(found)
assert len(sl.results.table(found)) == found.size
printed = io.StringIO()
with contextlib.redirect_stdout(printed):
    main(["attention_entropy", "--prompt", "110 ="])
assert "entropy of the attention" in printed.getvalue()
"""


@pytest.mark.slow
def test_its_files_alone_add_a_measurement(tmp_path: Path) -> None:
    for part in ("squashlens", "tests", "docs"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("_build", "node_modules"))
    for file in ("CONTRIBUTING.md", "CHANGELOG.md", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path / file)
    added = dict(FILE.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    assert len(added) == 3
    for name, text in added.items():
        assert not (tmp_path / name).exists()
        (tmp_path / name).write_text(text, encoding="utf-8")

    def run(*words: str) -> None:
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    run("-m", "tests.names")
    run("-m", "tests.golden", "add", "attention_entropy")
    run("-c", USED)
    tests = [name for name in added if name.startswith("tests/")]
    lists = [
        "tests/test_glossary.py",
        "tests/test_names.py",
        "tests/test_package.py::test_the_site_has_every_public_name",
    ]
    new = ["tests/golden/test_golden.py::test_a_new_measurement_is_on_record"]
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, *lists, *new)
