"""Running a study in this process: failures, files, interruptions, and what `combine` makes of it."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError, OutputError
from squashlens.figures.drawing.page import Page
from squashlens.records.joining import without_padding
from tests.study.fakes import square

FAKE = "tests.study.fakes:"


def study(
    store: Path, function: str, each: dict[str, Any], **arguments: Any
) -> sl.Study:
    return sl.Study(
        {"measurement": FAKE + function, "arguments": arguments, "each": each},
        store=store,
    )


def test_a_study_runs_once(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    one = study(tmp_path / "store", "noted", {"x": [1, 2, 3]}, notes=str(notes))
    assert one.status()["left"].tolist() == [3]
    assert one.run()["done"].tolist() == [3]
    assert one.run()["done"].tolist() == [3]
    more = study(tmp_path / "store", "noted", {"x": [1, 2, 3, 4]}, notes=str(notes))
    assert more.run()["done"].tolist() == [4]
    assert Counter(notes.read_text().split()) == {"1": 1, "2": 1, "3": 1, "4": 1}


def test_a_cell_that_fails_stops_nothing_and_can_be_retried(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    one = study(tmp_path / "store", "fixed", {"x": [1, 2]}, allowed=str(allowed))
    both = sl.Study(
        [
            asdict(one.grids[0]),
            {"measurement": FAKE + "broken", "each": {"x": [2, 3, 4]}},
        ],
        store=tmp_path / "store",
    )
    table = both.run().set_index("grid")
    assert table["failed"].to_dict() == {FAKE + "fixed": 2, FAKE + "broken": 1}
    assert table["done"].to_dict() == {FAKE + "fixed": 0, FAKE + "broken": 2}
    reasons = both.failures()
    assert reasons["reason"].tolist() == 2 * ["RuntimeError: not yet"] + [
        "RuntimeError: no measurement of 3"
    ]
    assert reasons["x"].tolist() == [1, 2, 3]
    allowed.touch()
    assert both.run()["failed"].sum() == 3  # a failure is not tried again by itself
    assert both.run(retry=True)["failed"].tolist() == [0, 1]
    assert both.status()["done"].tolist() == [2, 2]


def test_a_result_that_is_no_xarray_object_is_said(tmp_path: Path) -> None:
    one = study(tmp_path, "plain", {"x": [1]})
    one.run()
    assert one.failures()["reason"].item() == (
        "The measurement returned 1. Return an xarray DataArray or Dataset."
    )


def test_cells_that_are_missing_are_left_out_and_damaged_ones_are_said(
    tmp_path: Path,
) -> None:
    one = study(tmp_path / "store", "square", {"x": [1, 2, 3]})
    with pytest.raises(InputError, match="No cell"):
        one.combine()
    one.run()
    files = [one.store.find(cell.key) for cell in one.cells]
    assert files[0] is not None
    whole = files[0].read_bytes()
    files[0].unlink()
    assert one.status()[["done", "left"]].to_numpy().tolist() == [[2, 1]]
    both = one.combine()
    assert both["area"].isnull().all("place").values.tolist() == [True, False, False]
    assert (both["cell"] == "").values.tolist() == [True, False, False]
    one.run()
    assert files[0].read_bytes() == whole
    assert one.result(one.cells[0].key).identical(square(1))
    files[0].write_bytes(whole[:-20] + b"9" + whole[-19:])
    with pytest.raises(InputError, match="changed or damaged.* Delete it, and run"):
        one.combine()


def test_a_large_result_comes_back(tmp_path: Path) -> None:
    large = square(2).isel(place=[0] * 200_000).drop_vars("place")
    one = sl.Study({"measurement": lambda: large, "name": "large"}, store=tmp_path)
    one.run()
    assert one.result(one.cells[0].key).identical(large)


def test_ctrl_c_ends_in_one_line_and_running_again_goes_on(tmp_path: Path) -> None:
    one = study(tmp_path, "interrupted", {"x": [1, 2, 3]})
    with pytest.raises(KeyboardInterrupt) as stop:
        one.run()
    done = one.status()["done"].item()
    assert str(stop.value) == f"{done} of 3 done; run again to go on"
    assert isinstance(stop.value, SystemExit), (
        "a script ends with this line, and without a traceback"
    )


def test_a_folder_that_cannot_be_used_is_refused_before_the_work(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises((OutputError, InputError), match="file"):
        study(tmp_path / "file", "square", {"x": [1]}).run()
    with pytest.raises(
        InputError, match="is a URL. Give a folder that all workers see"
    ):
        study("s3://bucket/study", "square", {"x": [1]})  # pyright: ignore[reportArgumentType]


def test_a_folder_of_an_earlier_version_is_refused_and_left_as_it_is(
    tmp_path: Path,
) -> None:
    old = tmp_path / "cells" / "ab" / "ab12.cell"
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    with pytest.raises(
        InputError, match="earlier version of squashlens.* Give another folder"
    ):
        study(tmp_path, "square", {"x": [1]})
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [old]


def test_what_a_killed_process_left_half_written_is_removed_later(
    tmp_path: Path,
) -> None:
    import os

    one = study(tmp_path, "square", {"x": [1]})
    one.run()
    path = one.store.find(one.cells[0].key)
    assert path is not None
    for name, age in (("new", 0), ("old", 7200)):
        left = path.with_name(f".squashlens-{name}.partial")
        left.touch()
        os.utime(left, (left.stat().st_mtime - age,) * 2)
    assert one.run()["done"].item() == 1
    assert [file.name for file in path.parent.glob(".*")] == [".squashlens-new.partial"]


@pytest.mark.slow
def test_a_model_is_loaded_once_and_its_results_have_their_provenance(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from squashlens.model.loading import load as module

    loaded: list[str] = []

    def once(name: str, **_: Any) -> Any:
        loaded.append(name)
        return tiny

    monkeypatch.setattr(module, "load", once)
    grids = [
        {
            "measurement": "path_bound",
            "arguments": {"model": "tiny-gemma"},
            "each": {
                "prompt": {"short": "11 =", "long": "1101 ="},
                "hooks": {"none": [], "window": [{"sliding_window": {"window": 2}}]},
            },
        },
        {
            "measurement": "collapse",
            "arguments": {
                "model": "tiny-gemma",
                "sequence": {"repeated": {"token": "1", "n": 4}},
                "round_to": "bf16",
            },
        },
    ]
    made = sl.Study(grids, store=tmp_path)
    assert made.run()["done"].tolist() == [4, 1]
    assert loaded == ["tiny-gemma"]
    both = made.combine("path_bound")
    assert both["path_bound"].dims == ("prompt", "hooks", "position")
    assert both["token"].sel(prompt="short").values.tolist() == [
        "<bos>",
        "1",
        "1",
        "=",
        "",
        "",
    ]
    here = sl.path_bound(tiny, "1101 =")
    assert made.result(both["cell"].sel(prompt="long", hooks="none").item()).identical(
        here
    )
    assert np.array_equal(both["path_bound"].sel(prompt="long", hooks="none"), here)
    with sl.applied(tiny, sl.hooks.sliding_window(2)):
        window = sl.path_bound(tiny, "11 =")
    assert np.array_equal(
        without_padding(both["path_bound"].sel(prompt="short", hooks="window")), window
    )
    assert_drawn_with_provenance(both, made)
    import torch

    sequence = sl.prompts.repeated(tiny, "1", 4)
    rounded = sl.collapse(tiny, sequence, round_to=torch.bfloat16)
    assert np.array_equal(made.combine("collapse")["distance"], rounded["distance"])


def assert_drawn_with_provenance(both: xr.Dataset, made: sl.Study) -> None:
    """Each cell has the provenance of its result, its own tokens, and its panel; a cell that is missing has none."""
    assert both["n_tokens"].to_series().to_dict() == {"short": 4, "long": 6}
    one = both.sel(prompt="short", hooks="window")
    whole = sl.results.provenance(made.result(one["cell"].item()))  # the part is padded
    assert sl.results.provenance(one) == whole
    assert sl.results.provenance(both)["model"] == "tiny-gemma"
    assert sl.results.table(both)["hooks"].nunique() == 2
    page: Any = sl.figures.of(both)
    assert [len(line.x) for line in page.data] == [4, 6, 4, 6]
    assert [block[0].head for block in Page.of(page).blocks] == [
        f"hooks {name}, prompt {prompt}"
        for name in ("none", "window")
        for prompt in ("short", "long")
    ]
    line: Any = sl.figures.of(one)
    assert line.layout.title.text == page.layout.title.text
    assert len(line.data[0].x) == 4


@pytest.mark.slow
def test_a_cell_that_is_missing_has_no_provenance(tmp_path: Path) -> None:
    grid = {
        "measurement": "path_bound",
        "arguments": {"model": "tiny-gemma"},
        "each": {"prompt": {"short": "11 =", "long": "1101 ="}, "to_layer": [2, 99]},
    }
    made = sl.Study(grid, store=tmp_path)
    assert made.run()["failed"].tolist() == [2]
    found = made.combine()
    axis = next(
        name for name in map(str, found["path_bound"].dims) if name == "to_layer"
    )
    assert (
        sl.results.provenance(found.isel({axis: 0, "prompt": 0}))["call"]["prompt"]
        == "11 ="
    )
    for use in (sl.results.provenance, sl.figures.of):
        with pytest.raises(InputError, match="this cell of a study is not done"):
            use(found.isel({axis: 1, "prompt": 0}))
    assert len([line for line in sl.figures.of(found).data if len(line.x)]) == 2  # pyright: ignore


def test_combine_has_a_dimension_for_each_varied_argument(tmp_path: Path) -> None:
    one = study(tmp_path, "square", {"x": [1, 2, 3], "y": [0, 10]})
    one.run()
    both = one.combine()
    assert both["area"].dims == ("x", "y", "place")
    expected = both["x"] ** 2 + both["y"] + xr.DataArray([0, 1, 2], dims="place")
    assert (both["area"] == expected).all()
    assert both["area"].attrs == {"units": "1", "long_name": "x² + y"}
    assert one.result(both["cell"].sel(x=2, y=10).item())["area"].values.tolist() == [
        14,
        15,
        16,
    ]
    with pytest.raises(InputError, match="no grid"):
        one.combine("other")


def test_units_that_differ_are_dropped_and_forms_that_differ_are_refused(
    tmp_path: Path,
) -> None:
    one = study(tmp_path / "units", "square", {"x": [1], "units": ["m", "s", "m or s"]})
    one.run()
    assert one.combine()["area"].attrs == {"long_name": "x² + y"}
    other = study(tmp_path / "forms", "labelled", {"x": [1, 2, 3]})
    other.run()
    with pytest.raises(InputError, match="different variables or dimensions"):
        other.combine()


def test_arguments_of_run(tmp_path: Path) -> None:
    one = study(tmp_path, "square", {"x": [1]})
    for wrong in (
        {"workers": 0},
        {"engine": "ray"},
    ):
        with pytest.raises(InputError):
            one.run(**wrong)  # pyright: ignore[reportArgumentType]


def test_a_model_is_loaded_once_and_its_origin_is_told_once(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from squashlens.bars import shown
    from squashlens.model.loading import load, sources

    loaded, told, identity = list[str](), list[bool](), sources.identity
    monkeypatch.setattr(
        load, "load", lambda *_, dtype, **__: loaded.append(dtype) or tiny
    )
    monkeypatch.setattr(
        sources, "identity", lambda *given: told.append(shown()) or identity(*given)
    )
    monkeypatch.setenv("SQUASHLENS_PROGRESS", "1")
    grid = {
        "measurement": FAKE + "letters",
        "arguments": {"model": "tiny-gemma"},
        "each": {"dtype": ["float32", "float64"], "prompt": ["1", "11", "111"]},
    }
    one = sl.Study(grid, store=tmp_path)
    monkeypatch.setattr("squashlens.study.study.random.randrange", lambda _: 0)
    assert one.run()["done"].item() == 6
    assert loaded == ["float32", "float64"]
    assert told.count(True) == 1
    one.run()
    assert len(loaded) == 2
