"""Pages of maps in a browser, watched."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class Watched:
    """A page that keeps what it asked for and complained about."""

    def __init__(self, browser: Any, width: int = 900, **options: Any):
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, **options
        )
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on(
            "request",
            lambda request: (
                self.asked.append(request.url) if request.url[:5] != "data:" else None
            ),
        )
        self.page.add_init_script(
            "navigator.clipboard.writeText = async text => { window.copied = text; }"
        )

    def open(self, path: Path) -> Any:
        self.page.goto(path.as_uri())
        self.page.wait_for_selector(".sl-ribbon [role=option]")
        self.page.locator(".sl-more summary").first.click()
        return self.page


@pytest.fixture
def watched(browser: Any) -> Iterator[Any]:
    opened: list[Watched] = []

    def start(width: int = 900, **options: Any) -> Watched:
        opened.append(Watched(browser, width, **options))
        return opened[-1]

    yield start
    for one in opened:
        one.context.close()
