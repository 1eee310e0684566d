"""Writing that fails leaves the old file, and says what to do."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError, OutputError
from squashlens.saving.files import require_folder, require_output, write

RESULT = xr.DataArray(np.arange(9000.0), dims="a", name="v", attrs={"provenance": "{}"})


@pytest.mark.parametrize("name", [errno.ENOSPC, errno.EFBIG, errno.EACCES])
def test_every_failure_of_the_system_is_refused(
    name: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "x.txt", b"old")

    def fail(handle: int) -> None:
        raise OSError(name, os.strerror(name))

    monkeypatch.setattr("squashlens.saving.files.os.fsync", fail)
    with pytest.raises(OutputError, match="Cannot write .*x.txt") as caught:
        write(path, b"new")
    assert isinstance(caught.value.__cause__, OSError)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_links_stay_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target = sl.results.save(RESULT, tmp_path / "real" / "x.nc")
    for link, to in (
        ("x.nc", target),
        ("y.nc", Path("real/y.nc")),
        ("z.nc", Path("x.nc")),
    ):
        (tmp_path / link).symlink_to(to)
        sl.results.save(RESULT * 2, tmp_path / link)
        assert (tmp_path / link).is_symlink()
        assert sl.results.open(tmp_path / link).identical(RESULT * 2)
    assert sorted(path.name for path in (tmp_path / "real").iterdir()) == [
        "x.nc",
        "y.nc",
    ]
    (tmp_path / "nowhere.nc").symlink_to("missing/x.nc")
    with pytest.raises(InputError, match="There is no folder"):
        sl.results.save(RESULT, tmp_path / "nowhere.nc")


def test_permissions_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "x.txt", b"old")
    path.chmod(0o640)
    write(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o440)
    with pytest.raises(OutputError, match="x.txt' is read-only. Choose another name"):
        write(path, b"newer")
    assert path.read_bytes() == b"new"


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    (tmp_path / "null.nc").symlink_to("/dev/null")
    (tmp_path / "dangling.nc").symlink_to(tmp_path / "gone" / "x.nc")
    refusals: dict[Path, str] = {
        tmp_path: "is a folder",
        tmp_path / "pipe": "is a pipe or a device",
        tmp_path / "null.nc": "is a pipe or a device",
        tmp_path / "file" / "x.nc": "folder",
        tmp_path / "missing" / "x.nc": "There is no folder",
        Path(""): "is a folder",
        tmp_path / "dangling.nc": f"There is no folder '{tmp_path / 'gone'}'",
    }
    for path, why in refusals.items():
        with pytest.raises((InputError, OutputError), match=why):
            require_output(path)
    with pytest.raises((InputError, OutputError), match="file"):
        require_folder(tmp_path / "file")
    with pytest.raises(InputError, match="Use one of .nc, .json"):
        require_output(tmp_path / "x.txt", (".nc", ".json"))
    assert require_output(tmp_path / "x.nc") == tmp_path / "x.nc"
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "dangling.nc",
        "file",
        "null.nc",
        "pipe",
    ]


def test_outputs_are_checked_before_the_work(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every public function that writes: not even the proof of the model is begun."""

    def work(*_: Any, **__: Any) -> None:
        raise AssertionError("the work was begun")

    assert all([sl.evaluate, sl.capture, sl.report])  # are imported
    for place in (
        "run.run.require_sound",
        "model.loading.load.load",
    ):
        monkeypatch.setattr(f"squashlens.{place}", work)
    (tmp_path / "locked").write_bytes(b"")
    (tmp_path / "locked").chmod(0o444)
    (tmp_path / "locked.html").symlink_to("locked")
    task, nowhere = sl.tasks.find("count_ones"), tmp_path / "nowhere" / "x.html"
    writers: list[Callable[[Path], Any]] = [
        lambda path: sl.evaluate(tiny, task, lengths=[4], seeds=1, resume=path),
        lambda path: sl.collapse_vs_readout(tiny, task, lengths=[4], resume=path),
        lambda path: sl.report("tiny-gemma", out=path),
    ]
    for write_to in writers:
        for path in (nowhere, tmp_path / "locked.html", tmp_path):
            with pytest.raises(
                (InputError, OutputError),
                match="no folder|read-only|is a folder|known ending",
            ):
                write_to(path)
