"""The paper's figures as one command: what is written, what is used again, and what is refused."""

import csv
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError, OutputError
from squashlens.pages.markup import latex, markdown
from squashlens.pages.paper import parts, write
from squashlens.records.sentences import number
from squashlens.tasks.task import Prompting
from tests import typeset

QUIET: Any = {"n": 6, "lengths": [4, 76], "seeds": 2}
HOSTILE = (
    r"\input{/etc/passwd} 100% $x^2$ #1 & a_b ~ <b> |`''--,,\"' é ü 中 🙂 \end{document} "
    + "δ∞−½…“”→≤·"
)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures as HTML, which takes no browser and no time."""
    monkeypatch.setattr(write, "_ending", lambda: ".html")


@pytest.fixture(scope="module")
def made(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Figures 5 and 9, which tests copy before they change them."""
    out = tmp_path_factory.mktemp("made") / "paper"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "_ending", lambda: ".html")
        sl.paper(tiny, out=out, figures=[5, 9], **QUIET)
    return out


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of those figures, with their times."""
    return Path(shutil.copytree(made, tmp_path / "paper"))


def times(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.rglob("*.nc")}


def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything that would be measured is an error."""

    def work(*_: Any, **__: Any) -> None:
        raise AssertionError("it was measured")

    for name in (
        "measure.collapse.distance.collapse",
        "synthetic.softmax_total_variation",
        "synthetic.convergence",
    ):
        monkeypatch.setattr(f"squashlens.{name}", work)


def test_what_a_folder_has(folder: Path, tiny: Any) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "data",
        "fig5.html",
        "fig9.html",
        "figures.tex",
        "plotly.min.js",
    ]
    expected = sl.collapse(tiny, sl.prompts.figure5(tiny, 6)["d"], by_head="value")
    kept = sl.results.open(folder / "data" / "collapse_d.nc")
    assert (kept["distance"] == expected["distance"]).all()
    of_random = sl.results.open(folder / "data" / "collapse_b.nc")["distance"]
    assert (
        of_random
        == sl.collapse(tiny, sl.prompts.figure5(tiny, 6)["b"], by_head="value")[
            "distance"
        ]
    ).all()
    with (folder / "data" / "fig5_collapse_d.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["variable"] == "distance"]
    assert [float(row["value"]) for row in rows] == expected["distance"].values[
        -1
    ].tolist()
    page = (folder / "README.md").read_text()
    slope = number(
        sl.collapse(tiny, sl.prompts.figure5(tiny, 6)["c"])["length_slope"][-1]
    )
    assert f"log-log slope of {slope} " in page
    assert "Model: tiny-gemma in float32" in page
    assert sl.results.provenance(kept)["fingerprint"] in page
    tex = (folder / "figures.tex").read_text()
    assert "% Figure 5 is fig5.html, which LaTeX cannot include.\n" in tex
    assert "\\begin{figure" not in tex


@pytest.mark.usefixtures("pages")
def test_nothing_is_measured_twice(
    folder: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_work(monkeypatch)
    before = times(folder)
    found = sl.paper(tiny, out=folder, figures=[5, 9], **QUIET)
    assert found == {5: folder / "fig5.html", 9: folder / "fig9.html"}
    assert times(folder) == before


@pytest.mark.slow
@pytest.mark.usefixtures("pages")
def test_what_was_deleted_is_made_again(folder: Path, tiny: Any) -> None:
    before = times(folder)
    (folder / "fig9.html").unlink()
    (folder / "data" / "collapse_c.nc").unlink()
    sl.paper(tiny, out=folder, figures=[5, 9], **QUIET)
    changed = {name for name, time in times(folder).items() if before[name] != time}
    assert changed == {"collapse_c.nc"}
    assert (folder / "fig9.html").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("pages")
def test_killed_halfway_nothing_finished_is_lost(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, calls = sl.collapse, []

    def killed(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measure(*args, **options)

    monkeypatch.setattr("squashlens.measure.collapse.distance.collapse", killed)
    with pytest.raises(KeyboardInterrupt):
        sl.paper(tiny, out=tmp_path, figures=[5], **QUIET)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        "collapse_a.nc",
        "collapse_b.nc",
    ]
    before = times(tmp_path)
    sl.paper(tiny, out=tmp_path, figures=[5], **QUIET)
    assert len(calls) == 5
    assert before.items() <= times(tmp_path).items()


@pytest.mark.few(2)
@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"n": 7}, r"n\b"),
        ({}, "model: ambient_hooks"),
        ({"figures": [9]}, "model: ambient_hooks"),
    ],
)
def test_other_settings_or_another_model_are_refused(
    folder: Path,
    tiny: Any,
    options: dict[str, Any],
    what: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_work(monkeypatch)
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    hooks = [sl.hooks.freeze_attention()] if "hooks" in what else []
    with (
        sl.applied(tiny, *hooks),
        pytest.raises(InputError, match=f"collapse_a.*a different {what}"),
    ):
        sl.paper(tiny, out=folder, **{"figures": [5, 9], **QUIET, **options})
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before


@pytest.mark.slow
@pytest.mark.usefixtures("pages")
def test_a_damaged_or_edited_result_is_measured_again(folder: Path, tiny: Any) -> None:
    data, good = folder / "data", {}
    for name in ("collapse_a.nc", "total_variation.nc"):
        good[name] = sl.results.open(data / name)
    whole = (data / "collapse_a.nc").read_bytes()
    (data / "collapse_a.nc").write_bytes(whole[: len(whole) // 2])
    with xr.open_dataset(data / "total_variation.nc", engine="h5netcdf") as opened:
        edited = opened.load()
    edited["total_variation"][0, 0] = 1.0
    edited.to_netcdf(data / "total_variation.nc", engine="h5netcdf")
    with pytest.warns(UserWarning, match="measured again") as warned:
        sl.paper(tiny, out=folder, figures=[5, 9], **QUIET)
    assert sum("measured again" in str(one.message) for one in warned) == 2
    assert all(sl.results.open(data / name).equals(one) for name, one in good.items())


@pytest.mark.usefixtures("pages")
def test_a_figure_that_cannot_be_measured_stops_no_other(
    tiny: Any, tmp_path: Path
) -> None:
    found = sl.paper(
        tiny, out=tmp_path, figures=[3, 4, 9], mode="cot_few_shot", **QUIET
    )
    assert found[9] == tmp_path / "fig9.html"
    assert isinstance(found[3], InputError)
    assert found[3] is found[4]
    assert "has no examples" in str(found[3])
    assert (
        f"Not measured: {markdown(str(found[3]))}"
        in (tmp_path / "README.md").read_text()
    )
    assert "% Figure 3 could not be measured." in (tmp_path / "figures.tex").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("pages")
def test_other_figures_of_the_folder_stay_in_it(folder: Path, tiny: Any) -> None:
    """Also if they were measured with other settings, which their captions state."""
    sl.paper(tiny, out=folder, figures=[1], **QUIET | {"n": 4})
    page = (folder / "README.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("## Figure")] == [
        "## Figure 1",
        "## Figure 5",
        "## Figure 9",
    ]
    assert "for up to 4 ones" in page
    assert "(6 lengths, nominal 95 % interval" in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"figures": []}, "figures is empty"),
        ({"n": 2}, "n=2 is too small"),
        ({"lengths": [4, 4]}, "lengths"),
        ({"mode": []}, "mode"),
        ({"prompt": "onse"}, "'onse' is not in this model's vocabulary"),
    ],
)
def test_wrong_settings_are_refused_and_nothing_is_written(
    tiny: Any, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        sl.paper(tiny, out=tmp_path / "new", **{**QUIET, **options})
    assert not [*tmp_path.iterdir()]


def test_without_a_browser_one_warning_comes_before_the_work(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(path: Path) -> None:
        raise OutputError(f"No browser draws {path.suffix}.", "Install one.")

    monkeypatch.setattr("squashlens.figures.drawing.saving.require_browser", missing)
    with pytest.warns(
        UserWarning,
        match=r"as \.html, which LaTeX cannot include\. No browser draws \.pdf",
    ) as warned:
        found = sl.paper(tiny, out=tmp_path, figures=[9], **QUIET)
    assert len(warned) == 1
    assert found == {9: tmp_path / "fig9.html"}
    no_work(monkeypatch)
    with (
        pytest.warns(UserWarning, match="as .html"),
        pytest.raises(AssertionError, match="it was measured"),
    ):
        sl.paper(tiny, out=tmp_path / "new", figures=[9], **QUIET)


def test_a_model_that_is_not_bundled_is_asked_with_the_papers_words(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = parts.Settings("", 6, (4,), 2, Prompting(mode=["answer_only"]))
    taught = [part.about["task"] for part in parts.parts_of(3, tiny, chosen)]
    monkeypatch.setattr(parts, "model_name", lambda _: "google/gemma-7b-it")
    assert taught == [
        "taught_sum_repeated",
        "taught_count_repeated",
        "taught_count_bernoulli",
    ]
    assert [part.about["task"] for part in parts.parts_of(3, tiny, chosen)] == [
        "sum",
        "count_ones",
        "count_bernoulli",
    ]
    assert len(parts.parts_of(2, tiny, chosen)) == 6
    assert [part.about["temperature"] for part in parts.parts_of(6, tiny, chosen)] == [
        1.0
    ] * 3
    assert [part.about["seeds"] for part in parts.parts_of(4, tiny, chosen)] == [
        1,
        1,
        2,
    ]


def compiled(folder: Path, *, body: str = r"\input{figures}") -> str:
    """The text of a document with this body, after pdflatex has compiled it."""
    preamble = "\\usepackage{graphicx}\n\\graphicspath{{./}}"
    made = typeset.pdf(folder, body, preamble=preamble, options="[twocolumn]")
    log = (folder / "main.log").read_text(errors="replace")
    assert "Overfull" not in log
    assert "too large" not in log
    return typeset.text_of(made)


def test_any_text_stays_text_in_latex(tmp_path: Path) -> None:
    said = compiled(
        tmp_path, body=r"\sloppy\raggedright\hyphenpenalty=10000 " + latex(HOSTILE)
    )
    plain = " ".join(
        said.split()
    )  # an underscore is a rule, which pdftotext leaves out
    assert r"\input{/etc/passwd} 100% $x^2$ #1 & a b ~ <b> |" in plain.replace(
        "ˆ", "^"
    ).replace("˜", "~")
    assert r"\end{document}" in plain
    assert "--,," in plain
    assert "[U+4E2D] [U+1F642]" in plain


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.timeout(900)
def test_all_figures_and_the_document_that_includes_them(
    tiny: Any, tmp_path: Path
) -> None:
    if (
        not os.environ.get("SQUASHLENS_REQUIRE_BROWSER")
        and shutil.which("chromium") is None
    ):
        pytest.skip("chromium is not installed, so no PDF was drawn")
    found = sl.paper(tiny, out=tmp_path)
    assert found == {number: tmp_path / f"fig{number}.pdf" for number in parts.NUMBERS}
    said = compiled(tmp_path)
    assert all(f"Figure {number}: " in said for number in parts.NUMBERS)
    sampled = sl.results.open(tmp_path / "data" / "sum_sampled.nc")
    assert sampled.sizes["seed"] == 4
    assert not np.array_equal(
        sampled["value"], sl.results.open(tmp_path / "data" / "sum.nc")["value"]
    )
