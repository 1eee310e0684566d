"""Python in a text as a user types it on the command line: ``query=9`` is ``--query 9``.

Errors and docstrings are written for Python. A parameter with its value becomes an option if the command has it.
"""

import re
from collections.abc import Collection

NAMED = re.compile(r"(?<![\w'\"`-])([a-z]\w*)=('[^'\n]*'|[-+\w](?:[\w.+-]*\w)?)?")


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
