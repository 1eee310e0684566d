"""The page in a browser: numbers, clicks and keys, hostile tokens, no requests, and readable by everyone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import squashlens as sl
from tests.pages.maps.made import HOSTILE, made

pytestmark = pytest.mark.browser
PROMPT = sl.example_models.EXAMPLE_PROMPT
WIDTHS = (390, 900, 1600)


@pytest.fixture(scope="module")
def written(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    found = sl.squash_map(tiny, PROMPT, knockout="attention")
    return found.save(tmp_path_factory.mktemp("map") / "map.html"), found.result


def number(value: float) -> float:
    """A number as the page shows it."""
    return float(f"{np.float32(value):.4g}")


def table_of(page: Any) -> list[list[str]]:
    if not page.locator(".sl-table").evaluate("one => one.open"):
        page.click(".sl-table summary")
    page.wait_for_selector(".sl-table tbody tr")
    return page.eval_on_selector_all(
        ".sl-table tbody tr",
        "rows => rows.map(row => [...row.children].map(cell => cell.textContent))",
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("width", WIDTHS)
def test_it_opens_from_a_file(
    watched: Any, written: tuple[Path, Any], width: int
) -> None:
    one = watched(width)
    page = one.open(written[0])
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert (
        page.locator(".sl-ribbon [role=option]").count() == written[1].sizes["position"]
    )
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert one.said == []
    assert one.asked == [written[0].as_uri()]


def test_clicks_and_keys_change_the_query_and_the_numbers(
    watched: Any, written: tuple[Path, Any]
) -> None:
    path, found = written
    one = watched()
    page = one.open(path)

    def check(query: int, name: str) -> None:
        assert page.locator("[aria-selected=true]").get_attribute("data-start") == str(
            query
        )
        rows = table_of(page)
        assert len(rows) == query + 1
        for position, row in enumerate(rows):
            expected = [
                number(value)
                for value in found[name].sel(query=query, position=position).values
            ]
            assert [float(cell) for cell in row[2:]] == expected

    check(found.sizes["position"] - 1, "jacobian")
    page.get_by_label("Colour").select_option("path_bound")
    page.click("[data-start='9']")
    check(9, "path_bound")
    page.keyboard.press("ArrowLeft")
    check(8, "path_bound")
    page.keyboard.press("End")
    page.keyboard.press("PageUp")
    check(found.sizes["position"] - 17, "path_bound")
    page.get_by_label("Go to position").fill("12")
    page.keyboard.press("Enter")
    check(12, "path_bound")
    page.get_by_label("Search").fill("many")
    page.keyboard.press("Enter")
    check([*found["token"].values].index("many"), "path_bound")
    page.get_by_label("Colour").select_option("bound_over_null")
    rows = table_of(page)
    assert {row[-1] for row in rows[:-1]} == {
        "undefined (null 0)"
    }  # at the last layer, measured and without a value
    assert float(rows[-1][-1]) == 1
    page.get_by_label("Colour").select_option(
        "jacobian"
    )  # which was not measured here, so that another is shown
    status = page.locator(".sl-status").inner_text()
    query = int(status.split()[1])
    assert "Jacobian was not measured for this query, so Path bound is shown." in status
    page.get_by_role("button", name="Copy the call that measures it (about ").click()
    call = f"sl.squash_map(model, {sl.results.provenance(found)['call']['prompt']!r}, query={query}"
    assert page.evaluate("window.copied").startswith(call)
    check(query, "path_bound")
    page.get_by_role("button", name="Go to query").click()
    check(found.sizes["position"] - 1, "jacobian")
    assert one.said == []


def test_cells_say_what_they_are_and_where_their_paths_go(
    watched: Any, written: tuple[Path, Any]
) -> None:
    path, found = written
    page = watched().open(path)
    last = found.sizes["position"] - 1
    heat = page.locator(".sl-heat")
    heat.focus()
    for key in ("Home", "ArrowUp", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    text = page.locator(".sl-cell").inner_text()
    here = found.sel(query=last, layer=1, position=2)
    assert f"Token 2 “many”, layer 1, to query {last}" in text
    for label, name in (("Jacobian", "jacobian"), ("Path bound", "path_bound")):
        assert f"{label} {number(float(here[name])):.4g}" in text
    ways = found.sel(traced=last, block=1, position=2)
    assert f"share {number(float(ways['way_share'][0])):.4g}" in text
    assert "Where its paths go in block 1" in text
    page.keyboard.press("Enter")
    assert page.locator("[aria-selected=true]").get_attribute("data-start") == "2"
    box = heat.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.08, box["y"] + box["height"] * 0.5)
    assert "Path bound" in page.locator(".sl-hover").inner_text()
    page.mouse.click(box["x"] + box["width"] * 0.05, box["y"] + 12)
    assert f"layer {found.sizes['layer'] - 1}" in page.locator(".sl-cell").inner_text()


def test_the_prediction_is_on_top(watched: Any, written: tuple[Path, Any]) -> None:
    path, found = written
    page = watched().open(path)
    says = page.locator(".sl-says")
    assert f"the model predicts “{found['next_token'].values[-1]}”" in says.inner_text()
    page.click("[data-start='9']")
    one = found.sel(query=9)
    norms = one["path_bound"].sel(layer=0).values[:9]
    assert (
        f"predicts “{one['next_token'].item()}” ({percent(one['next_probability'].item())})"
        in says.inner_text()
    )
    assert (
        f"({norms.argmax()}) has the most influence (path bound, {percent(norms.max() / norms.sum())} of"
        in (says.inner_text())
    )
    matter = page.locator(".sl-matters").evaluate_all(
        "all => all.map(one => Number(one.dataset.start))"
    )
    most = norms[norms.argsort()[::-1]][: len(matter)]
    assert sorted(norms[matter]) == sorted(most)
    assert most[:-1].sum() < norms.sum() / 2 <= most.sum()
    page.click("[data-start='1']")
    assert (
        f"The only earlier token is “{found['token'].values[0]}” (0)."
        in says.inner_text()
    )
    assert page.locator("abbr", has_text="query").first.get_attribute("title")


def layer_of(page: Any) -> Any:
    return page.locator(".sl-controls label", has_text="Layer").locator("select")


def percent(share: float) -> str:
    within = "over 99 %" if share > 0.99 else f"{float(f'{100 * share:.2g}'):g} %"
    return "under 0.01 %" if 0 < share < 1e-4 else within


def test_a_path_can_be_drawn_alone(watched: Any, written: tuple[Path, Any]) -> None:
    path, found = written
    page = watched().open(path)
    ratios = found["path_over_null"].sel(traced=found.sizes["position"] - 1).values
    shown = page.locator(".sl-paths td:nth-child(3)").all_inner_texts()
    assert [*map(float, shown)] == pytest.approx(ratios.tolist(), rel=1e-3)
    texts = page.locator(".sl-paths td:nth-child(2)").all_inner_texts()
    assert len({*texts}) == len(texts)
    assert all(text.startswith("layer 0: ") for text in texts)
    picture = "document.querySelector('.sl-heat').toDataURL()"
    whole = page.evaluate(picture)
    page.locator(".sl-paths [aria-pressed]").nth(1).click()
    assert page.locator(".sl-paths button[aria-pressed=true]").inner_text() == "2"
    assert page.evaluate(picture) != whole
    page.locator(".sl-paths [aria-pressed]").nth(1).click()
    assert page.evaluate(picture) == whole


def test_heads_readouts_and_the_reason_of_an_answer(
    watched: Any, written: tuple[Path, Any]
) -> None:
    path, found = written
    page, last = watched().open(path), found.sizes["position"] - 1
    here, why = found.sel(query=last), page.locator(".sl-why")
    names, most = (
        [here[name].item() for name in ("target", "against")],
        int(here["target_score_change"].argmin()),
    )
    lead, change = (
        number(float(here["target_score"])),
        float(here["target_score_change"][most]),
    )
    assert change < 0
    reason = f"Why “{names[0]}” and not “{names[1]}”: log-odds {lead:g}; without “{found['token'].values[most]}”"
    assert why.inner_text().startswith(f"{reason} ({most}) −{-change:.2g}")
    first = page.locator(".sl-readout tbody tr").nth(1).inner_text().split("\t")
    read = here.isel(layer=-2, rank=0)
    assert first[:2] == [
        str(found.sizes["layer"] - 2),
        f"“{read['readout_token'].item()}” {percent(float(read['readout_probability']))}",
    ]
    trace = found.sel(traced=last, path=0)
    places = trace["path_position"].values
    block = int((places[1:] != places[:-1]).argmax())
    head, reader = int(trace["path_head"][block]), int(places[block + 1])
    attention = found["head_attention"].sel(traced=reader, block=block, head=head)
    named = page.locator(".sl-paths .sl-head").first
    named.focus()
    assert named.inner_text() == f"head {head}"
    said = page.locator(".sl-hover").inner_text()
    assert f"Head {head} of block {block} attends from token {reader} " in said
    assert f"({int(attention.argmax())}) {percent(float(attention.max()))}" in said
    page.get_by_label("Colour").select_option("target_score_change")
    layer_of(page).select_option(
        "2"
    )  # a knockout has no layers: the ribbon shows it, and the cells norms
    label = page.locator(f"[data-start='{most}']").get_attribute("aria-label")
    assert float(label.rpartition(", ")[2]) == number(change)
    assert [
        "norm of the" in text for text in page.locator(".sl-legend").all_inner_texts()
    ] == [False, True]
    page.click("[data-start='9']")  # of which none was measured
    assert not why.is_visible()
    assert not page.locator(".sl-readout").is_visible()


def test_two_maps_stand_side_by_side(watched: Any, tmp_path: Path) -> None:
    one, other = (sl.squash_map(made(list(tokens))) for tokens in ("abcd", "efgh"))
    opened = watched(1200)
    page = opened.open(one.save(tmp_path / "two.html", beside=other))
    left, right = (box.bounding_box() for box in page.locator(".sl-map").all())
    assert left["x"] + left["width"] <= right["x"]
    page.locator(".sl-map").nth(1).locator("[data-start='1']").click()
    chosen = [
        box.get_attribute("data-start")
        for box in page.locator("[aria-selected=true]").all()
    ]
    assert chosen == ["3", "1"]
    assert opened.said == []


def test_each_scale_of_colours_is_said(watched: Any, written: tuple[Path, Any]) -> None:
    """The ribbon's colours span one layer, and those of the heat map all."""
    path, found = written
    legends = watched().open(path).locator(".sl-legend")
    values = found["jacobian"].sel(query=found.sizes["position"] - 1).values
    for legend, shown, where in (
        (legends.nth(0), values[0], "layer 0"),
        (legends.nth(1), values, "each layer"),
    ):
        text, above = legend.inner_text(), shown[shown > 0]
        assert [float(end) for end in text.split()[:2]] == [
            number(above.min()),
            number(above.max()),
        ]
        assert f"unit 1, from {where} to y" in text
        assert ("0 has the colour of the lower end" in text) == bool((shown == 0).any())


def test_named_spans_are_units(watched: Any, tiny: Any, tmp_path: Path) -> None:
    spans = {"</b>question": range(1, 6), "ones": [8, 6], "\u202eone more": [10]}
    found = sl.squash_map(tiny, PROMPT, method="none", spans=spans)
    data = found._data()["spans"]
    assert [data["names"][at] for at in (1, 6, 10)] == [
        "</b>question",
        "ones",
        "\\u202eone more",
    ]
    assert data["of"][:11] == [-1, 0, 0, 0, 0, 0, 1, -1, 1, -1, 2]
    again = sl.squash_map(
        sl.results.open(sl.results.save(found.result, tmp_path / "map.nc"))
    )
    one = watched()
    page = one.open(again.save(tmp_path / "map.html"))
    page.get_by_label("Units").select_option("span")
    groups = page.locator(".sl-ribbon [role=option]")
    starts = [
        int(start)
        for start in groups.evaluate_all("all => all.map(one => one.dataset.start)")
    ]
    assert starts == [0, 1, 6, 7, 8, *range(9, found.result.sizes["position"])]
    assert groups.nth(1).inner_text() == "</b>question"
    page.get_by_label("Colour").select_option("path_bound")
    here = found.result["path_bound"].sel(
        query=found.result.sizes["position"] - 1, layer=0
    )
    assert float(
        groups.nth(1).get_attribute("aria-label").rpartition(", ")[2]
    ) == number(float(here[1:6].max()))
    groups.nth(1).click()
    assert "Query 5" in page.locator(".sl-status").inner_text()
    assert one.said == []


@pytest.mark.slow
def test_hostile_tokens_stay_text(watched: Any, tmp_path: Path) -> None:
    one = watched()
    page = one.open(sl.squash_map(made([*HOSTILE, "end"])).save(tmp_path / "map.html"))
    page.click("summary:has-text('Provenance')")
    for position in range(len(HOSTILE)):
        page.locator(f"[data-start='{position}']").click()
        table_of(page)
    page.get_by_label("Units").select_option("line")
    assert page.title() == "Squash map – squashlens"
    assert page.locator(".sl-map img, .sl-map script").count() == 0
    shown = page.locator(".sl-map").inner_text()
    assert not {"\u202e", "\x00", "\u2028"} & set(shown)
    assert "\\u{202e}reversed" in shown
    assert "<img␣src=x␣onerror" in shown
    assert "10,000 characters" in shown or "xxxxx" in shown
    assert page.evaluate("document.documentElement.scrollWidth") <= 900
    assert len(one.asked) == 1
    assert one.said == []


def test_the_policy_allows_nothing_else(
    watched: Any, written: tuple[Path, Any]
) -> None:
    one = watched()
    page = one.open(written[0])
    page.evaluate(
        """() => { const one = document.createElement('script'); one.textContent = 'document.title = "broken"';
        document.body.append(one); const image = new Image(); image.src = 'https://example.org/x.png';
        document.body.append(image); }"""
    )
    page.wait_for_timeout(200)
    assert page.title() != "broken"
    assert len(one.said) >= 2
    assert all("Content Security Policy" in text for text in one.said)


def test_a_long_prompt_has_a_window_and_an_overview(
    watched: Any, tmp_path: Path
) -> None:
    tokens = [f"t{k}" for k in range(4096)]
    found = made(tokens, layers=7, queries=range(127, 4096, 128))
    one = watched()
    page = one.open(sl.squash_map(found).save(tmp_path / "long.html"))
    options = page.locator(".sl-ribbon [role=option]")
    assert options.count() == 512
    assert page.locator("[aria-selected=true]").inner_text() == "t4095"
    box = page.locator(".sl-overview").bounding_box()
    page.mouse.click(box["x"] + 2, box["y"] + 10)
    assert options.first.inner_text() == "t0"
    page.get_by_role("button", name="Later").click()
    assert options.first.inner_text() == "t512"
    page.get_by_label("Go to position").fill("1023")
    page.keyboard.press("Enter")
    page.get_by_label("Colour").select_option("path_bound")
    label = page.locator("[aria-selected=true]").get_attribute("aria-label")
    expected = found["path_bound"].sel(query=1023, layer=0, position=1023)
    assert float(label.rpartition(", ")[2]) == number(float(expected))
    assert one.said == []


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("system", "theme"), [("dark", "light"), ("dark", "auto"), ("light", "dark")]
)
def test_it_can_be_read_by_everyone(
    watched: Any, written: tuple[Path, Any], system: str, theme: str
) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright",
        reason="axe-playwright-python is not installed",
    )
    page = watched(color_scheme=system).open(written[0])
    page.get_by_label("Theme").select_option(theme)
    paper = page.evaluate(
        "getComputedStyle(document.querySelector('.sl-map')).backgroundColor"
    )
    assert paper == ("rgb(255, 255, 255)" if theme == "light" else "rgb(20, 24, 31)")
    for summary in page.locator("summary").all():
        summary.click()
    for name in ("jacobian", "bound_over_null", "target_score_change"):
        page.get_by_label("Colour").select_option(name)
        violations = axe.Axe().run(page).response["violations"]
        assert not violations, json.dumps(violations, indent=1)[:3000]


@pytest.mark.slow
def test_a_notebook_that_was_executed_and_exported_keeps_it(
    watched: Any, tmp_path: Path, tiny: Any
) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbconvert is not installed")
    nbconvert = pytest.importorskip("nbconvert", reason="nbconvert is not installed")
    shell = pytest.importorskip(
        "IPython.core.interactiveshell", reason="ipykernel is not installed"
    ).InteractiveShell
    data, metadata = shell.instance().display_formatter.format(
        sl.squash_map(tiny, PROMPT)
    )
    shell.clear_instance()
    shown = nbformat.v4.new_output(
        "execute_result", data, metadata=metadata, execution_count=1
    )
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("sl.squash_map(...)", outputs=[shown])]
    )
    text, _ = nbconvert.HTMLExporter(template_name="basic").from_notebook_node(notebook)
    (tmp_path / "exported.html").write_text(
        f"<!doctype html><title>x</title>{text}", encoding="utf-8"
    )
    one = watched()
    one.page.goto((tmp_path / "exported.html").as_uri())
    frame = one.page.frame_locator("iframe")
    frame.locator("[data-start='5']").click()
    assert "Query 5" in frame.locator(".sl-status").inner_text()
    assert one.said == []
    assert all(url.startswith(("file:", "about:")) for url in one.asked)
