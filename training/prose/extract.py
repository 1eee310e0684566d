"""Prose from HTML pages: paragraphs of running text, without markup, listings, navigation and headings."""

import re
from html.parser import HTMLParser

__all__ = ["paragraphs_of"]

# Elements whose whole content is left out: listings, drawings, navigation, headings.
_LEFT_OUT = {"pre", "script", "style", "svg", "nav", "head", "button", "select", "math"}
_LEFT_OUT |= {f"h{level}" for level in range(1, 7)}
_LEFT_OUT_CLASSES = {
    "sphinxsidebar",
    "related",
    "navheader",
    "navfooter",
    "footer",
    "nosearch",
    "toc",
    "contents",
}
_LEFT_OUT_CLASSES |= {
    "highlight",
    "sidebar",
    "menu-bar",
    "nav-wrapper",
    "nav-wide-wrapper",
}
_BLOCKS = {
    "p",
    "div",
    "li",
    "ul",
    "ol",
    "dl",
    "dd",
    "dt",
    "td",
    "th",
    "tr",
    "table",
    "blockquote",
    "section",
    "body",
}
_BLOCKS |= {"article", "main", "aside", "header", "footer", "hr", "center", "html"}
_VOID = {
    "br",
    "img",
    "hr",
    "input",
    "meta",
    "link",
    "col",
    "wbr",
    "area",
    "base",
    "source",
}
_FEWEST_WORDS = 8
_FEWEST_LETTERS = 0.75  # share of letters and spaces


class _Blocks(HTMLParser):
    """Collects the text between the borders of block elements."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[str] = []
        self._pieces: list[str] = []
        self._inside: tuple[str, int] | None = (
            None  # the element that is left out, and how deep it nests in itself
        )

    def flush(self) -> None:
        self.blocks.append("".join(self._pieces))
        self._pieces.clear()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._inside is not None:
            name, depth = self._inside
            self._inside = (name, depth + (tag == name))
            return
        classes = set((dict(attrs).get("class") or "").split())
        if tag not in _VOID and (tag in _LEFT_OUT or classes & _LEFT_OUT_CLASSES):
            self.flush()
            self._inside = (tag, 1)
        elif tag in _BLOCKS:
            self.flush()
        elif tag == "br":
            self._pieces.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if self._inside is not None:
            name, depth = self._inside
            depth -= tag == name
            self._inside = (name, depth) if depth else None
        elif tag in _BLOCKS:
            self.flush()

    def handle_data(self, data: str) -> None:
        if self._inside is None:
            self._pieces.append(data)


def _is_prose(text: str) -> bool:
    """Whether a block reads like sentences: enough words, mostly letters, and a sentence's end somewhere."""
    letters = sum(c.isalpha() or c == " " for c in text)
    return (
        len(text.split()) >= _FEWEST_WORDS
        and letters >= _FEWEST_LETTERS * len(text)
        and re.search(r"[.!?:;][\"')\]”’]*( |$)", text) is not None
    )


def paragraphs_of(page: str) -> list[str]:
    """The paragraphs of prose of an HTML page, each on one line, in the order of the page."""
    parser = _Blocks()
    parser.feed(page)
    parser.close()
    parser.flush()
    texts = (
        re.sub(r"\s+", " ", block.replace("¶", "")).strip() for block in parser.blocks
    )
    return [text for text in texts if _is_prose(text)]
