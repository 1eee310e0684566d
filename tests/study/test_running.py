"""Running a study in this process: failures, files, interruptions, and what `combine` makes of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError, OutputError
from squashlens.records.joining import without_padding
from tests.study.fakes import square, study_of

BOUND = {
    "measurement": "path_bound",
    "arguments": {"model": "tiny-gemma"},
    "each": {
        "prompt": {"short": "11 =", "long": "1101 ="},
        "hooks": {"none": [], "window": [{"sliding_window": {"window": 2}}]},
    },
}


def test_a_study_runs_once(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    study = study_of("noted", tmp_path / "store", {"x": [1, 2, 3]}, notes=str(notes))
    assert study.status()["left"].item() == 3
    for _ in range(2):
        assert study.run()["done"].item() == 3
    more = study_of("noted", tmp_path / "store", {"x": [1, 2, 3, 4]}, notes=str(notes))
    assert more.run()["done"].item() == 4
    assert sorted(notes.read_text().split()) == ["1", "2", "3", "4"]


def test_a_cell_that_fails_stops_nothing_and_can_be_retried(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    grids = [
        {
            "measurement": "tests.study.fakes:fixed",
            "arguments": {"allowed": str(allowed)},
            "each": {"x": [1, 2]},
        },
        {"measurement": "tests.study.fakes:broken", "each": {"x": [2, 3, 4]}},
        {"measurement": "tests.study.fakes:plain", "each": {"x": [5]}},
    ]
    study = sl.Study(grids, store=tmp_path / "store")
    table = study.run()
    assert table["failed"].tolist() == [2, 1, 1]
    assert table["done"].tolist() == [0, 2, 0]
    failures = study.failures()
    assert failures["x"].tolist() == [1, 2, 3, 5]
    assert failures["reason"][2] == "RuntimeError: no measurement of 3"
    allowed.touch()
    assert study.run()["failed"].sum() == 4  # a failure is not tried again by itself
    assert study.run(retry=True)["failed"].tolist() == [0, 1, 1]


def test_cells_that_are_missing_or_damaged(tmp_path: Path) -> None:
    study = study_of("square", tmp_path / "store", {"x": [1, 2, 3]})
    with pytest.raises(InputError):
        study.combine()
    study.run()
    first = study.cells[0].key
    file = study.store.path("results", first, ".nc")
    whole = file.read_bytes()
    file.unlink()
    assert study.status()[["done", "left"]].to_numpy().tolist() == [[2, 1]]
    combined = study.combine()
    missing = combined["area"].isnull().all("place")
    assert missing.values.tolist() == [True, False, False]
    assert (combined["cell"] == "").values.tolist() == [True, False, False]
    study.run()
    assert study.result(first).identical(square(1))
    file.write_bytes(whole[:-20] + b"9" + whole[-19:])
    with pytest.raises(InputError):
        study.combine()


def test_ctrl_c_ends_in_one_line_and_running_again_goes_on(tmp_path: Path) -> None:
    study = study_of("interrupted", tmp_path, {"x": [1, 2, 3]})
    with pytest.raises(KeyboardInterrupt) as stop:
        study.run()
    done = study.status()["done"].item()
    assert str(stop.value).startswith(f"{done} of 3 computed")
    # So a script ends with this line, and without a traceback.
    assert isinstance(stop.value, SystemExit)


def test_a_folder_that_cannot_be_used_is_refused_before_the_work(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        study_of("square", tmp_path / "file", {"x": [1]}).run()
    with pytest.raises(InputError):
        study_of("square", "s3://bucket/study", {"x": [1]})


@pytest.mark.slow
def test_results_are_those_of_calls_and_have_their_provenance(
    tmp_path: Path, tiny: Any
) -> None:
    repeated = {"repeated": {"token": "1", "n": 4}}
    arguments = {"model": "tiny-gemma", "sequence": repeated, "norm": "l2"}
    collapse = {"measurement": "collapse", "arguments": arguments}
    study = sl.Study([BOUND, collapse], store=tmp_path)
    assert study.run(device="cpu")["done"].tolist() == [4, 1]
    combined = study.combine("path_bound")
    bounds = combined["path_bound"]
    assert bounds.dims == ("prompt", "hooks", "position")
    assert combined["n_tokens"].values.tolist() == [4, 6]
    tokens = combined["token"].sel(prompt="short").values.tolist()
    assert tokens == ["<bos>", "1", "1", "=", "", ""]
    long = sl.path_bound(tiny, "1101 =")
    key = combined["cell"].sel(prompt="long", hooks="none").item()
    assert study.result(key).identical(long)
    np.testing.assert_array_equal(bounds.sel(prompt="long", hooks="none"), long)
    with sl.applied(tiny, sl.hooks.sliding_window(2)):
        short = sl.path_bound(tiny, "11 =")
    under_window = combined.sel(prompt="short", hooks="window")
    np.testing.assert_array_equal(without_padding(under_window["path_bound"]), short)
    assert sl.results.provenance(under_window) == sl.results.provenance(short)
    assert sl.results.table(combined)["hooks"].nunique() == 2
    sequence = sl.prompts.repeated(tiny, "1", 4)
    alone = sl.collapse(tiny, sequence, norm="l2")
    distance = study.combine("collapse")["distance"]
    np.testing.assert_array_equal(distance, alone["distance"])
    # Each cell has a panel with its own tokens.
    figure: Any = sl.figures.of(bounds)
    assert sorted(len(trace.x) for trace in figure.data) == [4, 4, 6, 6]
    figure = sl.figures.of(under_window["path_bound"])
    assert [len(trace.x) for trace in figure.data] == [4]


@pytest.mark.slow
def test_a_cell_that_is_missing_has_no_provenance(tmp_path: Path) -> None:
    each = {"prompt": {"short": "11 =", "long": "1101 ="}, "to_layer": [2, 99]}
    study = study_of(sl.path_bound, tmp_path, each, model="tiny-gemma")
    assert study.run()["failed"].item() == 2
    combined = study.combine()["path_bound"]
    done = combined.isel(to_layer=0, prompt=0)
    assert sl.results.provenance(done)["call"]["prompt"] == "11 ="
    for use in (sl.results.provenance, sl.figures.of):
        with pytest.raises(InputError):
            use(combined.isel(to_layer=1, prompt=0))
    for drawn in (combined, study.combine()):
        figure: Any = sl.figures.of(drawn)
        assert len([trace for trace in figure.data if len(trace.x)]) == 2


def test_combine_has_a_dimension_for_each_varied_argument(tmp_path: Path) -> None:
    study = study_of("square", tmp_path, {"x": [1, 2, 3], "y": [0, 10]})
    study.run()
    combined = study.combine()
    assert combined["area"].dims == ("x", "y", "place")
    place = xr.DataArray([0, 1, 2], dims="place")
    assert (combined["area"] == combined["x"] ** 2 + combined["y"] + place).all()
    assert combined["area"].attrs == {"units": "1", "long_name": "x² + y"}
    key = combined["cell"].sel(x=2, y=10).item()
    assert study.result(key).identical(square(2, 10))
    with pytest.raises(InputError):
        study.combine("other")


def test_units_that_differ_are_dropped_and_forms_that_differ_are_refused(
    tmp_path: Path,
) -> None:
    study = study_of("square", tmp_path / "units", {"x": [1], "units": ["m", "s"]})
    study.run()
    assert study.combine()["area"].attrs == {"long_name": "x² + y"}
    other = study_of("labelled", tmp_path / "forms", {"x": [1, 2, 3]})
    other.run()
    with pytest.raises(InputError):
        other.combine()


def test_a_model_is_loaded_once(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from squashlens.model.loading import load

    dtypes = []

    def note(*_: Any, dtype: str, **__: Any) -> Any:
        dtypes.append(dtype)
        return tiny

    monkeypatch.setattr(load, "load", note)
    each = {"dtype": ["float32", "float64"], "prompt": ["1", "11", "111", "1111"]}
    study = study_of("letters", tmp_path, each, model="tiny-gemma")
    for _ in range(2):
        assert study.run()["done"].item() == 8
    # A run begins at any cell, and so perhaps in the middle of a model's.
    assert len(dtypes) <= 3
    assert set(dtypes) == {"float32", "float64"}
