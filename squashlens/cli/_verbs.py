"""The verbs: one for each public measurement, called as the function is.

They are found in the sources, without importing them: the stub of the package lists the public names, and the decorator
`squashlens.measure.session` says which figures show a result. A verb's options are the parameters of its function.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent.parent
LISTED = {"": "__init__.pyi", "paths": "paths.py"}  # the files that import the functions, by the module they are in


@dataclass(frozen=True)
class Verb:
    """A public function of squashlens as a verb of the command line."""

    name: str
    source: Path
    where: str = ""  # the module of squashlens that has the function; the package itself if empty

    @property
    def function(self) -> Callable[..., Any]:
        """The function, which is imported only now."""
        return getattr(import_module(f"squashlens.{self.where}" if self.where else "squashlens"), self.name)

    @cached_property
    def decorator(self) -> ast.Call | None:
        """The decorator that registers the function; None for a function that is no measurement."""
        text = self.source.read_text(encoding="utf-8")  # parsing whole modules would take a fifth of a second
        found = re.search(rf"^@(measurement\([^@]*?\))\n(?:[@#].*\n)*def {self.name}\(", text, re.MULTILINE)
        call = ast.parse(found[1], mode="eval").body if found else None
        return call if isinstance(call, ast.Call) else None

    def said(self, option: str) -> Any:
        """The value of an option of the decorator, or None."""
        given = self.decorator.keywords if self.decorator else []
        return next((ast.literal_eval(one.value) for one in given if one.arg == option), None)

    @property
    def figures(self) -> tuple[str, ...]:
        """The figures: the first is --figure, others have options of their names."""
        return tuple(map(ast.literal_eval, self.decorator.args)) if self.decorator else ()

    @property
    def drawn(self) -> dict[str, str]:
        """The figures by the option that writes them."""
        return {name if place else "figure": name for place, name in enumerate(self.figures)}

    @property
    def summary(self) -> str:
        """The first sentence of the function's docstring."""
        from squashlens.cli._options import first_sentence

        tree = ast.parse(self.source.read_text(encoding="utf-8")).body
        functions = (node for node in tree if isinstance(node, ast.FunctionDef) and node.name == self.name)
        return first_sentence(ast.get_docstring(next(functions)) or "")


def measurements() -> Iterator[Verb]:
    """All public measurements."""
    for where, listing in LISTED.items():
        for node in ast.parse((PACKAGE / listing).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                module = node.module.removeprefix("squashlens.").replace(".", "/")
                found = [Verb(alias.name, PACKAGE / f"{module}.py", where) for alias in node.names]
                yield from (verb for verb in found if verb.source.is_file() and verb.decorator)


WRITING = ("report", "paper")  # verbs whose functions write files and return no result
VERBS = {
    verb.name: verb
    for verb in sorted(measurements(), key=lambda one: (one.name not in WRITING, one.name != "report"))
    if verb.said("command") is not False
}
