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
from squashlens.errors import InputError
from squashlens.pages.markup import latex, markdown
from squashlens.pages.paper import parts, write
from squashlens.records.sentences import number
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
def test_nothing_is_measured_twice(folder: Path, tiny: Any) -> None:
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


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize(
    "options",
    [
        {"figures": []},
        {"n": 2},
        {"n": 7},
        {"lengths": [4, 4]},
        {"mode": []},
        {"prompt": "onse"},
        {"hooks": [sl.hooks.freeze_attention()]},
        {"hooks": [sl.hooks.freeze_attention()], "figures": [9]},
    ],
)
def test_refused_and_nothing_is_changed(
    folder: Path, tiny: Any, options: dict[str, Any]
) -> None:
    """Settings that suit no model, and a folder of other settings or of another model."""
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    hooks = options.get("hooks", [])
    given = {name: value for name, value in options.items() if name != "hooks"}
    with sl.applied(tiny, *hooks), pytest.raises(InputError):
        sl.paper(tiny, out=folder, **{**QUIET, **given})
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before
