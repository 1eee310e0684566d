"""Running a study in this process and in several: failures, memory, interruptions, and what `combine` makes of it."""

import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError
from squashlens.figures.drawing.page_blocks import Page
from squashlens.records.joining import restored
from squashlens.study import engines
from squashlens.study.store import name_of
from squashlens.study.work import Worker

FAKE = "tests.study.fakes:"


def study(
    store: Path, function: str, each: dict[str, Any], **arguments: Any
) -> sl.Study:
    return sl.Study(
        {"measurement": FAKE + function, "arguments": arguments, "each": each},
        store=store,
    )


def files(store: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (store / "cells").rglob("*.cell")}


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
        f"{FAKE}plain returned 1. Return an xarray DataArray or Dataset."
    )


def test_cells_that_are_missing_or_damaged_are_left_out_and_computed_again(
    tmp_path: Path,
) -> None:
    notes = tmp_path / "notes"
    one = study(tmp_path / "store", "noted", {"x": [1, 2, 3]}, notes=str(notes))
    with pytest.raises(InputError, match="No cell"):
        one.combine()
    one.run()
    whole = files(tmp_path / "store")
    one.store.forget(one.cells[0].key)
    one.store.write(name_of(one.cells[1].key), b"half a cell")
    assert one.status()[["done", "left"]].to_numpy().tolist() == [[1, 2]]
    both = one.combine()
    assert both["area"].isnull().all("place").values.tolist() == [True, True, False]
    assert (both["cell"] == "").values.tolist() == [True, True, False]
    one.run()
    assert files(tmp_path / "store") == whole
    assert Counter(notes.read_text().split()) == {"1": 2, "2": 2, "3": 1}


def test_a_long_cell_goes_on_from_its_journal(tmp_path: Path) -> None:
    one = study(
        tmp_path / "store", "journaled", {"x": [3]}, notes=str(tmp_path / "notes")
    )
    with pytest.raises(KeyboardInterrupt):
        one.run()
    assert one.status()["left"].item() == 1
    assert one.run()["done"].item() == 1
    assert (tmp_path / "notes").read_text().split() == ["0", "1", "2"]
    assert list((tmp_path / "store" / "journals").iterdir()) == []


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
        restored(both["path_bound"].sel(prompt="short", hooks="window")), window
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
    assert sl.results.provenance(one) == whole | {"values": "derived"}
    assert sl.results.provenance(both)["values"] == "measured"
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
    assert "derived" not in Page.of(line).notes
    assert "derived values" in str(
        sl.figures.of(2 * one["path_bound"]).layout.title.subtitle.text
    )  # pyright: ignore


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


def test_units_that_differ_are_named_together_and_forms_that_differ_are_refused(
    tmp_path: Path,
) -> None:
    one = study(tmp_path / "units", "square", {"x": [1], "units": ["m", "s", "m or s"]})
    one.run()
    assert one.combine()["area"].attrs["units"] == "m or s or m or s"
    other = study(tmp_path / "forms", "labelled", {"x": [1, 2, 3]})
    other.run()
    with pytest.raises(InputError, match="different variables or dimensions"):
        other.combine()


@pytest.mark.slow
def test_several_processes_share_the_work_and_write_the_same_files(
    tmp_path: Path,
) -> None:
    """One of the cells crashes its worker, which is replaced; no other cell is computed twice."""
    notes = tmp_path / "notes"
    shared = study(tmp_path / "two", "deadly", {"x": list(range(12))}, notes=str(notes))
    table = shared.run(workers=2)
    assert table[["done", "failed"]].to_numpy().tolist() == [[11, 1]]
    assert "5 workers died while they computed it" in shared.failures()["reason"].item()
    counts = Counter(notes.read_text().split())
    assert counts.pop("1") == 5
    assert set(counts.values()) == {1}
    study(tmp_path / "one", "deadly", {"x": [0, *range(2, 12)]}, notes=str(notes)).run()
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_a_worker_of_another_version_is_refused(tmp_path: Path) -> None:
    from squashlens.study.work import digest, work

    one = study(tmp_path, "square", {"x": [1]})
    task = {
        "grids": [asdict(one.grids[0])],
        "store": str(tmp_path),
        "cells": digest(one.cells),
        "workers": 1,
        "threads": 1,
        "device": None,
    }
    work(task, 0)
    assert one.status()["done"].tolist() == [1]
    with pytest.raises(InputError, match="other cells"):
        work(task | {"cells": "other"}, 0)


def test_arguments_of_run(tmp_path: Path) -> None:
    one = study(tmp_path, "square", {"x": [1]})
    for wrong in (
        {"workers": 0},
        {"engine": "mpi"},
        {"threads": -1},
        {"resources": {"num_gpus": 1}},
    ):
        with pytest.raises(InputError):
            one.run(**wrong)  # pyright: ignore[reportArgumentType]


def test_a_ray_that_does_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: object) -> None:
        raise ConnectionError("no cluster at 10.0.0.1:6379")

    monkeypatch.setitem(
        sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init)
    )  # pyright: ignore
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(
        InputError,
        match=r"Ray does not start: no cluster at .* Check that RAY_ADDRESS=10\.0\.0\.1",
    ):
        study(tmp_path, "square", {"x": [1]}).run(engine="ray")


def test_a_worker_loads_each_model_once(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squashlens.model.loading.load.load", lambda *_, **__: tiny)
    each = {"dtype": ["float32", "float64"], "prompt": ["1", "11", "111"]}
    one = sl.Study(
        {
            "measurement": "path_bound",
            "arguments": {"model": "tiny-gemma"},
            "each": each,
        },
        store=tmp_path,
    )
    worker = Worker(one.store)
    looks = iter(range(30))
    with one.store.claimed(one.cells[-1].key):  # another worker has it in hand
        worker.run(
            [*one.cells[:3], one.cells[-1]], stop=lambda: next(looks, None) is None
        )
        assert (worker.loads, one.status()["done"].item()) == (1, 3)
    worker.run([*one.cells[1:], one.cells[0]])
    assert (worker.loads, one.status()["done"].item()) == (2, 6)


def test_workers_take_the_gpus_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    monkeypatch.setattr(
        engines.subprocess,
        "Popen",
        lambda *_, env, **__: begun.append(env["CUDA_VISIBLE_DEVICES"]) or MagicMock(),
    )
    local = engines.Local(None)
    for worker in range(3):
        local.start({"threads": 1}, worker)
    assert begun == ["5", "7", "5"]
    assert (
        engines.Local("cuda:1").gpus == []
    )  # all of them, by the names that the user gave


def test_an_actor_gets_a_gpu_or_what_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [
        {"Alive": True, "Resources": {"GPU": 2.0}},
        {"Alive": True, "Resources": {}},
    ]
    ray = MagicMock(**{"nodes.return_value": nodes})
    monkeypatch.setitem(sys.modules, "ray", ray)
    for options in ({}, {"num_gpus": 0.5}):
        engines.Ray(options, 1).start({}, 0)
    assert [
        call.kwargs["num_gpus"]
        for call in ray.remote.return_value.options.call_args_list
    ] == [1, 0.5]
