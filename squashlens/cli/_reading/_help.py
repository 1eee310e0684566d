"""Help texts, taken from docstrings: what a function measures, and what each of its parameters sets.

A parameter that is described "as in `collapse`" gets the description at `collapse`, so that no line sends the reader to
another function.
"""

import inspect
import re
from collections.abc import Callable
from functools import cache
from typing import Any

ELSEWHERE = re.compile(r"(?:,\s*)?\b(?:as in|as of|as for|for|see) `(\w+)`")
SECTION = re.compile(r"^(?:\w+:$|Source:|>>> )", re.MULTILINE)


def plain(text: str) -> str:
    """Text without the marks of reStructuredText, each paragraph in one line."""
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    text = re.sub(r"`+([^`]*)`+", r"\1", "\n\n".join(paragraphs)).replace("**", "")
    return re.sub(r"(?<!\w)\*(\w[^*]*)\*(?!\w)", r"\1", text).strip()


def first_sentence(docstring: str) -> str:
    """The first sentence of a docstring."""
    return re.split(r"(?<=[.?!])\s+(?=[A-Z‖`])", plain(docstring.split("\n\n")[0]))[0]


def about(function: Callable[..., Any]) -> str:
    """What a function measures: its docstring up to the first section."""
    return plain(SECTION.split(inspect.getdoc(function) or "")[0])


def help_for(function: Callable[..., Any], name: str) -> str:
    """The description of a parameter, from the docstring of its function or of the function that it refers to."""
    text = _described(function, name)
    text = text[:1].upper() + text[1:]  # a name in backticks stays as it is
    return f"{plain(text).rstrip('.')}."


def _described(function: Callable[..., Any], name: str) -> str:
    """A parameter's description; where it refers to another function, with the description there."""
    text = _arguments(function).get(name, "")
    reference = ELSEWHERE.search(text)
    other = _public(reference[1]) if reference else None
    if other in (None, function):
        return text
    rest = ELSEWHERE.sub("", text, count=1).strip(" .;:,")
    there = (_described(other, name) or _described(other, f"{name}s")).rstrip(".")
    if not there or not rest:
        return there
    return f"{there}. {rest if rest[0].isupper() else f'Here: {rest}'}"


@cache
def _arguments(function: Callable[..., Any]) -> dict[str, str]:
    """Descriptions by parameter; one entry may describe several, as in `norm, scale: …`."""
    from docstring_parser import DocstringStyle, parse

    parsed = parse(inspect.getdoc(function) or "", style=DocstringStyle.GOOGLE)
    return {name.strip(): one.description or "" for one in parsed.params for name in one.arg_name.split(",")}


def _public(name: str) -> Any:
    """The public function of this name; None if there is none."""
    import squashlens as sl

    return next((getattr(place, name) for place in (sl, sl.paths, sl.prompts) if hasattr(place, name)), None)
