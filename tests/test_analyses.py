"""The tables of the analyses: effects and intervals by hand, verdicts, and the pages that were drawn from files."""

import runpy
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from scipy.stats import binomtest, t

import squashlens as sl
from analyses.tables.claims import ANSWERS, claims, claims_page, question, read_claims, untrained

DATA = Path(__file__).parents[1] / "docs" / "data"
ANALYSES = Path(__file__).parents[1] / "analyses"


@pytest.fixture(scope="module")
def folder(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three words and four questions."""
    out, lengths = tmp_path_factory.mktemp("run"), [1, 4, 16]
    pairs = {w: sl.capture(tiny, sl.prompts.repeated(tiny, w, 16), lengths=lengths) for w in ("1", "0", "7")}
    for name, norm in {"collapse": "linf", "square": "l2"}.items():
        each = {word: sl.collapse(tiny, pair, norm=norm).isel(layer=-1) for word, pair in pairs.items()}
        sl.results.save(sl.results.concat(each, "word"), out / f"trained-{name}.nc")
    ones = {k: sl.prompts.bernoulli(tiny, 64, seed=k, suffix="=") for k in range(4)}
    for name, answer in ANSWERS.items():
        right = {k: sl.accuracy(tiny, one, answer, lengths=[1, 64]) for k, one in ones.items()}
        sl.results.save(sl.results.concat(right, "seed"), out / f"trained-{name}.nc")
    return out


def test_effects_are_geometric_means_and_their_intervals(folder: Path) -> None:
    table = claims(folder).set_index("quantity")
    found = sl.results.open(folder / "trained-collapse.nc")["distance"]
    logs = np.log((found.sel(length=16) / found.sel(length=1)).values)
    reach = t.ppf(0.975, 2) * logs.std(ddof=1) / 3**0.5
    row = table.loc["largest difference of a coordinate at the last layer, 16 words ÷ 1 word"]
    np.testing.assert_allclose(
        row[["effect", "low", "high"]].astype(float), np.exp(logs.mean() + np.array([0, -reach, reach]))
    )
    assert row["n"] == 3
    assert row["verdict"] == ("holds" if row["high"] < 1 else "fails" if row["low"] > 1 else "undecided")
    share = table.loc["share of the largest coordinate in the squared distance, 16 words"]
    assert 0 < share["effect"] < 1
    assert not [text for text in table.index if "511" in text or "lifted" in text]  # lengths that the run has not
    assert share["verdict"] == ""


def test_counts_have_exact_intervals_and_failure_from_the_start_is_no_loss(folder: Path) -> None:
    table = claims(folder).set_index("quantity")
    right = sl.results.open(folder / "trained-ones.nc").sel(length=1).values
    ends = binomtest(int(right.sum()), 4).proportion_ci(method="exact")
    row = table.loc["right counts, 1 digit"]
    np.testing.assert_allclose([row["low"], row["high"]], ends, atol=1e-12)
    far = sl.results.open(folder / "trained-last.nc").values
    difference = table.loc["last digit, right at 64 minus right at 1"]
    assert difference["effect"] == pytest.approx((far[:, 1] - far[:, 0]).mean())
    gains, losses = (binomtest(int((far[:, 1] - far[:, 0] == sign).sum()), 4).proportion_ci(0.975) for sign in (1, -1))
    np.testing.assert_allclose(
        difference[["low", "high"]].astype(float), [gains.low - losses.high, gains.high - losses.low]
    )
    able = table.loc["right last digits, 1 digit"]["high"] >= 0.5
    assert (difference["verdict"] == "untestable") == (not able)


def test_a_file_keeps_the_table_and_the_page_shows_it(folder: Path, tmp_path: Path) -> None:
    table = claims(folder)
    table.to_csv(tmp_path / "claims.csv", index=False)
    page = claims_page(read_claims(tmp_path / "claims.csv"), "tiny-gemma")
    assert page == claims_page(table, "tiny-gemma")
    for quantity in table["quantity"]:
        assert f"| {quantity} |" in page
    assert page.count("not measured") == len(table)  # of the untrained model


def test_questions_and_the_untrained_model(tiny: Any) -> None:
    reader = sl.load("tiny-prose")  # the words of the questions are not all in the other's vocabulary
    sequence, answer = question(reader, "first", seed=1)
    other, _ = question(reader, "last", seed=1)
    assert sequence.content_at(8) == other.content_at(8)
    assert answer(("4", "0", "7")) == "4"
    twin = untrained(tiny)
    assert twin.tokenizer is tiny.tokenizer
    assert not np.allclose(sl.path_bound(twin, "110 ="), sl.path_bound(tiny, "110 ="))


def analysis(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [name, *arguments])
    monkeypatch.syspath_prepend(ANALYSES)
    runpy.run_path(str(ANALYSES / name), run_name="__main__")


@pytest.mark.skipif(not DATA.exists(), reason="the tests run without the documentation")
def test_saved_results_are_under_the_name_of_their_model_and_leave_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    analysis("gemma.py", "--saved", monkeypatch=monkeypatch)
    assert "gemma-3-270m" in capsys.readouterr().out
    assert not [*tmp_path.iterdir()]
    with pytest.raises(SystemExit):
        analysis("gemma.py", "--saved", "--model", "tiny-gemma", monkeypatch=monkeypatch)
    assert "not allowed with argument --saved" in capsys.readouterr().err


def test_a_part_that_was_interrupted_is_measured_again_and_runs_do_not_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_at_the_third(found: Any, path: Path) -> None:
        if len(saved) == 2:
            raise KeyboardInterrupt
        saved.append(path)

    saved: list[Path] = []
    for name in ("load", "capture", "collapse"):
        monkeypatch.setattr(f"squashlens.{name}", MagicMock())
    monkeypatch.setattr("squashlens.prompts.repeated", MagicMock())
    monkeypatch.setattr("squashlens.results.concat", MagicMock())
    monkeypatch.setattr("squashlens.results.save", stop_at_the_third)
    for of in (["tiny-prose"], ["tiny-prose", "--quick"], ["some/where"]):
        saved.clear()
        with pytest.raises(KeyboardInterrupt):
            analysis("gemma.py", "--out", str(tmp_path), "--model", *of, monkeypatch=monkeypatch)
        assert "trained-collapse.nc" not in {file.name for file in saved}
    assert {one.name for one in tmp_path.iterdir()} == {"tiny-prose", "tiny-prose-quick", "some_where"}


@pytest.mark.skipif(not DATA.exists(), reason="the tests run without the documentation")
def test_pages_show_the_numbers_of_their_files() -> None:
    """`analyses/gemma.py --saved` prints these."""
    assert (DATA / "gemma_claims.md").read_text("utf-8") == claims_page(
        read_claims(DATA / "gemma_claims.csv"), "gemma-3-270m"
    )
