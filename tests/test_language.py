"""Plain English in what users read: the README, the docs, docstrings, and the texts of errors, reports and help.

Each rule names a phrase that must not come back, and what to write instead. There are few rules. A rule that hits
correct prose is dropped, not worked around.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAPER = "Transformers need glasses!"

# Phrase, what to write instead, and why.
RULES = (
    (r"\bbites?\b", "takes effect", "a private image for hooks"),
    (r"\brulers?\b", "baseline", "a private image"),
    (r"\bpatients?\b", "model", "a private image"),
    (r"\bglasses\b", "remedies", "a private image outside the paper's title"),
    (r"\bfelt\b|\bfeels?\b", "influences, or is sensitive to", "models do not feel"),
    (r"\bheard\b", "read", "models do not hear"),
    (r"\bmend(?:s|ed)?\b", "fix, or improve", "a private image"),
    (r"\bhung\b", "applied, or added", "hooks are applied to a model"),
    (r"\bhooks? (?:that )?stands?\b|\bstanding hooks?\b", "hooks on the model", "hooks do not stand"),
    (r"\bstands? on the model\b", "are on the model", "hooks do not stand"),
    (r"\bof yours\b", "your …", "inverts the sentence"),
    (r"\bfrom (?:where|which) on\b", "from there on", "must be read twice"),
    (r"\bstands? beside\b", "is compared with, or is reported with", "numbers do not stand"),
    (r"\brungs?\b", "estimate", "the glossary's word"),
    (r"\btwins?\b", "random model", "the glossary's word"),
    (r"\bbehind (?:it|them|the|its|each|that|both|one|layers?)\b", "after", "positions and bits come after each other"),
    (r"\bin sight\b", "visible", "the field's word for keys that a query may attend to"),
    (r"\blikeliest\b", "most likely", "plainer"),
    (r"\brightly\b", "correctly", "plainer"),
    (r"(?<!there )\bis none\b", "is not one, or is not a …", "must be read twice"),
    (r"\bwhat is said\b|\bsaid of\b", "the claim, or the text", "must be read twice"),
    (r"\bnot had\b|\bhad of\b", "unavailable, or got from", "must be read twice"),
    (r"\bfor how the\b", "for the way the", "must be read twice"),
    (r"\bthe sooner\b", "earlier", "inverts the sentence"),
)

WRITTEN = (
    *(ROOT / "docs").glob("*.md"),
    *(page for part in ("learn", "howto", "reference", "theory") for page in (ROOT / "docs" / part).glob("*.md")),
)
PAGES = ("README.md", *sorted(str(page.relative_to(ROOT)) for page in WRITTEN))
MODULES = tuple(sorted(str(path.relative_to(ROOT)) for path in (ROOT / "squashlens").rglob("*.py")))
SCRIPTS = tuple(
    sorted(str(path.relative_to(ROOT)) for name in ("analyses", "hooks") for path in (ROOT / name).glob("*.py"))
)


def prose_of_page(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a Markdown page, without fenced and indented code."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("    "):
            yield number, line


def prose_of_module(text: str) -> Iterator[tuple[int, str]]:
    """Docstrings and other texts of several words, without the examples in them."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for offset, line in enumerate(node.value.splitlines()):
                if not line.lstrip().startswith((">>>", "...")):
                    yield node.lineno + offset, line


def hits(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    lines = prose_of_page(text) if name.endswith(".md") else prose_of_module(text)
    found = []
    for number, line in lines:
        plain = re.sub(r"`[^`]*`", "", line).replace(PAPER, "")
        for pattern, instead, why in RULES:
            if hit := re.search(pattern, plain, flags=re.IGNORECASE if "none" not in pattern else 0):
                found.append(f"{name}:{number}: “{hit.group()}”: write {instead} ({why})")
    return found


@pytest.mark.few(2)
@pytest.mark.parametrize("names", [PAGES, SCRIPTS, MODULES], ids=["pages", "scripts", "modules"])
def test_the_language_is_plain(names: tuple[str, ...]) -> None:
    found = [hit for name in names for hit in hits(name)]
    assert not found, "\n".join(found)
