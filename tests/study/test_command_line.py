"""`squashlens study`, from a file to results."""

from pathlib import Path

import pytest

from squashlens.cli import main


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
