"""Files of results: nothing in them changes unseen, and nothing is written that would come back as something else."""

import contextlib
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError
from squashlens.records.labels import attributes
from squashlens.records.provenance import with_provenance

REFUSED = r"was changed or damaged|was not written by `squashlens\.results\.save`"
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
    facts = {
        "call": {"function": "f"},
        "none": None,
        "nested": {"deep": [1, "é", True]},
    }
    return with_provenance(made, facts)


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    path = sl.results.save(result(), tmp_path / "x.nc")
    back = sl.results.open(path)
    xr.testing.assert_identical(back, result())
    # Bit for bit, −0 and NaN too.
    assert back["v"].values.tobytes() == result()["v"].values.tobytes()
    assert sl.results.provenance(back) == sl.results.provenance(result())
    for name, one in result().variables.items():  # text is text, however NumPy keeps it
        assert back[name].dtype == one.dtype or one.dtype == object
    again = sl.results.open(sl.results.save(back, tmp_path / "y.nc"))
    xr.testing.assert_identical(again, result())
    # Other numbers than the format of the old file has.
    changed = back.assign(n=back["n"] / 3)
    for given in (changed, xr.DataArray([1.0], dims="a"), result()["v"][0, 0]):
        sl.results.save(given, path)
        xr.testing.assert_identical(sl.results.open(path), given)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    """A bit changed at 100 random places, a part missing, or more than the file."""
    path = sl.results.save(result(), tmp_path / "x.nc")
    whole = path.read_bytes()
    places = random.Random(0).sample(range(len(whole)), 100)
    damaged = [
        whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        for place in places
    ]
    cut = [whole[:place] for place in places]
    others = [b"", b"\x00", whole[:-1], whole + b" ", whole[1:], whole[::-1], b"{}"]
    for content in (*damaged, *cut, *others):
        path.write_bytes(content)
        with pytest.raises(InputError, match=REFUSED):
            sl.results.open(path)


def test_what_is_not_there_or_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"one of \.nc"):
        sl.results.save(result(), tmp_path / "x.txt")
    path = tmp_path / "x.nc"
    with pytest.raises(InputError, match="There is no file"):
        sl.results.open(path)
    os.mkfifo(path)
    with pytest.raises(InputError, match="There is no file"):
        sl.results.open(path)


def test_xarray_opens_it_and_other_files_are_left_to_xarray(tmp_path: Path) -> None:
    path = sl.results.save(result(), tmp_path / "x.nc")
    with xr.open_dataset(path) as opened:
        assert sl.results.provenance(opened) == sl.results.provenance(result())
        xr.testing.assert_equal(opened, result())
    result().to_netcdf(tmp_path / "y.nc")
    with pytest.raises(InputError, match=r"xr\.open_dataset reads other"):
        sl.results.open(tmp_path / "y.nc")


def test_a_format_left_over_from_another_file_does_not_matter(tmp_path: Path) -> None:
    """A file of float32 leaves its dtype in `encoding`, with which float64 numbers would be rounded."""
    made = result()
    made["v"] = made["v"] + 1 / 3
    made["v"].encoding = {"dtype": "float32"}
    back = sl.results.open(sl.results.save(made, tmp_path / "x.nc"))
    np.testing.assert_array_equal(back["v"].values, made["v"].values)


def with_coordinate(values: Any) -> xr.DataArray:
    return xr.DataArray([1.0, 2.0], dims="a", coords={"a": values})


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
    made: Any, tmp_path: Path
) -> None:
    """Before an earlier file is replaced."""
    path = sl.results.save(result(), tmp_path / "x.nc")
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
    with pytest.raises(InputError, match="cannot be saved as netCDF"):
        sl.results.save(given, path)
    assert path.read_bytes() == before


def test_what_alignment_leaves_without_text_is_empty_in_the_file(
    tmp_path: Path,
) -> None:
    long = result()[["v"]].assign_coords(position=range(10))
    short = long.isel(position=slice(0, -1))
    longer = xr.align(long, short, join="outer")[1]
    assert isinstance(longer["token"].values[-1], float)
    back = sl.results.open(sl.results.save(longer, tmp_path / "x.nc"))
    assert back["token"].values.tolist() == [*short["token"].values.tolist(), ""]
    xr.testing.assert_identical(back.drop_vars("token"), longer.drop_vars("token"))
    assert isinstance(longer["token"].values[-1], float), (
        "the caller's result stays as it was"
    )
