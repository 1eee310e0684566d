"""Writing that fails leaves the old file."""

import os
import resource
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError, OutputError
from squashlens.saving.files import require_folder, require_output, write

RESULT = xr.DataArray(np.arange(9000.0), dims="a", name="v", attrs={"provenance": "{}"})


def test_a_file_that_cannot_grow_stays_as_it_was(tmp_path: Path) -> None:
    """As on a full disk: the system refuses files of more than a kilobyte."""
    path = write(tmp_path / "x.txt", b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OutputError):
            write(path, bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_links_stay_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target = sl.results.save(RESULT, tmp_path / "real" / "x.nc")
    links = {"x.nc": target, "y.nc": Path("real/y.nc"), "z.nc": Path("x.nc")}
    for name, to in links.items():
        link = tmp_path / name
        link.symlink_to(to)
        sl.results.save(RESULT * 2, link)
        assert link.is_symlink()
        assert sl.results.open(link).identical(RESULT * 2)
    names = sorted(path.name for path in (tmp_path / "real").iterdir())
    assert names == ["x.nc", "y.nc"]


def test_permissions_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "x.txt", b"old")
    path.chmod(0o640)
    write(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o440)
    with pytest.raises(OutputError):
        write(path, b"newer")
    assert path.read_bytes() == b"new"


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    (tmp_path / "null").symlink_to("/dev/null")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone" / "x.nc")
    before = sorted(tmp_path.iterdir())
    for name in ("", "pipe", "null", "missing/x.nc", "dangling"):
        with pytest.raises(InputError):
            require_output(tmp_path / name)
    with pytest.raises(InputError):
        require_output(tmp_path / "file" / "x.nc")
    with pytest.raises(OutputError):
        require_folder(tmp_path / "file")
    with pytest.raises(InputError):
        require_output(tmp_path / "x.txt", (".nc", ".json"))
    assert require_output(tmp_path / "x.nc") == tmp_path / "x.nc"
    assert sorted(tmp_path.iterdir()) == before


def evaluate(model: Any, path: Path) -> Any:
    return sl.evaluate_task(model, "count_ones", lengths=[4], seeds=1, resume=path)


def collapse_vs_readout(model: Any, path: Path) -> Any:
    return sl.collapse_vs_readout(model, "count_ones", lengths=[4], resume=path)


def report(model: Any, path: Path) -> Any:
    return sl.report("no-such-model", out=path)


@pytest.mark.parametrize("writer", [evaluate, collapse_vs_readout, report])
def test_outputs_are_checked_before_the_work(
    writer: Any, tmp_path: Path, tiny: Any
) -> None:
    """Of every public function that writes: the model runs no pass."""
    locked = tmp_path / "locked.html"
    locked.touch(0o444)
    passes = []
    watch = tiny.original_model.register_forward_hook(
        lambda *_: passes.append("a pass")
    )
    try:
        for path in (tmp_path / "nowhere" / "x.html", locked, tmp_path):
            with pytest.raises((InputError, OutputError)):
                writer(tiny, path)
    finally:
        watch.remove()
    assert not passes
