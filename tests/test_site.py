"""The built documentation site, opened in a browser. `make docs` builds it and sets SQUASHLENS_SITE to its folder.

A page whose figures are blank, whose scripts fail, or that asks another host for something passes every check of the
build. So every page is opened here, wide and light, and narrow and dark.
"""

import os
from pathlib import Path
from typing import Any

import pytest

SITE = os.environ.get("SQUASHLENS_SITE")
if SITE is None:
    pytest.skip(
        "the site is checked by `make docs`, which builds it", allow_module_level=True
    )

HTML = Path(SITE).resolve()
PAGES = sorted(str(page.relative_to(HTML)) for page in HTML.rglob("*.html"))
PATIENCE = 300_000  # milliseconds for a page, of which some have many figures, on a machine that does other things too
WAYS = {"wide": (1280, "light"), "narrow": (390, "dark")}
DRAWN = """() => [...document.querySelectorAll('.sl-figure')].every(
    (one) => one.querySelector('.main-svg') && one.querySelector('.plot path, .hm image, .plot rect, .trace path'))"""
READABLE = (
    "index",
    "start",
    "errors",
    "limits",
    "glossary",
    "learn/squash",
    "learn/ablation",
    "gallery/index",
    "fig5_collapse",
    "hooks",
    "reference/measurements",
    "notation",
)
# The theme opens its menus with labels of hidden checkboxes; pandas leaves cells of a table's head empty.
NOT_OURS = {
    "label",
    "region",
    "landmark-unique",
    "landmark-no-duplicate-banner",
    "empty-table-header",
}


def watched(context: Any, name: str, wrong: list[tuple[str, str]]) -> Any:
    """An empty page that notes complaints of its scripts, and requests to other hosts."""

    def complained(message: Any) -> None:
        if message.type in ("error", "warning"):
            wrong.append((name, message.text))

    def asked(request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            wrong.append((name, request.url))

    page = context.new_page()
    page.on("console", complained)
    page.on("pageerror", lambda error: wrong.append((name, str(error))))
    page.on("request", asked)
    return page


@pytest.mark.browser
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", WAYS)
def test_pages_open_without_errors_requests_or_blank_figures(
    browser: Any, way: str
) -> None:
    width, scheme = WAYS[way]
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme
    )
    wrong: list[tuple[str, str]] = []
    figures = 0
    for name in PAGES:
        page = watched(context, name, wrong)
        page.goto((HTML / name).as_uri(), timeout=PATIENCE)
        for box in page.query_selector_all(".sl-figure"):
            box.scroll_into_view_if_needed()
            figures += 1
        page.wait_for_function(DRAWN, timeout=PATIENCE)
        if page.evaluate(
            "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        ):
            wrong.append((name, "is wider than the screen"))
        broken = "[...document.images].filter((i) => i.complete && !i.naturalWidth).map((i) => i.src)"
        wrong += [(name, f"{source} shows nothing") for source in page.evaluate(broken)]
        page.close()
    assert not wrong, "\n".join(map(str, wrong))
    assert figures > 25


@pytest.mark.browser
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", WAYS)
def test_pages_can_be_read_by_everyone(browser: Any, way: str) -> None:
    """axe-core's rules for contrast, names, order and structure."""
    from axe_playwright_python.sync_playwright import Axe

    width, scheme = WAYS[way]
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme
    )
    wrong = []
    for name in READABLE:
        page = context.new_page()
        page.goto((HTML / f"{name}.html").as_uri(), timeout=PATIENCE)
        for violation in Axe().run(page).response["violations"]:
            if violation["id"] not in NOT_OURS:
                wrong.append(
                    (
                        name,
                        violation["id"],
                        [node["target"] for node in violation["nodes"]][:3],
                    )
                )
        page.close()
    assert not wrong, "\n".join(map(str, wrong))
