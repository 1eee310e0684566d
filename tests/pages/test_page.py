"""The page as a reader meets it: self-contained, escaped, without errors or requests, on desk and phone."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import squashlens as sl
from squashlens.errors import InputError
from squashlens.pages import report_page
from squashlens.pages.page import SCREENS, Section
from squashlens.pages.prompt_sentences import Evidence
from squashlens.pages.report_page import Asked, render
from squashlens.records.provenance import with_provenance
from squashlens.records.sentences import escape
from tests.pages.maps.conftest import Watched
from tests.references import process_state

PROMPT = sl.zoo.EXAMPLE_PROMPT
ASKED: dict[str, Any] = {
    "prompt": PROMPT,
    "answer": "9",
    "instead": (PROMPT.replace("110", "111", 1), "10"),
}


@pytest.fixture(scope="module")
def written(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report, which leaves the process as it was."""
    out, before = tmp_path_factory.mktemp("page") / "report.html", process_state()
    sl.report(tiny, **ASKED, out=out, n=6)
    assert process_state() == before
    return out


def opened(browser: Any, written: Path, width: int) -> Watched:
    """The page in a browser, with its figures drawn."""
    one = Watched(browser, width)
    one.page.goto(written.as_uri())
    one.page.wait_for_selector(".sl-ribbon [role=option]", state="attached")
    one.page.wait_for_function(
        "[...document.querySelectorAll('.plotly-graph-div')].every(one => one.querySelector('.main-svg'))"
    )
    return one


@pytest.fixture(scope="module")
def desk(browser: Any, written: Path) -> Any:
    """The page on a desk, opened once; tests leave it as they found it."""
    return opened(browser, written, 1280)


def test_without_an_answer_there_is_no_verdict(tiny: Any) -> None:
    text = page_of(tiny, "110 =")
    assert "No verdict: no right answer was given." in text
    assert "lost" not in re.sub(
        r"<(script|style).*?</\1>|<details id=.terms.*?</details>",
        "",
        text,
        flags=re.DOTALL,
    )
    assert text.count("Plotly.newPlot(") == len(SCREENS)


def test_the_demonstration_shows_a_loss(tmp_path: Path) -> None:
    text = sl.report(out=tmp_path / "page.html").read_text(encoding="utf-8")
    for words in (
        "“4”, with a probability of over 99.9 %",
        "The change reaches the last token and is not used",
        "No single token matters.",
        "for n = 1, 4, 8, 16, 32, 47.",
        "Up to 48, of the numbers tried: 49 ones do not get their own answer.",
        "for 90 and 93 (without commas: reaches the last token, not used)",
    ):
        assert words in text


def test_commas_are_tried_where_both_prompts_count_equal_tokens(tiny: Any) -> None:
    ask = report_page.COUNT.format
    (name, found), *others = report_page._commas(
        tiny, Asked(ask("1" * 50), "50", (ask("1" * 51), "51"))
    ).items()
    texts = [ask(",".join(["111"] * n + ["11"])) for n in (16, 17)]
    by_text = sl.verdict(tiny, texts, ["50", "53"], n_random_models=0)
    assert not others
    assert "for 50 and 53 (without commas: reaches the last token, not used)" in name
    np.testing.assert_allclose(
        found["log_odds_after"], by_text["log_odds_after"], atol=1e-4
    )
    for answer, items in (
        ("50", "1" * 50),
        ("50", "1" * 50 + "01"),
        ("50", "0" * 51),
        ("7", "1" * 51),
    ):
        assert (
            report_page._commas(tiny, Asked(ask("1" * 50), answer, (ask(items), "51")))
            == {}
        )


def test_the_code_loads_the_same_model(tiny: Any, bridge_of: Any) -> None:
    assert report_page._source(tiny) == "tiny-gemma"
    assert Path(report_page._source(bridge_of("llama"))).is_dir()
    facts = {
        "dtype": "float32",
        "revision": None,
        "proof": "verified",
        "call": {"norm": "spectral", "n_probes": 32},
    }
    other = facts | {"dtype": "bfloat16", "revision": "abc", "proof": "unverified"}
    code = report_page._code(other, "org/m", Asked("1"), 8)
    assert "sl.load('org/m', dtype='bfloat16', revision='abc', verify=False)" in code
    assert "norm='spectral', n_probes=32" in code
    assert "sl.load('./gpt2')" in report_page._code(facts, "./gpt2", Asked("1"), 8)


def test_nothing_is_fetched(written: Path) -> None:
    text = written.read_text(encoding="utf-8")
    own = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=[\"'](?!data:|#)", own)


@pytest.mark.browser
def test_the_answers_are_on_the_first_screen(desk: Watched) -> None:
    desk.page.set_viewport_size({"width": 1200, "height": 900})
    ends = desk.page.eval_on_selector_all(
        ".answers section", "all => all.map(e => e.getBoundingClientRect().bottom)"
    )
    desk.page.set_viewport_size({"width": 1280, "height": 900})
    assert len(ends) == 4
    assert max(ends) <= 900
    first, why = (
        desk.page.locator(place).text_content() for place in (".answers", ".sl-why")
    )
    assert first.count(why.partition(":")[0]) == 1  # the map has the report's knockouts


def page_of(
    tiny: Any,
    prompt: str,
    parts: Any = (),
    change: Any = lambda one: one,
    source: str = "m",
    shown: str = "",
) -> str:
    """The page for results of a prompt of which `change` was made."""
    measured, view = change(sl.sensitivity(tiny, prompt)), sl.squash_map(tiny, prompt)
    evidence = Evidence(change(sl.top_tokens(tiny, prompt)), measured)
    return render(evidence, parts, view, Asked(shown or prompt), source=source)


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_can_be_read_by_everyone(desk: Watched) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright",
        reason="axe-playwright-python is not installed",
    )
    violations = axe.Axe().run(desk.page).response["violations"]
    assert not [one["id"] for one in violations]


@pytest.mark.slow
def test_token_text_is_escaped(tiny: Any) -> None:
    evil = "<img src=x onerror=alert(1)>"

    def change(result: Any) -> Any:
        result["token"][0 if "rank" in result.dims else 1] = evil
        return result

    part = Section(
        evil, sl.figures.of(sl.path_bound(tiny, "110 =")), (f"{evil} is 2 tokens.",)
    )
    text = page_of(tiny, "110 =", [part], change, evil, f"'{evil}'")
    assert evil not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "&lt;img src=x" in text


NASTY = (
    "a\nb\r\t\x1b[2J\x07 'q' \"d\" \\x41 $HOME `id` \u202e\u2028\x85\xad\U000e0001 é🙂"
)


def test_control_characters_are_shown_as_escapes(tiny: Any) -> None:
    def change(result: Any) -> Any:
        return with_provenance(
            result, sl.results.provenance(result) | {"model": f"m{NASTY}"}
        )

    text = page_of(tiny, "110 =", (), change, f"m{NASTY}", NASTY)
    shown = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    for part in re.findall(r"<pre[^>]*>.*?</pre>|<td>.*?</td>", shown, flags=re.DOTALL):
        plain = part.replace("\n", "") if "import squashlens" in part else part
        assert escape(plain) == plain


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser(browser: Any, desk: Watched, written: Path, width: int) -> None:
    one = desk if width == 1280 else opened(browser, written, width)
    assert one.said == []
    assert one.asked == [written.as_uri()]
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width
    assert one.page.locator(".js-plotly-plot").count() == 10
    if one is not desk:
        one.page.close()


@pytest.mark.browser
def test_figures_fit_on_paper(desk: Watched) -> None:
    """Figures keep the width of the screen that they were drawn for, and would be cut at the edge of the paper."""
    page = desk.page
    page.emulate_media(media="print")
    page.evaluate(  # which plotly would answer after a while by drawing anew; a printed page has no such event
        "document.querySelectorAll('.js-plotly-plot').forEach(one => "
        "removeEventListener('resize', one._responsiveChartHandler))"
    )
    page.set_viewport_size({"width": 703, "height": 1000})  # A4 with margins of 12 mm
    ends = page.eval_on_selector_all(
        "figure.drawn .main-svg",
        "all => all.map(one => one.getBoundingClientRect().right)",
    )
    page.emulate_media(media="screen")
    page.set_viewport_size({"width": 1280, "height": 900})
    assert ends
    assert max(ends) <= 703


@pytest.mark.browser
def test_hover_shows_the_datasets_value(desk: Watched, tiny: Any) -> None:
    ds, page = sl.sensitivity(tiny, PROMPT), desk.page
    page.evaluate(
        "document.querySelectorAll('details').forEach(one => { one.open = true })"
    )
    drawn = page.locator(".js-plotly-plot").last
    names = drawn.evaluate("one => one.data.map(t => t.name)")
    trace, place = names.index("Jacobian"), 11
    point = (
        drawn.locator(".scatterlayer .trace").nth(trace).locator(".point").nth(place)
    )
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector(".hoverlayer .hovertext")
    shown = page.locator(".hoverlayer .hovertext").first.text_content()
    value = float(ds["jacobian"].values[place])
    assert f"{place}: {ds['token'].values[place]}" in shown
    page.mouse.move(0, 0)
    name = f"Jacobian{place}: {ds['token'].values[place]}"
    assert shown.startswith(name)
    assert float(shown.removeprefix(name)) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize(
    "asked",
    [
        {"answer": "9"},
        {"answer": "9", "instead": ["10"]},
        {"n": 3},
        {"answer": "9", "instead": ["10", "1"], "prompt": None},
        {"out": "report.pdf"},
    ],
)
def test_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        sl.report("tiny-gemma", **{"prompt": "110 ="} | asked)
