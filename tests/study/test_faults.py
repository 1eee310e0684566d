"""A full disk and a read-only store: nothing is lost."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import squashlens as sl
from squashlens.errors import OutputError


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_full_disk_ends_a_study_that_continues_with_more_space(
    small_disk: Path, workers: int
) -> None:
    grid = {"measurement": "tests.study.fakes:square", "each": {"x": list(range(100))}}
    made = sl.Study(grid, store=small_disk / "store")
    with pytest.raises(OutputError):
        made.run(workers=workers)
    before = made.status()
    assert 0 < before["done"].item() < 100
    assert before["failed"].item() == 0
    remount(small_disk, "size=4m")
    assert made.run()["done"].item() == 100
