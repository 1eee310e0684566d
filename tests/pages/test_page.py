"""The page as a reader meets it: self-contained, escaped, without errors or requests, on desk and phone."""

import html
import re
from pathlib import Path
from typing import Any

import pytest

import squashlens as sl
from squashlens.errors import InputError
from squashlens.figures.drawing.themes import THEMES
from squashlens.pages import report_page
from squashlens.pages.page import SCREENS, Section, page_of
from squashlens.pages.prompt_sentences import Evidence
from squashlens.pages.report_page import COUNT, Asked, render
from squashlens.records.provenance import with_provenance
from squashlens.records.sentences import escape
from tests.pages.maps.conftest import Watched
from tests.references import process_state

PROMPT = sl.example_models.EXAMPLE_PROMPT
# A count that goes wrong, so that the page says what helps.
ASKED: dict[str, Any] = {
    "prompt": COUNT.prompt,
    "answer": COUNT.answer,
    "instead": (COUNT.prompt.replace("1001", "1011", 1), "36"),
    "choices": COUNT.choices,
}


@pytest.fixture(scope="module")
def written(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report, which leaves the process as it was."""
    out, before = tmp_path_factory.mktemp("page") / "report.html", process_state()
    sl.report(tiny, **ASKED, out=out)
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


def text_of(page: str) -> str:
    """What a reader sees of a page, without its terms."""
    return re.sub(
        r"<(script|style).*?</\1>|<details id=.terms.*?</details>",
        "",
        page,
        flags=re.DOTALL,
    )


def test_without_an_answer_nothing_is_right_or_wrong(tiny: Any, tmp_path: Path) -> None:
    path = sl.report(tiny, prompt="110 =", out=tmp_path / "page.html")
    text = path.read_text(encoding="utf-8")
    assert "No right answer was given." in text
    shown = text_of(text)
    assert "which is right" not in shown
    assert "Right is" not in shown
    assert text.count("Plotly.newPlot(") == len(SCREENS)


def test_the_demonstration_shows_a_count_that_goes_wrong(written: Path) -> None:
    """As whole passes say: 35 leads in the readout of layer 5, and 34 is written."""
    shown = text_of(written.read_text(encoding="utf-8"))
    assert COUNT.prompt.count("1") == int(str(COUNT.answer))
    for words in (
        "The model says “34” (58 %). Right is “35” (18 %).",
        "“35” is ahead at layer 5 (24 %), and “34” wins at the end.",
        "With sharper attention (temperature 0.8)",
        "at the last token",
        "and its right answer “36” has",
    ):
        assert words in shown


def test_an_answer_that_goes_on_is_not_called_right(tiny: Any, tmp_path: Path) -> None:
    """3 of the 34 that the model writes."""
    path = sl.report(tiny, prompt=COUNT.prompt, answer="3", out=tmp_path / "page.html")
    assert "goes on: this may be another answer" in path.read_text(encoding="utf-8")


def test_the_code_loads_the_same_model(tiny: Any, bridge_of: Any) -> None:
    assert report_page._source(tiny) == "tiny-gemma"
    assert Path(report_page._source(bridge_of("llama"))).is_dir()


def test_the_code_of_the_page_runs(tiny: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sl, "load", lambda *_, **__: tiny)
    page = sl.report(tiny, prompt="110 =", answer="2", choices=["3"], out="page.html")
    code = re.search(r"<pre[^>]*>(.*?)</pre>", page.read_text("utf-8"), re.DOTALL)
    assert code
    exec(html.unescape(code[1]), {})  # noqa: S102
    assert (tmp_path / "map.html").stat().st_size > 10_000


def test_the_page_on_lengths(tiny: Any, tmp_path: Path) -> None:
    text = sl.lengths(tiny, n=6, out=tmp_path / "lengths.html").read_text("utf-8")
    shown = text_of(text)
    assert "Which of 1 to 6 ones can be told apart" in shown
    assert "Lines of random weights are wider." in shown
    assert text.count("Plotly.newPlot(") == 3 * len(SCREENS)


def test_nothing_is_fetched(written: Path) -> None:
    text = written.read_text(encoding="utf-8")
    own = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=[\"'](?!data:|#)", own)


@pytest.mark.browser
@pytest.mark.parametrize(("width", "height"), [(1200, 900), (390, 880)])
def test_the_picture_is_on_the_first_screen(
    desk: Watched, width: int, height: int
) -> None:
    desk.page.set_viewport_size({"width": width, "height": height})
    desk.page.wait_for_timeout(500)
    shown = "phone" if width < 680 else "desk"
    end = desk.page.locator(f".{shown} .js-plotly-plot").first.bounding_box()
    said = desk.page.locator(".sentence").text_content()
    headline = desk.page.locator(".sl-says").text_content()
    desk.page.set_viewport_size({"width": 1280, "height": 900})
    assert end["y"] + end["height"] <= height
    assert said == headline


def page(
    tiny: Any,
    prompt: str,
    change: Any = lambda one: one,
    source: str = "m",
    shown: str = "",
) -> str:
    """The page for results of a prompt of which `change` was made."""
    found = sl.answer_by_layer(tiny, [prompt], ["2"], choices=["2", "3"])
    evidence = Evidence(change(sl.top_tokens(tiny, prompt)), change(found))
    asked = Asked(shown or prompt, "2")
    return render(evidence, sl.squash_map(tiny, prompt), asked, source=source)


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_can_be_read_by_everyone(desk: Watched) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright",
        reason="axe-playwright-python is not installed",
    )
    violations = axe.Axe().run(desk.page).response["violations"]
    assert not [one["id"] for one in violations]


def test_token_text_is_escaped(tiny: Any) -> None:
    evil = "<img src=x onerror=alert(1)>"

    def change(result: Any) -> Any:
        if "rank" in result.dims:
            return result.assign_coords(token=("rank", [evil] * len(result)))
        return result.assign_coords(answer=("prompt", [evil]))

    text = page(tiny, "110 =", change, evil, evil)
    section = Section(evil, [f"{evil} is 2 tokens."])
    text += page_of(
        "template.html.jinja",
        [section],
        {},
        title=evil,
        said=evil,
        sentence=evil,
        state="right",
        ribbon={"tokens": [(evil, 5, evil)], "most": ""},
        model=evil,
        code=evil,
    )
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

    text = page(tiny, "110 =", change, f"m{NASTY}", NASTY)
    shown = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    for part in re.findall(r"<pre[^>]*>.*?</pre>|<td>.*?</td>", shown, flags=re.DOTALL):
        plain = part.replace("\n", "") if "import squashlens" in part else part
        assert escape(plain) == plain


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("width", [1600, 1280, 390])
def test_in_a_browser(browser: Any, desk: Watched, written: Path, width: int) -> None:
    one = desk if width == 1280 else opened(browser, written, width)
    assert one.said == []
    assert one.asked == [written.as_uri()]
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width
    assert one.page.locator(".js-plotly-plot").count() == 2 * len(SCREENS)
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
def test_figures_follow_a_dark_theme(desk: Watched) -> None:
    paper = "() => document.querySelector('.js-plotly-plot').layout.paper_bgcolor"
    desk.page.emulate_media(color_scheme="dark")
    desk.page.wait_for_function(f"({paper})() === '{THEMES['dark'].paper}'")
    desk.page.emulate_media(color_scheme="light")
    desk.page.wait_for_function(f"({paper})() === '{THEMES['notebook'].paper}'")


@pytest.mark.browser
def test_hover_shows_the_datasets_value(desk: Watched, tiny: Any) -> None:
    others = dict.fromkeys([*COUNT.choices, "36"])
    found = sl.answer_by_layer(
        tiny, [COUNT.prompt], ["35"], choices=["35", *others], n_random_models=0
    )
    desk.page.set_viewport_size({"width": 1280, "height": 900})
    drawn = desk.page.locator(".desk .js-plotly-plot").first
    point = drawn.locator(".scatterlayer .trace").first.locator(".point").nth(5)
    box = point.bounding_box()
    desk.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    desk.page.wait_for_selector(".hoverlayer .hovertext")
    shown = desk.page.locator(".hoverlayer .hovertext").first.text_content()
    desk.page.mouse.move(0, 0)
    value = float(found["probability"].isel(scored=0, prompt=0, layer=5))
    assert float(shown.rpartition(" ")[2]) == pytest.approx(value, rel=1e-3)


@pytest.mark.parametrize(
    "asked",
    [
        {"choices": ["9"]},
        {"answer": "9", "instead": ["10"]},
        {"instead": ["10", "1"]},
        {"answer": "9", "instead": ["10", "1"], "prompt": None},
        {"out": "report.pdf"},
    ],
)
def test_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        sl.report("tiny-gemma", **{"prompt": "110 ="} | asked)
