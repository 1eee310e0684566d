"""Numbers are stored under the name of the weights that gave them, also when a checkpoint changes."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import squashlens as sl
from squashlens.errors import InputError

FIRST, SECOND = "1" * 40, "2" * 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(
        shutil.copytree(sl.example_models.folder("tiny-gemma"), tmp_path / "model")
    )


def train(folder: Path) -> None:
    """Change the weights of a folder, in a file of the same size."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    name = next(name for name in weights if name.endswith("q_proj.weight"))
    save_file(weights | {name: weights[name] * 2}, file, {"format": "pt"})


def study(model: object, store: Path) -> sl.Study:
    arguments = {"model": str(model)}
    each = {"prompt": ["11 =", "1101 ="]}
    return sl.Study(
        {"measurement": "path_bound", "arguments": arguments, "each": each}, store=store
    )


def stored(store: Path) -> list[Path]:
    return [*store.rglob("*.nc")]


def bounds(one: sl.Study) -> Any:
    one.run()
    return one.combine()["path_bound"]


def test_weights_that_change_before_the_run_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    old = study(folder, tmp_path / "store")
    train(folder)
    with pytest.raises(InputError):
        old.run()
    assert not stored(tmp_path / "store")
    assert bounds(study(folder, tmp_path / "store")).size


def test_a_model_of_the_hub_stays_at_its_commit(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "hub" / "models--someone--tiny"
    for commit in (FIRST, SECOND):
        shutil.copytree(folder, home / "snapshots" / commit)
        train(folder)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(FIRST)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    old = study("someone/tiny", tmp_path / "store")
    assert {cell.model.revision for cell in old.cells if cell.model} == {FIRST}
    (home / "refs" / "main").write_text(SECOND)
    found = bounds(old)
    assert sl.results.provenance(old.result(old.cells[0].key))["revision"] == FIRST
    new = study("someone/tiny", tmp_path / "store")
    assert new.status()["left"].tolist() == [2]
    assert not np.array_equal(bounds(new), found)
