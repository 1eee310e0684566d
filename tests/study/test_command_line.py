"""`squashlens study`, from a file to results."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from squashlens.cli import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def described(tmp_path: Path) -> str:
    file = tmp_path / "study.yaml"
    file.write_text(
        f"store: {tmp_path / 'store'}\ngrids:\n- {{measurement: 'tests.study.fakes:broken', each: {{x: [1, 2, 3]}}}}\n"
    )
    return str(file)


def test_a_study_from_beginning_to_end(
    described: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["study", "status", described])
    planned = capsys.readouterr().out.splitlines()
    assert planned[1].split() == ["tests.study.fakes:broken", "3", "0", "0", "3", "0"]
    assert not (tmp_path / "store").exists()
    main(["study", "run", described])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["tests.study.fakes:broken", "3", "2", "1", "0", "0"]
    main(["study", "status", described])
    assert capsys.readouterr().out.splitlines() == lines
    main(["study", "failures", described])
    assert (
        "RuntimeError: no measurement of 3" in capsys.readouterr().out.splitlines()[1]
    )
    other = str(tmp_path / "other")
    main(["study", "run", described, "--retry", "--store", other])
    assert capsys.readouterr().out.splitlines() == lines
    assert Path(other, "results").is_dir()


@pytest.mark.slow
def test_a_measurement_in_the_current_folder(tmp_path: Path) -> None:
    """The program `squashlens` has its own folder in its path, and not the current one; so have its workers."""
    (tmp_path / "own_measurements.py").write_text(
        "from tests.study.fakes import square as mine\n"
    )
    text = f"store: {tmp_path / 'store'}\ngrids: [{{measurement: 'own_measurements:mine', each: {{x: [1, 2]}}}}]\n"
    (tmp_path / "study.yaml").write_text(text)
    code = "import sys; sys.path.remove(''); from squashlens.cli import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, "study", "run", "study.yaml", "--workers", "2"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].split()[:3] == [
        "own_measurements:mine",
        "2",
        "2",
    ]
