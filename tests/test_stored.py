"""Files of results: nothing in them changes unseen, and nothing is written that would come back as something else."""

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

HARD = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, np.nan, np.inf, -np.inf, -0.0, 0.0]
TOKENS = ["a\nb", "\u2028", "⟨<0xF0>⟩", "<b>x</b>", " ", "1", "1", "é🙂", ""]


def result() -> xr.Dataset:
    """Numbers that are hard to write down, and tokens that are repeated, empty or need escapes."""
    values = np.array([HARD, HARD[::-1]])
    whole = np.arange(9, dtype=np.int32)
    made = xr.Dataset(
        {
            "v": (("prompt", "position"), values, attributes("value", "1")),
            "n": ("position", whole, {"count": 2, "share": 0.5}),
            "yes": ("position", whole % 2 == 0),
        },
        coords={
            "token": ("position", np.array(TOKENS, dtype=object)),
            "prompt": [0, 1],
            "name": "scalar",
        },
        attrs=attributes("value", "1"),
    )
    nested = {"deep": [1, "é", True]}
    facts = {"call": {"function": "f"}, "none": None, "nested": nested}
    return with_provenance(made, facts)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a result."""
    return sl.results.save(result(), tmp_path / "x.nc")


def test_what_is_kept_comes_back(path: Path) -> None:
    again = sl.results.open(path)
    xr.testing.assert_identical(again, result())
    # Bit for bit, −0 and NaN too.
    assert again["v"].values.tobytes() == result()["v"].values.tobytes()
    assert sl.results.provenance(again) == sl.results.provenance(result())
    for name in ("v", "n", "yes", "prompt"):
        assert again[name].dtype == result()[name].dtype
    with xr.open_dataset(path) as opened:
        xr.testing.assert_equal(opened, result())


def test_a_file_is_replaced_by_other_results(path: Path) -> None:
    """Also by numbers of another format than the old file's."""
    opened = sl.results.open(path)
    others = (
        opened,
        opened.assign(n=opened["n"] / 3),
        xr.DataArray([1.0], dims="a"),
        result()["v"][0, 0],
    )
    for other in others:
        sl.results.save(other, path)
        xr.testing.assert_identical(sl.results.open(path), other)


def test_damaged_files_are_refused(path: Path) -> None:
    """A bit changed at 100 random places, a part missing, or more than the file."""
    whole = path.read_bytes()
    damaged = [b"", b"\x00", whole + b" ", whole[1:], whole[::-1], b"{}"]
    for place in random.Random(0).sample(range(len(whole)), 100):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        damaged += [changed, whole[:place]]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(InputError):
            sl.results.open(path)


def test_what_is_no_file_of_a_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        sl.results.save(result(), tmp_path / "x.txt")
    os.mkfifo(tmp_path / "pipe.nc")
    result().to_netcdf(tmp_path / "by_xarray.nc")
    for name in ("missing.nc", "pipe.nc", "by_xarray.nc"):
        with pytest.raises(InputError):
            sl.results.open(tmp_path / name)


def test_a_format_left_over_from_another_file_does_not_matter(tmp_path: Path) -> None:
    """A file of float32 leaves its dtype in `encoding`, with which float64 numbers would be rounded."""
    made = result()
    made["v"] = made["v"] + 1 / 3
    made["v"].encoding = {"dtype": "float32"}
    again = sl.results.open(sl.results.save(made, tmp_path / "x.nc"))
    np.testing.assert_array_equal(again["v"], made["v"])


def labelled(labels: Any = (1.0, 2.0), **attrs: Any) -> xr.DataArray:
    coords = {"a": labels if isinstance(labels, pd.Index) else np.array(labels)}
    return xr.DataArray([1.0, 2.0], coords, "a", attrs=attrs)


PAIRS = pd.MultiIndex.from_tuples([(1, "a"), (2, "b")], names=["p", "q"])
STRANGE = {
    "complex numbers": labelled([1 + 2j, 3]),
    "dates": labelled(pd.date_range("2026-01-01", periods=2)),
    "times": labelled(pd.to_timedelta([1, 2], unit="s")),
    "pairs": xr.DataArray([1.0, 2.0], {"a": PAIRS}, "a"),
    "objects": labelled(np.array(["a", 3], dtype=object)),
    "an attribute with a meaning": labelled(scale_factor=2.0),
    "None": labelled(flag=None),
    "a dict": labelled(flag={"deep": 1}),
    "a number as a name": xr.Dataset({3: ("a", [1.0])}),
    "a null character": xr.DataArray(["a\x00b", "c"], dims="a"),
}


@pytest.mark.parametrize("case", STRANGE)
def test_what_would_come_back_otherwise_is_refused_or_comes_back(
    case: str, path: Path
) -> None:
    """Before an earlier file is replaced."""
    given = STRANGE[case]
    before = path.read_bytes()
    try:
        sl.results.save(given, path)
    except InputError:
        assert path.read_bytes() == before
        return
    again = sl.results.open(path)
    xr.testing.assert_identical(again, given)
    assert again["a"].dtype == given["a"].dtype


def test_what_alignment_leaves_without_text_is_empty_in_the_file(
    tmp_path: Path,
) -> None:
    long = result()[["v"]].assign_coords(position=range(9))
    _, padded = xr.align(long, long.isel(position=slice(0, -1)), join="outer")
    again = sl.results.open(sl.results.save(padded, tmp_path / "x.nc"))
    assert again["token"].values.tolist() == [*TOKENS[:-1], ""]
    xr.testing.assert_identical(again.drop_vars("token"), padded.drop_vars("token"))
    # The caller's result stays as it was.
    assert isinstance(padded["token"].values[-1], float)
