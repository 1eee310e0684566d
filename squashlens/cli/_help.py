"""Help texts, taken from docstrings, and Python in a text as a user types it: ``query=9`` is ``--query 9``.

A parameter that is described "as in `collapse`" gets the description at `collapse`, so that no line sends the reader to
another function.
"""

import inspect
import re
from collections.abc import Callable, Collection
from functools import cache
from typing import Any

ELSEWHERE = re.compile(r"(?:,\s*)?\b(?:as in|as of|as for|for|see) `(\w+)`")
NAMED = re.compile(r"(?<![\w'\"`-])([a-z]\w*)=('[^'\n]*'|[-+\w](?:[\w.+-]*\w)?)?")
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


def flag(name: str) -> str:
    """An option as it is typed."""
    return f"--{name.replace('_', '-')}"


def as_typed(text: str, options: Collection[str]) -> str:
    """The text with parameters and values in the spelling of a command line that has these options."""

    def typed(found: re.Match[str]) -> str:
        name, value = found[1], (found[2] or "").removeprefix("torch.")
        # A parameter for one value may be an option for several.
        names = (name, f"{name}s", f"sequence_{name}", "model" if name == "name" else "")
        option = next((one for one in names if one in options), None)
        if option is None:
            return found[0]
        if value in ("True", "False"):
            return flag(option if value == "True" else f"no_{option}")
        plain = value.strip("'")
        return f"{flag(option)} {value if not plain or ' ' in plain else plain}".rstrip()

    return NAMED.sub(typed, text)
