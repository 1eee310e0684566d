"""Rooms on devices follow from the sizes of models, none is promised twice, and no model is loaded in vain."""

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import squashlens as sl
from squashlens.engine.loading.load import weight_bytes
from squashlens.errors import CapacityError
from squashlens.study import engines
from squashlens.study.placement import Hardware, Rooms, homes
from squashlens.study.work import Worker
from tests.study.test_running import files

GB = 10**9
TWO = Hardware("cuda", {"0": 80 * GB, "1": 80 * GB})


@pytest.mark.parametrize(
    ("weights", "need", "share"),
    [(1, 5, 0.0625), (60, 64, 0.8), (72, 74, 0.925), (80, 80, 1), (100, 104, 2), (158, 158.5, 2)],
)
def test_a_model_needs_its_weights_and_the_batches_of_the_engine(weights: int, need: float, share: float) -> None:
    """Batches take 4 GB on a GPU, but at most a quarter of what the weights leave free."""
    assert TWO.need(weights * GB) == need * GB
    assert TWO.share(int(need * GB)) == share


def test_small_models_share_a_device_and_large_ones_take_several() -> None:
    rooms = Rooms(TWO)
    small = [rooms.take(30 * GB) for _ in range(5)]
    assert small == [{"0": 30 * GB}, {"0": 30 * GB}, {"1": 30 * GB}, {"1": 30 * GB}, None]
    assert rooms.take(104 * GB) is None
    for taken in small[:4]:
        rooms.give_back(taken or {})
    assert rooms.take(104 * GB) == {"0": 80 * GB, "1": 80 * GB}
    assert rooms.take(1) is None


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=4),
    st.lists(st.tuples(st.booleans(), st.integers(0, 120)), max_size=40),
)
def test_no_device_is_overcommitted(sizes: list[int], steps: list[tuple[bool, int]]) -> None:
    rooms, held = Rooms(Hardware("cuda", {str(place): size for place, size in enumerate(sizes)})), []
    for back, number in steps:
        if back and held:
            rooms.give_back(held.pop(number % len(held)))
        elif (taken := rooms.take(number)) is not None:
            assert sum(taken.values()) >= number
            held.append(taken)
        for name, size in rooms.sizes.items():
            assert 0 <= rooms.free[name] == size - sum(taken.get(name, 0) for taken in held)


def test_workers_are_started_for_the_largest_models_first_and_then_where_most_is_left() -> None:
    needs = [10, 30, 20, 0]
    assert homes(needs, [5, 5, 5, 0], []) == [1, 2, 0]
    assert homes(needs, [8, 3, 9, 1], [0, 0, 1, 2]) == [3, 2, 0, 1]
    assert homes(needs, [2, 1, 0, 0], [0, 0, 1]) == []


def grids(**more: Any) -> list[dict[str, Any]]:
    each = {"dtype": ["float32", "float64"], "prompt": ["1", "11", "111"]}
    arguments = {"model": "tiny-gemma", **more}
    return [{"measurement": "tests.study.on_devices:largest_logit", "arguments": arguments, "each": each}]


def test_a_worker_loads_each_model_once_and_none_whose_cells_others_have_in_hand(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squashlens.engine.loading.load.load", lambda *_, **__: tiny)
    study = sl.Study(grids(), store=tmp_path)
    mixed = [*study.cells[1:], study.cells[0]]
    *_, last = study.cells
    looks = iter(range(30))
    first = Worker(study.store)
    with study.store.place.claim(last.key):  # another worker has this model, and the last of its cells in hand
        first.run([*study.cells[:3], last], stop=lambda: next(looks, None) is None)
        assert (first.loads, study.status()["done"].item()) == (1, 3)
    first.run(mixed)
    assert (first.loads, study.status()["done"].item()) == (2, 6)
    again = Worker(sl.Study(grids(), store=tmp_path / "again").store)
    again.run(mixed)
    assert again.loads == 2
    assert files(tmp_path) == files(tmp_path / "again")


def test_a_model_that_fits_nowhere_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "hardware_here", lambda _: Hardware("cpu", {"cpu": 10_000}))
    with pytest.raises(CapacityError, match=r"'tiny-gemma' in float32 needs .* and a worker has 10 kB on cpu\. Leave"):
        sl.Study(grids(), store=tmp_path).run(workers=2)


def test_actors_ask_for_the_part_of_a_gpu_that_their_model_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster with two GPUs in one of its nodes."""
    nodes = [{"Alive": True, "Resources": {"GPU": 2.0}}, {"Alive": True, "Resources": {}}]
    ray = MagicMock(**{"nodes.return_value": nodes, "get.return_value": 80 * GB})
    monkeypatch.setitem(sys.modules, "ray", ray)
    engine = engines.Ray({}, 1, None)
    for need in (5, 104, 0):
        engine.start({}, 0, need * GB)
    mine = engines.Ray({"num_gpus": 0.5}, 1, None)
    mine.start({}, 0, 5 * GB)
    assert mine.hardware is None
    asked = [call.kwargs["num_gpus"] for call in ray.remote.return_value.options.call_args_list]
    assert asked == [1 / 10_000, 0.0625, 2, 1, 0.5]


@pytest.mark.slow
def test_the_same_bytes_wherever_workers_are_placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two pretended devices, of which one holds both models and the other the smaller, and in this process."""
    notes, size = tmp_path / "notes", weight_bytes("tiny-gemma", "float32", None)
    notes.mkdir()
    here, there = (sl.Study(grids(notes=str(notes)), store=tmp_path / name) for name in ("here", "there"))
    here.run()
    for file in notes.iterdir():
        file.unlink()
    # Batches take a quarter of what is free of five sizes: one model needs two sizes, and two models 2.75 sizes.
    hardware = Hardware("lazy", {"lazy:0": 5 * size, "lazy:1": 2 * size})
    monkeypatch.setattr(engines, "hardware_here", lambda _: hardware)
    assert there.run(workers=4)["done"].item() == 6
    assert files(tmp_path / "here") == files(tmp_path / "there")
    used = [json.loads(file.read_text()) for file in notes.iterdir()]
    assert {device for dtype, device in used if dtype == "float64"} == {"lazy:0"}
    assert {device for _, device in used} == {"lazy:0", "lazy:1"}
