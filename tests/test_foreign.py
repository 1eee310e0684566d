"""Files from anywhere: what is no plain result is refused before any number is read, here or in other files."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import CapacityError, InputError
from squashlens.saving import foreign

SECRET = np.arange(8.0)
PLAIN = xr.DataArray([1.0, 2.0], dims="a", coords={"t": ("a", ["x", "y"])}, name="v", attrs={"provenance": "{}"})


def external(file: h5py.File, folder: Path) -> None:
    file.create_dataset("v", (8,), "f8", external=[(str(folder / "secret"), 0, h5py.h5f.UNLIMITED)])


def virtual(file: h5py.File, folder: Path) -> None:
    layout = h5py.VirtualLayout((8,), "f8")
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "v", (8,))
    file.create_virtual_dataset("v", layout)


def external_link(file: h5py.File, folder: Path) -> None:
    file["v"] = h5py.ExternalLink(str(folder / "other.h5"), "/v")


def soft_link(file: h5py.File, folder: Path) -> None:
    file["w"] = SECRET
    file["v"] = h5py.SoftLink("/w")


def group(file: h5py.File, folder: Path) -> None:
    file["g/v"] = SECRET


def circle(file: h5py.File, folder: Path) -> None:
    file["g"] = file["/"]


def named_type(file: h5py.File, folder: Path) -> None:
    file["v"] = np.dtype("f8")


def compound(file: h5py.File, folder: Path) -> None:
    file["v"] = np.zeros(3, dtype=[("a", "f8")])


def opaque(file: h5py.File, folder: Path) -> None:
    file["v"] = np.array([b"pickle"], dtype="V6")


def references(file: h5py.File, folder: Path) -> None:
    file.create_dataset("v", (2,), dtype=h5py.ref_dtype)


def ragged(file: h5py.File, folder: Path) -> None:
    file.create_dataset("v", (2,), dtype=h5py.vlen_dtype(np.dtype("f8")))


def strange_attribute(file: h5py.File, folder: Path) -> None:
    file["v"] = SECRET
    file["v"].attrs["odd"] = np.zeros(2, dtype=[("a", "f8")])


def strange_filter(file: h5py.File, folder: Path) -> None:
    file.create_dataset("v", data=SECRET, chunks=(8,), compression="lzf")


ATTACKS: dict[Callable[[h5py.File, Path], None], str] = {
    external: "are in another file",
    virtual: "virtual dataset",
    external_link: "link to another place",
    soft_link: "link to another place",
    group: "is not an array",
    circle: "is not an array",
    named_type: "is not an array",
    compound: "neither numbers nor text",
    opaque: "neither numbers nor text",
    references: "neither numbers nor text",
    ragged: "neither numbers nor text",
    strange_attribute: "the attribute 'odd'",
    strange_filter: "unknown filter",
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_foreign_netcdf_is_refused(attack: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET.tobytes())
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["v"] = SECRET
    path = tmp_path / "x.nc"
    with h5py.File(path, "w") as file:
        attack(file, tmp_path)
    with pytest.raises(InputError, match=f"x.nc' is not a result of squashlens: .*{ATTACKS[attack]}"):
        sl.results.open(path)


def test_external_numbers_would_have_been_read(tmp_path: Path) -> None:
    """What the check is for: xarray hands over the bytes of any file."""
    (tmp_path / "secret").write_bytes(SECRET.tobytes())
    with h5py.File(tmp_path / "x.nc", "w") as file:
        external(file, tmp_path)
    with h5py.File(tmp_path / "x.nc") as file:
        np.testing.assert_array_equal(file["v"], SECRET)


@pytest.mark.parametrize("shape", [(1 << 50,), (1 << 20, 1 << 20), (1 << 30, 1 << 30)])
def test_more_than_memory_is_refused_before_it_is_read(shape: tuple[int, ...], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.nc", "w") as file:
        file.create_dataset("v", shape, "f4", chunks=(1,) * len(shape), compression="gzip")
    assert (tmp_path / "x.nc").stat().st_size < 1e4
    with pytest.raises(CapacityError, match="may take .* are free"):
        sl.results.open(tmp_path / "x.nc")


def test_one_long_text_for_many_entries_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of HDF5 may share one text: 600 references to 10 kB are 6 MB once read."""
    with h5py.File(tmp_path / "x.nc", "w") as file:
        file.create_dataset("v", (600,), h5py.string_dtype(), fillvalue="x" * 10_000)
    assert (tmp_path / "x.nc").stat().st_size < 1e5
    memory = type("memory", (), {"available": 1_000_000})
    monkeypatch.setattr(foreign.psutil, "virtual_memory", lambda: memory)
    with pytest.raises(InputError, match="texts take more than 1 MB"):
        sl.results.open(tmp_path / "x.nc")
    sl.results.save(PLAIN, tmp_path / "y.nc")
    memory.available = 10_000  # so that even a small result is looked through text by text
    assert sl.results.open(tmp_path / "y.nc").identical(PLAIN)


def test_compressed_results_come_back(tmp_path: Path) -> None:
    """A user's own netCDF, with the compression that netCDF has."""
    dataset = PLAIN.to_dataset()
    dataset.to_netcdf(tmp_path / "x.nc", engine="h5netcdf", encoding={"v": {"zlib": True, "shuffle": True}})
    assert sl.results.open(tmp_path / "x.nc").identical(dataset)


@pytest.mark.parametrize("ending", ["nc", "json"])
def test_damaged_files_are_refused(ending: str, tmp_path: Path) -> None:
    path = sl.results.save(PLAIN, tmp_path / f"x.{ending}")
    whole = path.read_bytes()
    for damage in (b"", b"\x00", whole[: len(whole) // 2], whole[::-1], b"\x89HDF\r\n\x1a\n", b"[" * 200_000, b"{}"):
        path.write_bytes(damage)
        with pytest.raises(InputError, match=f"x.{ending}' is (damaged|not a result)"):
            sl.results.open(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match="is a folder"):
        sl.results.open(path)
    path.rmdir()
    with pytest.raises(InputError, match="There is no file"):
        sl.results.open(path)
    os.mkfifo(path)
    with pytest.raises(InputError, match="a pipe or device, not a file"):
        sl.results.open(path)


def altered(path: Path, **changes: Any) -> Path:
    """A stored result whose one variable says something else."""
    content = json.loads(path.read_text())
    content["variables"]["v"] |= changes
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [1 << 40]}, {"shape": [3]}, {"shape": [-2]}, {"shape": [True, 2]}, {"shape": "2"}, {"shape": [2, 1]},
        {"shape": [0], "data": []}, {"data": [1.0]}, {"data": [1.0, [2.0]]}, {"data": [1.0, {}]}, {"data": [1.0, "x"]},
        {"data": [1.0, None]}, {"data": [1.0, True]}, {"data": 3}, {"data": None}, {"dtype": "<U900000000000"},
        {"dtype": "complex128"}, {"dtype": "datetime64[ns]"}, {"dtype": "V8"}, {"dtype": "int8", "data": [1, 300]},
        {"dtype": "int64", "data": [1, 2.5]}, {"dtype": "int64", "data": [1, 10**30]},
        {"dtype": "uint8", "data": [1, -1]},
        {"dtype": "<U1", "data": ["ab", "c"]}, {"dtype": ["f8"]}, {"dims": ["b", "a"]}, {"dims": [["a"]]}, {"attrs": 3},
    ],
)  # fmt: skip
def test_json_that_declares_what_it_does_not_hold(changes: dict[str, Any], tmp_path: Path) -> None:
    path = altered(sl.results.save(PLAIN, tmp_path / "x.json"), **changes)
    with pytest.raises((InputError, CapacityError), match="x.json"):
        sl.results.open(path)


def test_json_beyond_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sl.results.save(PLAIN, tmp_path / "x.json")
    monkeypatch.setattr(foreign.psutil, "virtual_memory", lambda: type("memory", (), {"available": 1000}))
    with pytest.raises(CapacityError, match="x.json' may take .* only 1 kB are free"):
        sl.results.open(path)


def test_what_json_can_take(tmp_path: Path) -> None:
    """The estimate of memory is above what Python takes for the worst text of that length."""
    import tracemalloc

    text = json.dumps([1.5] * 20_000, separators=(",", ":"))
    worst = "[" + ",".join(["{}"] * 20_000) + "]"
    for content in (text, worst):
        tracemalloc.start()
        kept = json.loads(content)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(kept) == 20_000
        assert used < foreign.PARSED * len(content)


def test_a_file_that_says_it_is_something_else(tmp_path: Path) -> None:
    for kind in ("DataArray", "Sketch"):
        dataset = xr.Dataset({"a": 1.0, "b": 2.0}, attrs={"squashlens_kind": kind})
        dataset.to_netcdf(tmp_path / "x.nc", engine="h5netcdf")
        with pytest.raises(InputError, match=f"claims to be a '{kind}' with 2 variables"):
            sl.results.open(tmp_path / "x.nc")
