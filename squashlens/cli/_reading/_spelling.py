"""Python in a text as a user types it on the command line: ``query=9`` is ``--query 9``.

Errors and docstrings are written for Python. A word followed by ``=`` is spelled as an option if the command has such
an option. Other text, what stands in quotes, and the names of dimensions and coordinates are unchanged.
"""

import ast
import re
import shlex
from collections.abc import Collection

from squashlens.cli._verbs import VERBS

PYTHON = re.compile(
    r"""
    (?<![\w"'])(?P<quoted>'(?:[^'\\\n]|\\.)*')(?!\w)
    | `(?:sl\.|squashlens\.)?(?:paths\.)?(?P<function>\w+)(?:\([^`]*\))?`
    | (?<![\w-])(?P<name>[a-z]\w*)=(?P<value>'(?:[^'\\\n]|\\.)*'|"[^"\n]*"|\[[^][]*\]|\([^()]*\)|[-+\w](?:[\w.+-]*\w)?)?
    | (?<![\w.'"-])(?<!dimension\ )(?<!coordinate\ )(?P<bare>[a-z][a-z0-9]*(?:_[a-z0-9]+)+)(?![\w'"(])
    """,
    re.VERBOSE,
)


def flag(name: str) -> str:
    """An option as it is typed."""
    return f"--{name.replace('_', '-')}"


def as_typed(text: str, options: Collection[str]) -> str:
    """The text with parameters and values in the spelling of a command line that has these options."""
    return PYTHON.sub(lambda found: _typed(found, options), text)


def _typed(found: re.Match[str], options: Collection[str]) -> str:
    if found["function"]:
        return f"`squashlens {found['function']}`" if found["function"] in VERBS else found[0]
    option = _option(found["name"] or found["bare"] or "", options)
    if option is None:
        return found[0]
    if found["value"] in ("True", "False"):
        return flag(option if found["value"] == "True" else f"no_{option}")
    return f"{flag(option)} {_value(found['value'])}".rstrip() if found["value"] else flag(option)


def _option(name: str, options: Collection[str]) -> str | None:
    """The option for a parameter; a parameter for one value may be an option for several."""
    names = (name, f"{name}s", f"sequence_{name}", "model" if name == "name" else "")
    return next((one for one in names if name and one in options), None)


def _value(text: str) -> str:
    """A value as words of a command line."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):  # a name such as torch.bfloat16, or a shortened list
        return text.removeprefix("torch.")
    return " ".join(shlex.quote(str(one)) for one in (value if isinstance(value, list | tuple) else [value]))
