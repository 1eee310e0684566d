"""Scans of prompts: what is read from each kind of file, what is stored, and the rows."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import squashlens as sl
from squashlens.errors import InputError
from squashlens.study.scans import over
from tests.study.fakes import study_of

PROMPTS = [f"prompt {number}" for number in range(25)]
MODEL = {"model": "tiny-gemma"}


@pytest.fixture(autouse=True)
def without_loading(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from squashlens.model.loading import load as module

    monkeypatch.setattr(module, "load", lambda *_, **__: tiny)


def written(folder: Path, prompts: list[Any]) -> dict[str, Any]:
    """A file with these prompts."""
    lines = [json.dumps({"prompt": prompt, "n": 1}) for prompt in prompts]
    file = folder / "prompts.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return {"file": str(file)}


def scan(store: Path, over: dict[str, Any], name: str = "letters", **grid: Any) -> Any:
    """A study that scans the prompts of a file with a measurement of `fakes`."""
    measurement = f"tests.study.fakes:{name}"
    grid = {"measurement": measurement, "arguments": MODEL, "over": over} | grid
    return sl.Study(grid, store=store)


def counts(table: pd.DataFrame) -> list[int]:
    """Of the only grid: the cells that are done, failed and left, and the rows that have failed."""
    (row,) = table[["done", "failed", "left", "failed_rows"]].to_numpy().tolist()
    return row


# Lines that are no prompt, or one that cannot be measured.
ODD = (
    "no JSON",
    '{"prompt": "cut',
    "",
    "[1.5]",
    '{"n": 1}',
    '{"prompt": null}',
    '{"prompt": [1, 2.5]}',
    '{"prompt": ""}',
    '{"prompt": []}',
    '{"prompt": "no!"}',
    r'{"prompt": "\ud83d!"}',
)


def test_a_row_that_fails_has_its_reason_and_the_others_are_measured(
    tmp_path: Path,
) -> None:
    """Half of a surrogate pair is measured, and escaped."""
    good = [*PROMPTS, "half \ud83d"]
    lines = [*ODD, *(json.dumps({"prompt": text}) for text in good)]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(lines) + "\n")
    study = scan(tmp_path / "store", {"file": str(file), "shard": 10})
    assert counts(study.run()) == [4, 0, 0, len(ODD)]
    failures = study.failures()
    table = study.rows()
    assert failures["row"].tolist() == list(range(len(ODD)))
    assert table["row"].tolist() == list(range(len(lines)))
    assert table["error"].dropna().tolist() == failures["reason"].tolist()
    measured = table[table["error"].isna()]
    assert measured["prompt"].tolist() == [*PROMPTS, r"half \ud83d"]
    for text, codes in zip(good, measured["code"], strict=True):
        assert list(codes) == list(map(ord, text))
    with pytest.raises(InputError):
        study.combine()


def test_a_row_does_not_depend_on_the_rows_beside_it(tiny: Any, tmp_path: Path) -> None:
    """By default a token is replaced by other tokens of its own prompt, not of those that have the same length."""
    prompts = [[2, 9, 5, 7], [2, 10, 8, 6]]
    grid = {"measurement": "substitution_effect", "arguments": MODEL}
    study = sl.Study(grid | {"over": written(tmp_path, prompts)}, store=tmp_path / "s")
    study.run()
    for prompt, effect in zip(prompts, study.rows()["output_change"], strict=True):
        alone = sl.substitution_effect(tiny, prompt)["output_change"]
        np.testing.assert_allclose(effect, alone, rtol=1e-5)


def test_a_scan_needs_no_model(tmp_path: Path) -> None:
    prompts = written(tmp_path, ["1", "", "333"])
    study = scan(tmp_path / "store", prompts, "size", arguments={})
    assert counts(study.run()) == [1, 0, 0, 1]
    assert study.rows()["size"].dropna().tolist() == [1, 3]
    with pytest.raises(InputError):
        scan(tmp_path, prompts, "square", arguments={})


def test_a_shard_with_a_failed_row_is_measured_again(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    notes = tmp_path / "notes"
    prompts = written(tmp_path, ["a", "b late", "c", "d"]) | {"shard": 2}
    arguments = MODEL | {"allowed": str(allowed), "notes": str(notes)}
    study = scan(tmp_path / "store", prompts, "permitted", arguments=arguments)
    assert counts(study.run()) == [2, 0, 0, 1]
    assert counts(study.run()) == [2, 0, 0, 1]  # not by itself
    allowed.touch()
    assert counts(study.run(retry=True)) == [2, 0, 0, 0]
    noted = notes.read_text().splitlines()
    assert sorted(noted[:4]) == ["a", "b late", "c", "d"]
    assert noted[4:] == ["a", "b late"]


def test_a_scan_is_resumed(tmp_path: Path) -> None:
    prompts = written(tmp_path, PROMPTS)
    study = scan(tmp_path / "store", prompts | {"shard": 10})
    study.run()
    keys = [cell.key for cell in study.cells]
    files = [study.store.path("results", key, ".parquet") for key in keys]
    before = [file.read_bytes() for file in files]
    files[1].unlink()
    assert counts(study.status()) == [2, 0, 1, 0]
    assert study.rows()["row"].tolist() == [*range(10), *range(20, 25)]
    study.run()
    assert [file.read_bytes() for file in files] == before
    # Shards of another size have other files, but for the last five rows.
    other = scan(tmp_path / "store", prompts | {"shard": 5})
    assert counts(other.status()) == [1, 0, 4, 0]


def test_the_column_is_part_of_what_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a", "other": "bb"}\n')
    for column, size in (("prompt", 1), ("other", 2)):
        prompts = {"file": str(file), "column": column}
        study = scan(tmp_path / "store", prompts, "size", arguments={})
        study.run()
        assert study.rows()["size"].tolist() == [size]


def test_real_measurements_of_prompts_and_of_the_sequences_that_they_grow_into(
    tmp_path: Path, tiny: Any
) -> None:
    prompts = written(tmp_path, ["110", "1101", [2, 4, 4, 76]])
    grid = {"arguments": MODEL, "over": prompts}
    grids = [grid | {"measurement": name} for name in ("path_bound", "collapse")]
    study = sl.Study(grids, store=tmp_path / "store")
    study.run()
    table = study.rows("path_bound")
    assert table["error"].isna().all()
    assert list(table["path_bound"][1]) == sl.path_bound(tiny, "1101").values.tolist()
    assert list(table["token"][0]) == ["<bos>", "1", "1", "0"]
    alone = sl.collapse(tiny, sl.prompts.build(tiny, ["1", "1", "0", "1"]))
    distances = study.rows("collapse")["distance_y"][1]
    assert list(distances) == alone["distance_y"].values.tolist()


REFUSED = {
    "no file is named": {},
    "no file": {"file": "none.jsonl"},
    "an unknown option": {"file": "good.jsonl", "rows": 3},
    "an unknown ending": {"file": "prompts.xlsx"},
    "no prompts": {"file": "empty.jsonl"},
    "no JSON": {"file": "lines.jsonl"},
    "half of an array": {"file": "half.json"},
    "no rows": {"file": "good.jsonl", "shard": 0},
    "no such column": {"file": "good.jsonl", "column": "text"},
    "chat messages": {"file": "chat.jsonl", "column": "messages"},
    "latin-1": {"file": "latin.txt"},
    "no Parquet": {"file": "text.parquet"},
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_scanned_is_refused(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, PROMPTS)
    Path("prompts.jsonl").rename("good.jsonl")
    Path("prompts.xlsx").write_text("text")
    Path("half.json").write_text('[{"prompt": "a"}')
    Path("chat.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    Path("empty.jsonl").touch()
    Path("lines.jsonl").write_text("a\nb\n")
    Path("latin.txt").write_text("é", encoding="latin-1")
    Path("text.parquet").write_text("text")
    with pytest.raises(InputError):
        scan(tmp_path / "store", REFUSED[case])


def test_every_kind_of_file_has_the_same_prompts(tmp_path: Path) -> None:
    prompts = ["one, two", "è \u2028 ü", 'a "b"']
    table = pd.DataFrame({"prompt": prompts})
    table.to_csv(tmp_path / "a.csv", index=False)
    table.to_parquet(tmp_path / "a.parquet")
    table.to_json(tmp_path / "a.json", orient="records")
    table.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    shutil.copy(tmp_path / "a.json", tmp_path / "array.jsonl")
    shutil.copy(tmp_path / "a.jsonl", tmp_path / "lines.json")
    (tmp_path / "a.txt").write_bytes("\r\n".join(prompts).encode("utf-8-sig"))
    for file in tmp_path.iterdir():
        (shard,) = over(file)
        assert shard.prompts == prompts, file


def test_rows_are_those_of_a_scan(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        study_of("square", tmp_path, {"x": [1, 2]}).rows()
    with pytest.raises(InputError):
        scan(tmp_path, written(tmp_path, PROMPTS)).rows()


def test_labels_are_those_of_the_study_that_asks(tmp_path: Path) -> None:
    """A cell has the same file under every label, and under two labels at once."""
    prompts = written(tmp_path, PROMPTS[:3])
    for labels in (["none"], ["plain"], ["one", "two"]):
        each = {"dtype": dict.fromkeys(labels, "float32")}
        rows = scan(tmp_path / "store", prompts, each=each)
        rows.run()
        assert sorted(rows.rows()["dtype"]) == sorted(labels * 3)
        numbers = study_of(
            "square", tmp_path / "store", {"x": dict.fromkeys(labels, 2)}
        )
        numbers.run()
        area = numbers.combine()["area"].sel(place=10)
        assert area["x"].values.tolist() == labels
        assert (area == 4).all()
    assert len(list((tmp_path / "store" / "results").iterdir())) == 2
