"""Scans of prompts: what is read from each kind of file, what is stored, and the rows."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import squashlens as sl
from squashlens.errors import InputError
from squashlens.study.scans import over

LETTERS = "tests.study.fakes:letters"
PROMPTS = [f"prompt {number}" for number in range(25)]


@pytest.fixture(autouse=True)
def without_loading(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from squashlens.model.loading import load as module

    monkeypatch.setattr(module, "load", lambda *_, **__: tiny)


def written(folder: Path, prompts: list[Any]) -> dict[str, Any]:
    """A file with these prompts."""
    (folder / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": one, "n": 1}) + "\n" for one in prompts)
    )
    return {"file": str(folder / "prompts.jsonl")}


def prompts_of(file: str | Path) -> list[Any]:
    (shard,) = over(file)
    return shard.prompts


def scan(store: Path, over: dict[str, Any], **more: Any) -> sl.Study:
    return sl.Study(
        {
            "measurement": LETTERS,
            "arguments": {"model": "tiny-gemma"},
            "over": over,
            "name": "letters",
            **more,
        },
        store=store,
    )


@pytest.mark.parametrize("size", [10, 100])
def test_every_prompt_is_in_one_shard(size: int, tmp_path: Path) -> None:
    shards = over(**written(tmp_path, PROMPTS), shard=size)
    assert max(len(shard.prompts) for shard in shards) == min(size, 25)
    assert [prompt for shard in shards for prompt in shard.prompts] == PROMPTS
    assert [shard.start for shard in shards] == [*range(0, 25, size)]


# Lines that are no prompt, or one that cannot be measured, with what their reasons say.
ODD = {
    "no JSON": "not JSON: Expecting value",
    '{"prompt": "cut': "not JSON: Unterminated",
    "": "not JSON",
    "[" * 10**5: "not JSON: maximum recursion",
    "[1.5]": r"has \[1.5\] as its prompt",
    '{"n": 1}': "The row has no 'prompt'",
    '{"prompt": null}': "has None as its prompt",
    '{"prompt": [1, 2.5]}': r"has \[1, 2.5\] as its prompt",
    '{"prompt": ""}': "has '' as its prompt",
    '{"prompt": []}': r"has \[\] as its prompt",
    '{"prompt": "no!"}': "ValueError: an exclamation mark",
    r'{"prompt": "\ud83d!"}': "ValueError: an exclamation mark",
}


def test_a_row_that_fails_has_its_reason_and_the_others_are_measured(
    tmp_path: Path,
) -> None:
    """Each odd line stands before a row that can be measured; half of a surrogate pair is measured, and escaped."""
    good = [*PROMPTS[: len(ODD) - 1], "half \ud83d"]
    lines = [
        line
        for odd, text in zip(ODD, good, strict=True)
        for line in (odd, json.dumps({"prompt": text}))
    ]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    one = scan(
        tmp_path / "store", {"file": str(tmp_path / "prompts.jsonl"), "shard": 10}
    )
    assert one.run()[
        ["cells", "done", "failed", "failed_rows"]
    ].to_numpy().tolist() == [[3, 3, 0, len(ODD)]]
    listed, table = one.failures(), one.rows()
    assert listed["row"].tolist() == [*range(0, 2 * len(ODD), 2)]
    for reason, expected in zip(listed["reason"], ODD.values(), strict=True):
        assert re.search(expected, reason), reason
    assert table["error"].dropna().tolist() == listed["reason"].tolist()
    measured = table[table["error"].isna()]
    assert [list(map(chr, code)) for code in measured["code"][:-1]] == [
        list(text) for text in good[:-1]
    ]
    assert measured["prompt"].tolist() == [*good[:-1], r"half \ud83d"]
    with pytest.raises(InputError, match="Use `rows`"):
        one.combine()


def test_a_row_does_not_depend_on_the_rows_beside_it(tiny: Any, tmp_path: Path) -> None:
    """By default a token is replaced by other tokens of its own prompt, not of those that have the same length."""
    prompts = [[2, 9, 5, 7], [2, 10, 8, 6]]
    one = sl.Study(
        {
            "measurement": "substitution_effect",
            "arguments": {"model": "tiny-gemma"},
            "name": "swaps",
            "over": written(tmp_path, prompts),
        },
        store=tmp_path / "store",
    )
    one.run()
    for row, found in enumerate(one.rows()["effect"]):
        np.testing.assert_allclose(
            found, sl.substitution_effect(tiny, prompts[row])["effect"], rtol=1e-5
        )


def test_a_scan_needs_no_model(tmp_path: Path) -> None:
    over = written(tmp_path, ["1", "", "333"])
    one = sl.Study(
        {"measurement": "tests.study.fakes:size", "name": "sizes", "over": over},
        store=tmp_path / "store",
    )
    assert one.run()[["done", "failed", "failed_rows"]].to_numpy().tolist() == [
        [1, 0, 1]
    ]
    assert one.rows()["size"].dropna().tolist() == [1, 3]
    with pytest.raises(InputError, match="no keyword prompt="):
        sl.Study(
            {"measurement": "tests.study.fakes:square", "over": over}, store=tmp_path
        )


def test_a_shard_with_a_failed_row_is_measured_again(tmp_path: Path) -> None:
    grid = {
        "measurement": "tests.study.fakes:permitted",
        "name": "letters",
        "arguments": {
            "model": "tiny-gemma",
            "allowed": str(tmp_path / "allowed"),
            "notes": str(tmp_path / "notes"),
        },
    }
    over = written(tmp_path, ["a", "b late", "c", "d"]) | {"shard": 2}
    one = sl.Study(grid | {"over": over}, store=tmp_path / "store")
    assert one.run()[["done", "failed_rows"]].to_numpy().tolist() == [[2, 1]]
    assert one.run()["failed_rows"].tolist() == [1]  # not by itself
    (tmp_path / "allowed").touch()
    assert one.run(retry=True)["failed_rows"].tolist() == [0]
    noted = (tmp_path / "notes").read_text().splitlines()
    assert sorted(noted[:4]) == ["a", "b late", "c", "d"]
    assert noted[4:] == ["a", "b late"]


def test_a_scan_is_resumed(tmp_path: Path) -> None:
    over = written(tmp_path, PROMPTS) | {"shard": 10}
    one = scan(tmp_path / "store", over)
    one.run()
    shards = sorted((tmp_path / "store").rglob("*.parquet"))
    before = {shard: shard.read_bytes() for shard in shards}
    assert len(shards) == 3
    rows = pq.read_table(shards[1]).num_rows
    shards[1].unlink()
    assert one.status()[["done", "left"]].to_numpy().tolist() == [[2, 1]]
    assert len(one.rows()) == 25 - rows
    one.run()
    assert {shard: shard.read_bytes() for shard in shards} == before
    other = scan(tmp_path / "store", over | {"shard": 5})
    before = {cell.key for cell in one.cells}
    (same,) = [cell.shard for cell in other.cells if cell.key in before]
    assert (same.start, len(same.prompts)) == (20, 5)


def test_the_column_is_part_of_what_is_measured(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a", "other": "bb"}\n')
    over = {"file": str(tmp_path / "prompts.jsonl")}
    grids = [
        {
            "measurement": "tests.study.fakes:size",
            "name": name,
            "over": over | {"column": name},
        }
        for name in ("prompt", "other")
    ]
    one = sl.Study(grids, store=tmp_path / "store")
    one.run()
    assert [one.rows(name)["size"].tolist() for name in ("prompt", "other")] == [
        [1],
        [2],
    ]


def test_a_shard_is_measured_again_if_its_prompts_changed(tmp_path: Path) -> None:
    """Prompts are read when the study is described, and a file may grow."""
    one = scan(tmp_path / "store", written(tmp_path, PROMPTS[:4]) | {"shard": 2})
    over = written(tmp_path, [*PROMPTS[:3], "another", "more"]) | {"shard": 2}
    one.run()
    assert one.rows()["prompt"].tolist() == PROMPTS[:4]
    other = scan(tmp_path / "store", over)
    assert other.status()[["done", "left"]].to_numpy().tolist() == [[1, 2]]
    other.run()
    assert other.rows()["prompt"].tolist() == [*PROMPTS[:3], "another", "more"]


def test_real_measurements_of_prompts_and_of_the_sequences_that_they_grow_into(
    tmp_path: Path, tiny: Any
) -> None:
    over, arguments = (
        written(tmp_path, ["110", "1101", [2, 4, 4, 76]]),
        {"model": "tiny-gemma"},
    )
    grids = [
        {"measurement": name, "arguments": arguments, "over": over}
        for name in ("path_bound", "collapse")
    ]
    one = sl.Study(grids, store=tmp_path / "store")
    one.run()
    table = one.rows("path_bound")
    assert table["error"].isna().all()
    assert list(table["path_bound"][1]) == sl.path_bound(tiny, "1101").values.tolist()
    assert list(table["token"][0]) == ["<bos>", "1", "1", "0"]
    sequence = sl.prompts.build(tiny, ["1", "1", "0", "1"])
    distances = one.rows("collapse")["distance_y"][1]
    assert list(distances) == sl.collapse(tiny, sequence)["distance_y"].values.tolist()


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({}, "argument: 'file'"),
        ({"file": "none.jsonl"}, "cannot be read"),
        ({"file": "none.jsonl", "rows": 3}, "no keyword rows="),
        ({"file": "prompts.xlsx"}, "no known ending. Use one of .jsonl"),
        ({"file": "empty.jsonl"}, "It has none"),
        (
            {"file": "lines.jsonl"},
            "no prompt in its first rows. .* not JSON: Expecting value",
        ),
        ({"file": "good.jsonl", "shard": 0}, "shard"),
        ({"file": "good.jsonl", "column": "text"}, "one of: prompt, n"),
        ({"file": "half.json"}, "not JSON: Expecting ',' delimiter"),
        (
            {"file": "chat.jsonl", "column": "messages"},
            r"chat messages. Write the ids .*apply_chat_template\(",
        ),
    ],
)
def test_what_cannot_be_scanned_is_refused(
    over: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, PROMPTS)
    Path("prompts.jsonl").rename("good.jsonl")
    for name, text in (
        ("prompts.xlsx", "text"),
        ("half.json", '[{"prompt": "a"}'),
        ("chat.jsonl", '{"messages": [{"role": "user", "content": "a"}]}\n'),
        ("empty.jsonl", ""),
        ("lines.jsonl", "a\nb\n"),
    ):
        Path(name).write_text(text)
    with pytest.raises(InputError, match=words):
        scan(tmp_path / "store", over)
    with pytest.raises(InputError, match="multiple values .*'prompt'"):
        sl.Study(
            {
                "measurement": "path_bound",
                "arguments": {"model": "tiny-gemma", "prompt": "11 ="},
                "over": {"file": "good.jsonl"},
            },
            store=tmp_path,
        )


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
        assert prompts_of(file) == prompts, file


def test_utf_16_is_read_and_latin_1_is_refused_with_a_remedy_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("é\nü\n", encoding="latin-1")
    Path("b.txt").write_text("é\nü\n", encoding="utf-16")
    with pytest.raises(InputError, match="perhaps in latin-1") as refused:
        over("a.txt")
    exec(refused.value.remedy.partition(": ")[2].rstrip("."))  # noqa: S102
    for file in ("utf8-a.txt", "b.txt"):
        assert prompts_of(file) == ["é", "ü"]


def test_rows_are_those_of_a_scan(tmp_path: Path) -> None:
    grid = {"measurement": "tests.study.fakes:square", "each": {"x": [1, 2]}}
    with pytest.raises(InputError, match="is no scan"):
        sl.Study(grid, store=tmp_path).rows()
    with pytest.raises(InputError, match="No cell of 'letters' is done"):
        scan(tmp_path, written(tmp_path, PROMPTS)).rows()


def test_labels_are_those_of_the_study_that_asks(tmp_path: Path) -> None:
    """A cell has the same file under every label, and under two labels at once."""
    square = {"measurement": "tests.study.fakes:square", "name": "areas"}
    over = written(tmp_path, PROMPTS[:3])
    letters = {
        "measurement": LETTERS,
        "arguments": {"model": "tiny-gemma"},
        "over": over,
        "name": "letters",
    }

    def asked(*labels: str, axis: str = "hooks") -> list[Any]:
        each = {axis: dict.fromkeys(labels, [] if axis == "hooks" else "float32")}
        numbers = square | {"each": {"x": dict.fromkeys(labels, 2)}}
        one = sl.Study([numbers, letters | {"each": each}], store=tmp_path / "store")
        one.run()
        areas = one.combine("areas")["area"].sel(place=10)
        return [
            areas["x"].values.tolist(),
            areas.values.tolist(),
            one.rows("letters")[axis].tolist(),
        ]

    assert asked("none") == [["none"], [4], ["none"] * 3]
    assert asked("plain") == [["plain"], [4], ["plain"] * 3]
    assert asked("one", "two", axis="dtype") == [
        ["one", "two"],
        [4, 4],
        ["one"] * 3 + ["two"] * 3,
    ]


def test_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = sl.Study(
        {"measurement": "tests.study.fakes:square", "each": {"x": [1, 2]}},
        store=tmp_path,
    )
    monkeypatch.setitem(sys.modules, "distributed", None)
    for asked in ({"workers": 2}, {"client": "tcp://127.0.0.1:1"}):
        with pytest.raises(InputError, match=r"squashlens\[cluster\]"):
            one.run(**asked)  # pyright: ignore[reportArgumentType]
