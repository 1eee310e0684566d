"""An atlas: models of mixed depths beside random models, replaced checkpoints, and data sets that only grow."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.torch import load_file, save_file

import squashlens as sl
from squashlens.errors import InputError
from squashlens.study import atlas as module

ONES = {"repeated": {"token": "1", "n": 8}}
SHORT = [
    {"measurement": "collapse", "arguments": {"scale": "relative"}, "each": {"sequence": {"ones": ONES}}},
    {"measurement": "profile", "arguments": {"prompt": "110 =", "method": "none", "n_random_models": 0}},
    {"measurement": "audit", "arguments": {"estimates": ["knockout KL"], "seed": 0}, "each": {"prompt": ["zebra"]}},
]


def shallow(folder: Path) -> Path:
    """The bundled model with its first two blocks."""
    shutil.copytree(sl.zoo.folder("tiny-gemma"), folder)
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = 2
    config |= {"layer_types": config["layer_types"][:2]} if "layer_types" in config else {}
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    kept = {name: one for name, one in weights.items() if ".layers." not in name or name.split(".")[2] in ("0", "1")}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a manifest of two models, and their atlas."""
    folder = tmp_path_factory.mktemp("atlas")
    models = {"deep": {"model": "tiny-gemma", "licence": "MIT"},
              "shallow": {"model": str(shallow(folder / "model")), "licence": "none"}}  # fmt: skip
    (folder / "models.yaml").write_text("# mine\n" + yaml.safe_dump({"models": models}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BATTERY", SHORT)
        assert sl.Atlas(folder / "atlas", folder / "models.yaml").run()["reason"].str.contains("run `pin`").all()
        assert sl.Atlas(folder / "atlas", folder / "models.yaml").pin()["pin"].str.startswith("files ").all()
        assert (folder / "models.yaml").read_text().startswith("# mine\n")
        found = sl.Atlas(folder / "atlas", folder / "models.yaml").run()
        assert found[["label", "cells", "done", "failed"]].to_numpy().tolist() == [
            ["deep", 6, 4, 2], ["shallow", 6, 4, 2]]  # fmt: skip
        yield folder


def test_every_model_has_its_own_last_layer(made: Path) -> None:
    table = sl.Atlas(made / "atlas").table()
    for label, name, depth in (("deep", "tiny-gemma", 6), ("shallow", str(made / "model"), 2)):
        model = sl.load(name)
        result = sl.collapse(model, sl.prompts.repeated(model, "1", 8), scale="relative")
        rows = table[(table["model"] == label) & (table["quantity"] == "distance at the last layer")]
        own = rows[rows["weights"] == "trained"]
        assert own["x"].tolist() == list(range(1, 9))
        np.testing.assert_array_equal(own["value"], result["distance"].sel(layer=depth))
        random = rows[rows["weights"] == "untrained"]["value"].to_numpy()
        assert len(random) == 8
        assert not np.allclose(random, own["value"])
    assert set(table["quantity"]) == {
        "distance at the last layer", "distance of y", "total variation of the next token", "influence by distance",
        "exponent of influence by distance", "attention to the first token"}  # fmt: skip


def test_a_model_is_compared_and_drawn_beside_the_others(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    atlas = sl.Atlas(made / "atlas")
    table, found = atlas.table(), atlas.compare("deep").set_index(["quantity", "condition"])
    last = table[(table["quantity"] == "distance of y") & (table["x"] == 8)].set_index(["model", "weights"])["value"]
    row = found.loc[("distance of y", "ones")]
    assert row[["value", "untrained", "others_low"]].tolist() == [
        last["deep", "trained"], last["deep", "untrained"], last["shallow", "trained"]]  # fmt: skip
    assert row["share_lower"] == float(last["shallow", "trained"] < last["deep", "trained"])
    figure = atlas.figure("deep")
    assert len({trace.line.color for trace in figure.data}) == 2  # pyright: ignore[reportAttributeAccessIssue]
    drawn = {trace.name for trace in figure.data}  # pyright: ignore[reportAttributeAccessIssue]
    assert drawn == {f"{label}, {weights}" for label in ("deep", "shallow") for weights in ("trained", "untrained")}
    atlas.page(made / "atlas.html", "deep")
    assert "tiny-gemma" not in capsys.readouterr().err
    assert "share_lower" in (made / "atlas.html").read_text(encoding="utf-8")
    with pytest.raises(InputError, match="It has: deep, shallow"):
        atlas.compare("other")


def test_a_replaced_checkpoint_is_refused_and_what_is_there_stays(made: Path, tmp_path: Path) -> None:
    before = {file: file.read_bytes() for file in (made / "atlas" / "data").iterdir()}
    config = made / "model" / "config.json"
    text = config.read_text()
    config.write_text(text + "\n")
    try:
        found = sl.Atlas(made / "atlas", made / "models.yaml").run().set_index("label")
    finally:
        config.write_text(text)
    assert "was replaced" in found["reason"]["shallow"]
    assert found["added"].tolist() == [0, 0]
    assert {file: file.read_bytes() for file in (made / "atlas" / "data").iterdir()} == before


def test_data_sets_are_added_and_never_changed(made: Path, tmp_path: Path) -> None:
    public = str(tmp_path / "public")
    atlas, other = sl.Atlas(made / "atlas"), sl.Atlas(tmp_path / "other")
    assert len(atlas.publish(public)) == 2
    assert atlas.publish(public) == []
    assert other.pull(public) == sorted(file.relative_to(made / "atlas").as_posix()
                                        for file in (made / "atlas" / "data").iterdir())  # fmt: skip
    assert other.table().equals(atlas.table())
    card = (tmp_path / "other" / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nconfigs:\n")
    assert "| deep" in card
    next((tmp_path / "other" / "data").iterdir()).write_bytes(b"other")
    with pytest.raises(InputError, match="has other content"):
        other.publish(public)
    with pytest.raises(InputError, match="no data set"):
        other.pull(str(tmp_path / "empty"))


def test_the_manifest_of_public_models_can_be_read(tmp_path: Path) -> None:
    entries = sl.Atlas(tmp_path, Path(__file__).parents[2] / "analyses" / "models.yaml").entries
    assert len({entry.model for entry in entries.values()}) == 38
    assert all(entry.expects and entry.pin is None for entry in entries.values())


@pytest.mark.parametrize(("text", "words"), [
    ("models: []", "no mapping `models`"), ("models: {a: {model: x}}", "licence"),
    ("models: {a: {model: x, licence: MIT, dtpye: bf16}}", "dtpye"),
])  # fmt: skip
def test_a_wrong_manifest_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(text)
    with pytest.raises(InputError, match=words):
        sl.Atlas(tmp_path, tmp_path / "models.yaml")
