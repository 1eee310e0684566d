"""Files of results: nothing in them changes unseen, and nothing is written that would come back as something else."""

import contextlib
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError
from squashlens.records.results import attributes
from squashlens.saving.checksum import ATTRIBUTE, checksum
from squashlens.saving.seals import MEASURED

CHANGED = "was changed or damaged since it was saved"


def result() -> xr.Dataset:
    attrs = attributes("value", "1") | {"provenance": '{"model": "m", "ids": [1, 2]}'}
    return xr.Dataset(
        {
            "v": (("prompt", "position"), np.array([[1.0, np.nan], [-0.0, np.inf]]), attrs),
            "n": ("position", np.array([3, 4], dtype=np.int32), {"count": 2, "share": 0.5}),
            "yes": ("position", np.array([True, False])),
        },
        coords={"token": ("position", np.array(["a", "bc"], dtype=object)), "prompt": [0, 1], "name": "scalar"},
        attrs=attrs,
    )


@pytest.mark.parametrize("ending", ["nc", "json"])
def test_what_is_kept_comes_back_without_its_checksum(ending: str, tmp_path: Path) -> None:
    path = sl.results.save(result(), tmp_path / f"x.{ending}")
    back = sl.results.open(path)
    xr.testing.assert_identical(back, result())
    for name, one in result().variables.items():  # text is text, however NumPy keeps it
        assert back[name].dtype == one.dtype or one.dtype == object
    again = sl.results.open(sl.results.save(back, tmp_path / f"y.{ending}"))
    xr.testing.assert_identical(again, result())
    changed = back.assign(n=back["n"] / 3)  # other numbers than the format of the old file has
    xr.testing.assert_identical(sl.results.open(sl.results.save(changed, path)), changed)
    nameless = xr.DataArray([1.0], dims="a")
    assert sl.results.open(sl.results.save(nameless, path)).name is None
    xr.testing.assert_identical(sl.results.open(sl.results.save(nameless, path)), nameless)


def test_every_bit_of_a_json_file(tmp_path: Path) -> None:
    """One bit of the file changed: refused, or the same result, as where a space became a line break."""
    path = sl.results.save(result(), tmp_path / "x.json")
    whole, seen = path.read_bytes(), 0
    for place in range(len(whole)):
        broken = bytearray(whole)
        broken[place] ^= 1 << (place % 7)
        path.write_bytes(broken)
        try:
            back = sl.results.open(path)
        except InputError as refusal:
            seen += CHANGED in str(refusal)
            continue
        xr.testing.assert_identical(back, result())
    assert seen > len(whole) / 4


def test_bits_of_a_netcdf_file(tmp_path: Path) -> None:
    path = sl.results.save(result(), tmp_path / "x.nc")
    whole = path.read_bytes()
    numbers = [whole.index(np.array(each).tobytes()) for each in ([1.0, np.nan], np.array([3, 4], dtype=np.int32))]
    texts = [whole.index(each) for each in (b'"model": "m"', b"a\x00" if b"a\x00" in whole else b"bc", b"scalar")]
    for place in [*range(numbers[0], numbers[0] + 8), *range(numbers[1], numbers[1] + 8), *texts]:
        for bit in (0, 3, 6):
            broken = bytearray(whole)
            broken[place] ^= 1 << bit
            path.write_bytes(broken)
            with pytest.raises(InputError, match=f"{CHANGED}|is not a result|is damaged"):
                sl.results.open(path)


def edit_value(file: h5py.File) -> None:
    file["v"][0, 0] = np.nextafter(1.0, 2.0)  # pyright: ignore[reportIndexIssue]


def edit_text(file: h5py.File) -> None:
    file["token"][0] = "b"  # pyright: ignore[reportIndexIssue]


def edit_provenance(file: h5py.File) -> None:
    file.attrs["provenance"] = "{}"


def edit_units(file: h5py.File) -> None:
    file["v"].attrs["units"] = "2"


def rename(file: h5py.File) -> None:
    file.move("n", "m")


def add(file: h5py.File) -> None:
    file["more"] = 1.0


def lose_checksum(file: h5py.File) -> None:
    del file.attrs[ATTRIBUTE]


def lose_kind(file: h5py.File) -> None:
    del file.attrs["squashlens_kind"]


@pytest.mark.parametrize(
    "edit", [edit_value, edit_text, edit_provenance, edit_units, rename, add, lose_checksum, lose_kind]
)
def test_edits_are_seen(edit: Any, tmp_path: Path) -> None:
    path = sl.results.save(result(), tmp_path / "x.nc")
    with h5py.File(path, "r+") as file:
        edit(file)
    with pytest.raises(InputError, match=CHANGED):
        sl.results.open(path)


def test_an_edit_that_is_meant_is_saved_again(tmp_path: Path) -> None:
    path = sl.results.save(result(), tmp_path / "x.nc")
    with xr.open_dataset(path, engine="h5netcdf") as found:
        edited = found.load().assign(v=found["v"] * 2)
    back = sl.results.open(sl.results.save(edited, path))
    assert float(back["v"][0, 0]) == 2
    assert not {ATTRIBUTE, "squashlens_kind"} & back.attrs.keys()


def test_a_format_left_over_from_another_file_does_not_matter(tmp_path: Path) -> None:
    """A file of float32 leaves its dtype in `encoding`, with which float64 numbers would be rounded."""
    made = result()
    made["v"] = made["v"] + 1 / 3
    made["v"].encoding = {"dtype": "float32"}
    back = sl.results.open(sl.results.save(made, tmp_path / "x.nc"))
    np.testing.assert_array_equal(back["v"].values, made["v"].values)


def test_the_checksum_does_not_depend_on_how_numpy_keeps_it() -> None:
    found = result()
    other = found.assign(v=found["v"].astype(">f8"), n=found["n"].astype(">i4")).assign_coords(
        token=("position", np.array(["a", "bc"]))
    )
    other["v"].attrs, other["n"].attrs = found["v"].attrs, {"share": np.float64(0.5), "count": np.int64(2)}
    other["v"].values[0, 1] = -np.nan
    assert checksum(other) == checksum(found)
    assert checksum(found.assign(v=found["v"].astype("f4"))) != checksum(found)
    assert checksum(found.transpose("position", ...)) != checksum(found)
    assert checksum(found.reset_coords("name")) != checksum(found)


def with_coordinate(values: Any) -> xr.DataArray:
    return xr.DataArray([1.0, 2.0], dims="a", coords={"a": values})


@pytest.mark.parametrize("ending", ["nc", "json"])
@pytest.mark.parametrize(
    "made",
    [
        lambda: with_coordinate(np.array([1 + 2j, 3])),
        lambda: with_coordinate(pd.date_range("2026-01-01", periods=2)),
        lambda: with_coordinate(pd.to_timedelta([1, 2], unit="s")),
        lambda: with_coordinate(pd.MultiIndex.from_tuples([(1, "a"), (2, "b")], names=["p", "q"])),
        lambda: with_coordinate(np.array(["a", 3], dtype=object)),
        lambda: with_coordinate([1.0, 2.0]).assign_attrs(scale_factor=2.0),
        lambda: with_coordinate([1.0, 2.0]).assign_attrs({"flag": None}),
        lambda: with_coordinate([1.0, 2.0]).assign_attrs({"flag": {"deep": 1}}),
        lambda: xr.Dataset({3: ("a", [1.0])}),
        lambda: xr.DataArray(["a\x00b", "c"], dims="a"),
    ],
)
def test_what_would_come_back_otherwise_is_refused_or_comes_back(ending: str, made: Any, tmp_path: Path) -> None:
    """Before an earlier file is replaced."""
    path = sl.results.save(result(), tmp_path / f"x.{ending}")
    before = path.read_bytes()
    given = made()
    with contextlib.suppress(InputError):
        sl.results.save(given, path)
        back = sl.results.open(path)
        xr.testing.assert_identical(back, given)
        assert all(one.dtype == back.coords[name].dtype for name, one in given.coords.items())
        return
    with pytest.raises(InputError, match=f"cannot be saved as .{ending}"):
        sl.results.save(given, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("ending", "values"),
    [
        ("nc", np.array([1 + 2j, 3])), ("json", np.array([1 + 2j, 3])),
        ("nc", np.array(["2026-01-01", "2026-01-02"], dtype="datetime64[ns]")),
        ("json", np.array(["2026-01-01", "2026-01-02"], dtype="datetime64[ns]")),
    ],
)  # fmt: skip
def test_dates_and_complex_numbers_are_refused(ending: str, values: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"cannot be saved as .{ending}"):
        sl.results.save(with_coordinate(values), tmp_path / f"x.{ending}")
    assert not list(tmp_path.iterdir())


def test_files_by_other_means_are_read_as_they_are(tmp_path: Path) -> None:
    plain = result()
    plain.to_netcdf(tmp_path / "x.nc", engine="h5netcdf")
    xr.testing.assert_identical(sl.results.open(tmp_path / "x.nc"), plain)
    content = json.loads(sl.results.save(plain, tmp_path / "x.json").read_text())
    for name in {ATTRIBUTE, "squashlens_kind", MEASURED} & content["attrs"].keys():
        del content["attrs"][name]
    (tmp_path / "x.json").write_text(json.dumps(content))
    xr.testing.assert_identical(sl.results.open(tmp_path / "x.json"), plain)
