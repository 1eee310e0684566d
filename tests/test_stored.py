"""Files of results: nothing in them changes unseen, and nothing is written that would come back as something else."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError
from squashlens.records.results import attributes, sealed
from squashlens.saving.stored import digests

CHANGED = "was changed or damaged since it was saved"
NOT_OURS = r"was not written by `squashlens\.results\.save`"


HARD = [
    0.1,
    1 / 3,
    5e-324,
    1.7976931348623157e308,
    np.nan,
    np.inf,
    -np.inf,
    -0.0,
    0.0,
    1e16 + 2,
]
TOKENS = ["a\nb", "\u2028", "⟨<0xF0>⟩", "<b>x</b>", " ", "1", "1", "é🙂", '"\\', ""]


def result() -> xr.Dataset:
    """Numbers that are hard to write down, and tokens that are repeated, empty or need escapes."""
    made = xr.Dataset(
        {
            "v": (
                ("prompt", "position"),
                np.array([HARD, HARD[::-1]]),
                attributes("value", "1"),
            ),
            "n": (
                "position",
                np.arange(10, dtype=np.int32),
                {"count": 2, "share": 0.5},
            ),
            "yes": ("position", np.arange(10) % 2 == 0),
        },
        coords={
            "token": ("position", np.array(TOKENS, dtype=object)),
            "prompt": [0, 1],
            "name": "scalar",
        },
        attrs=attributes("value", "1"),
    )
    return sealed(
        made, {"model": "m", "none": None, "nested": {"deep": [1, "é", True]}}
    )


@pytest.mark.parametrize("ending", ["nc", "json"])
def test_what_is_kept_comes_back(ending: str, tmp_path: Path) -> None:
    path = sl.results.save(result(), tmp_path / f"x.{ending}")
    back = sl.results.open(path)
    xr.testing.assert_identical(back, result())
    assert (
        back["v"].values.tobytes() == result()["v"].values.tobytes()
    )  # bit for bit, −0 and NaN too
    assert sl.results.provenance(back)["values"] == "measured"
    for name, one in result().variables.items():  # text is text, however NumPy keeps it
        assert back[name].dtype == one.dtype or one.dtype == object
    again = sl.results.open(sl.results.save(back, tmp_path / f"y.{ending}"))
    xr.testing.assert_identical(again, result())
    changed = back.assign(
        n=back["n"] / 3
    )  # other numbers than the format of the old file has
    xr.testing.assert_identical(
        sl.results.open(sl.results.save(changed, path)), changed
    )
    nameless = xr.DataArray([1.0], dims="a")
    xr.testing.assert_identical(
        sl.results.open(sl.results.save(nameless, path)), nameless
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("ending", ["nc", "json"])
def test_every_bit_of_a_file_counts(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bit of the file changed, or a part missing: refused before anything parses it.

    But the first half of a netCDF file, of which HDF5 itself says that it is not whole.
    """
    path = sl.results.save(result(), tmp_path / f"x.{ending}")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=NOT_OURS if ending == "nc" else CHANGED):
        sl.results.open(path)
    for name in ("open_dataset", "load_dataset"):
        monkeypatch.setattr(
            xr, name, lambda *_, **__: pytest.fail("a damaged file was parsed")
        )
    monkeypatch.setattr(
        json, "loads", lambda *_: pytest.fail("a damaged file was parsed")
    )
    for place in range(0, len(whole), 1 if ending == "json" else 37):
        broken = bytearray(whole)
        broken[place] ^= 1 << (place % 7)
        path.write_bytes(broken)
        with pytest.raises(InputError, match=f"{CHANGED}|{NOT_OURS}"):
            sl.results.open(path)
    for damage in (
        b"",
        b"\x00",
        whole[:-1],
        whole + b" ",
        whole[1:],
        whole[::-1],
        b"{}",
    ):
        path.write_bytes(damage)
        with pytest.raises(InputError, match=f"{CHANGED}|{NOT_OURS}"):
            sl.results.open(path)


def test_what_is_not_there_or_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"one of \.nc, \.json"):
        sl.results.save(result(), tmp_path / "x.txt")
    path = tmp_path / "x.nc"
    with pytest.raises(InputError, match="There is no file"):
        sl.results.open(path)
    os.mkfifo(path)
    with pytest.raises(InputError, match="There is no file"):
        sl.results.open(path)


def test_xarray_opens_the_netcdf_file_with_its_provenance(tmp_path: Path) -> None:
    path = sl.results.save(result(), tmp_path / "x.nc")
    with xr.open_dataset(path, engine="h5netcdf") as opened:
        assert sl.results.provenance(opened)["values"] == "measured"
        edited = opened.load().assign(v=opened["v"] * 2)
    assert sl.results.provenance(edited)["values"] == "derived"
    result().to_netcdf(tmp_path / "y.nc", engine="h5netcdf")
    with pytest.raises(
        InputError, match=f"{NOT_OURS}.*Open the files of other programs with xarray"
    ):
        sl.results.open(tmp_path / "y.nc")
    assert "squashlens_kind" not in sl.results.open(sl.results.save(edited, path)).attrs


def test_a_format_left_over_from_another_file_does_not_matter(tmp_path: Path) -> None:
    """A file of float32 leaves its dtype in `encoding`, with which float64 numbers would be rounded."""
    made = result()
    made["v"] = made["v"] + 1 / 3
    made["v"].encoding = {"dtype": "float32"}
    back = sl.results.open(sl.results.save(made, tmp_path / "x.nc"))
    np.testing.assert_array_equal(back["v"].values, made["v"].values)


def test_digests_do_not_depend_on_how_numpy_keeps_it() -> None:
    found = result()
    other = found.assign(
        v=found["v"].astype(">f8"), n=found["n"].astype(">i4")
    ).assign_coords(token=("position", np.array(TOKENS)))
    other["v"].attrs, other["n"].attrs = (
        found["v"].attrs,
        {"share": np.float64(0.5), "count": np.int64(2)},
    )
    other["v"].values[0, 4] = -np.nan
    assert digests(other) == digests(found)
    for changed in (
        found.assign(v=found["v"].astype("f4")),
        found.transpose("position", ...),
        found.assign(v=-found["v"]),
        found.assign_coords(token=("position", TOKENS[::-1])),
        found.assign(n=found["n"].assign_attrs(count=3)),
    ):
        assert digests(changed) != digests(found)


def with_coordinate(values: Any) -> xr.DataArray:
    return xr.DataArray([1.0, 2.0], dims="a", coords={"a": values})


@pytest.mark.few(7)
@pytest.mark.parametrize("ending", ["nc", "json"])
@pytest.mark.parametrize(
    "made",
    [
        lambda: with_coordinate(np.array([1 + 2j, 3])),
        lambda: with_coordinate(pd.date_range("2026-01-01", periods=2)),
        lambda: with_coordinate(pd.to_timedelta([1, 2], unit="s")),
        lambda: with_coordinate(
            pd.MultiIndex.from_tuples([(1, "a"), (2, "b")], names=["p", "q"])
        ),
        lambda: with_coordinate(np.array(["a", 3], dtype=object)),
        lambda: with_coordinate([1.0, 2.0]).assign_attrs(scale_factor=2.0),
        lambda: with_coordinate([1.0, 2.0]).assign_attrs({"flag": None}),
        lambda: with_coordinate([1.0, 2.0]).assign_attrs({"flag": {"deep": 1}}),
        lambda: xr.Dataset({3: ("a", [1.0])}),
        lambda: xr.DataArray(["a\x00b", "c"], dims="a"),
    ],
)
def test_what_would_come_back_otherwise_is_refused_or_comes_back(
    ending: str, made: Any, tmp_path: Path
) -> None:
    """Before an earlier file is replaced."""
    path = sl.results.save(result(), tmp_path / f"x.{ending}")
    before = path.read_bytes()
    given = made()
    with contextlib.suppress(InputError):
        sl.results.save(given, path)
        back = sl.results.open(path)
        xr.testing.assert_identical(back, given)
        assert all(
            one.dtype == back.coords[name].dtype for name, one in given.coords.items()
        )
        return
    with pytest.raises(InputError, match=f"cannot be saved as .{ending}"):
        sl.results.save(given, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("ending", ["nc", "json"])
def test_what_alignment_leaves_without_text_is_empty_in_the_file(
    ending: str, tmp_path: Path
) -> None:
    long = result()[["v"]].assign_coords(position=range(10))
    short = long.isel(position=slice(0, -1))
    longer = xr.align(long, short, join="outer")[1]
    assert isinstance(longer["token"].values[-1], float)
    back = sl.results.open(sl.results.save(longer, tmp_path / f"x.{ending}"))
    assert back["token"].values.tolist() == [*short["token"].values.tolist(), ""]
    xr.testing.assert_identical(back.drop_vars("token"), longer.drop_vars("token"))
    assert isinstance(longer["token"].values[-1], float), (
        "the caller's result stays as it was"
    )
