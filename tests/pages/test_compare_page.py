"""The page of two models: its sentences against results whose truth is known, and the page in a browser."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

import squashlens as sl
from squashlens.cli import main
from squashlens.errors import InputError
from squashlens.pages import compare_page
from squashlens.records.sentences import percent
from tests.cases import with_broken_attention

ASK = "What is the last digit in this sequence? {}{} ="
PROMPTS = [ASK.format(a, b) for a in "012" for b in "0123456789"]
ANSWERS = [*"0123456789"] * 3


@pytest.fixture(scope="module")
def broken(tiny: Any) -> Any:
    """The bundled model with noise in the attention of block 2 alone."""
    return with_broken_attention(tiny, 2)


@pytest.fixture(scope="module")
def page(tiny: Any, broken: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compare") / "compare.html"
    group = ["one", "two", "three"] * 10
    return sl.compare_report(
        tiny, broken, PROMPTS, ANSWERS, group=group, n_keep=1, out=out
    )


def shown(page: Path) -> str:
    """The text of a page without programs and styles."""
    text = re.sub(r"<(script|style).*?</\1>", "", page.read_text("utf-8"), flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text))


def test_the_page_says_what_was_lost_and_what_keeps_it(
    page: Path, tiny: Any, broken: Any
) -> None:
    found = sl.compare_models(tiny, broken, PROMPTS, ANSWERS)
    n_lost = int((found["outcome"] == "lost").sum())
    n_kept = int((found["outcome"] == "kept").sum())
    text = shown(page)
    assert n_lost > 5
    assert f"{n_lost} are lost and 0 gained" in text
    n_before = int((found["lead"].sel(model="reference") > 0).sum())
    n_after = int((found["lead"].sel(model="other") > 0).sum())
    assert (n_before, n_after) == (30, n_kept)
    assert (
        f"Right answers fall from 100 % to {percent(n_kept / 30)} of 30 prompts" in text
    )
    assert "the largest part in block 2" in text
    assert "In 3 of 3 groups they fall by themselves" in text
    assert "Greedy decoding writes the right answer after 100 % of the prompts" in text
    assert "Keep block 2 as in the reference" in text
    assert "tiny-gemma in float32, with other weights" in text
    assert text.count("What is the last digit") == min(n_lost, compare_page.SHOWN)


def test_nothing_is_said_to_be_lost_where_nothing_is(tiny: Any, tmp_path: Path) -> None:
    few = (PROMPTS[:10], ANSWERS[:10])
    text = shown(sl.compare_report(tiny, tiny, *few, out=tmp_path / "same.html"))
    assert "No change of right answers beyond chance" in text
    assert compare_page.NOTHING_LOST in text
    assert "with the same weights" in text
    assert "0 are lost and 0 gained" in text


def test_gains_are_no_loss_and_are_listed(
    tiny: Any, broken: Any, tmp_path: Path
) -> None:
    out = sl.compare_report(broken, tiny, PROMPTS, ANSWERS, out=tmp_path / "gain.html")
    text = shown(out)
    assert "Right answers rise from" in text
    assert compare_page.NOTHING_LOST in text
    assert "Gained answers" in text
    assert "Lost answers" not in text


def test_one_cluster_has_no_interval_and_no_verdict(
    tiny: Any, broken: Any, tmp_path: Path
) -> None:
    few = (PROMPTS[:10], ANSWERS[:10])
    out = tmp_path / "one.html"
    text = shown(sl.compare_report(tiny, broken, *few, clusters=["a"] * 10, out=out))
    assert "Whether answers are lost was not measured" in text
    assert not re.search(r"\bnan\b", text)


def test_leads_within_noise_are_no_contradiction(tiny: Any, broken: Any) -> None:
    found = sl.compare_models(tiny, broken, PROMPTS, ANSWERS)
    counts = xr.zeros_like(found["count"])
    counts.loc[{"outcome_kind": "within noise"}] = 30
    details = compare_page.loss_details(found.assign(count=counts))
    assert compare_page.lost_in_words(found).startswith("Right answers fall")
    assert any("0 are lost and 0 gained" in line and "30" in line for line in details)


def test_hooks_are_named_with_their_blocks() -> None:
    hooks = [f"blocks.{block}.attn.hook_v: round" for block in (0, 3)]
    facts = {"dtype": "float32", "ambient_hooks": hooks}
    said = compare_page.model_in_words("m", facts)
    assert said == "m in float32, with round in blocks 0, 3"


def test_models_of_other_architectures_are_compared_by_their_answers(
    tiny: Any, tmp_path: Path
) -> None:
    bench = sl.load(sl.example_models.folder("tiny-gemma"), dtype="bfloat16")
    text = shown(
        sl.compare_report(
            tiny, bench, PROMPTS[:10], ANSWERS[:10], out=tmp_path / "half.html"
        )
    )
    assert "tiny-gemma in bfloat16" in text


def test_a_set_that_is_no_better_than_random_is_not_recommended(
    tiny: Any, broken: Any
) -> None:
    found = sl.blocks_to_keep(tiny, broken, PROMPTS, ANSWERS, n_keep=1)
    assert compare_page.kept_in_words(found).startswith("Keep block 2")
    not_better = found.assign_coords(above_null="no")
    said = compare_page.kept_in_words(not_better)
    assert said.startswith("No blocks were found")


@pytest.mark.parametrize("width", [390, 1200, 1600])
def test_nothing_is_cut(page: Path, browser: Any, width: int) -> None:
    opened = browser.new_page(viewport={"width": width, "height": 900})
    opened.goto(page.as_uri())
    opened.wait_for_selector(".main-svg", state="attached")
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    opened.close()


def test_the_command_reads_prompts_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    rows = [
        {"prompt": prompt, "answer": answer, "choices": [*"0123456789"], "group": 1}
        for prompt, answer in zip(PROMPTS[:5], ANSWERS[:5], strict=True)
    ]
    file.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    out = tmp_path / "page.html"
    main(
        [
            "compare",
            "tiny-gemma",
            "Q8_0",
            "--prompts",
            str(file),
            "--out",
            str(out),
        ]
    )
    assert "rounded to Q8_0" in shown(out)


ROW = json.dumps({"prompt": "a", "answer": "b"})


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[1]",
        '{"prompt": "a"}',
        '{"prompt": "a", "answer": "b", "choices": ["b", "c"], "cluster": [1]}',
        f'{ROW}\n{{"prompt": "a", "answer": "b", "group": "c"}}',
    ],
)
def test_a_file_of_another_form_is_refused(
    tiny: Any, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(text, "utf-8")
    with pytest.raises(InputError):
        sl.compare_report(tiny, tiny, file, out=tmp_path / "page.html")
