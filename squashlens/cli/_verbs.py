"""The verbs: one for each measurement, called as the function is. This table is the only list of them.

A verb's options are the parameters of its function. The table adds what a signature does not say: which figures show
the result, and whether the function measures a capture.
"""

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent.parent


@dataclass(frozen=True)
class Verb:
    """A public function of squashlens as a verb of the command line."""

    name: str
    figures: tuple[str, ...] = ()  # of squashlens.figures: the first is --figure, others have options of their names
    captured: bool = False  # it measures a capture, so the parameters of `capture` are options too
    where: str = ""  # the module of squashlens that has the function; the package itself if empty

    @property
    def function(self) -> Callable[..., Any]:
        """The function, which is imported only now."""
        return getattr(import_module(f"squashlens.{self.where}" if self.where else "squashlens"), self.name)

    @property
    def drawn(self) -> dict[str, str]:
        """The figures by the option that writes them."""
        return {name if place else "figure": name for place, name in enumerate(self.figures)}

    @property
    def summary(self) -> str:
        """The first sentence of the function's docstring, read from its source without importing it."""
        from squashlens.cli._reading._help import first_sentence

        stub = PACKAGE / (f"{self.where}.py" if self.where else "__init__.pyi")
        source = _sources(stub)[self.name]
        tree = ast.parse(source.read_text(encoding="utf-8"))
        functions = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == self.name)
        return first_sentence(ast.get_docstring(next(functions)) or "")


VERBS = {
    verb.name: verb
    for verb in (
        Verb("report"),
        Verb("paper"),
        Verb("path_bound", ("by_token",)),
        Verb("jacobian_norms", ("by_token",)),
        Verb("jacobian", ("jacobian",)),
        Verb("sensitivity", ("attribution",)),
        Verb("substitution_effect", ("of",)),
        Verb("profile", ("profile",)),
        Verb("squash_map"),
        Verb("audit", ("audit",)),
        Verb("composition", ("composition",), where="paths"),
        Verb("hops", ("hops",), where="paths"),
        Verb("strongest_paths", ("strongest_paths",), where="paths"),
        Verb("depth_limit", ("depth_limit",), where="paths"),
        Verb("collapse", ("collapse_curve", "collapse_heatmap"), captured=True),
        Verb("mechanism", ("mechanism",), captured=True),
        Verb("separator_ablation", ("layer_trace", "from_block_map", "retained_by_kind")),
        Verb("tokenization", ("tokenization", "splits")),
        Verb("precision", ("bits_needed",), captured=True),
        Verb("compare", ("changes",)),
        Verb("search_separators", ("separator_search",)),
        Verb("top_tokens", ("top_tokens",)),
        Verb("evaluate", ("accuracy_by_length", "error_by_length", "answer_frequencies")),
        Verb("probe", ("probe",)),
        Verb("collapse_vs_readout", ("collapse_vs_readout", "probe")),
    )
}
WRITING = ("report", "paper")  # verbs whose functions write files and return no result


@cache
def _sources(stub: Path) -> dict[str, Path]:
    """The source file of each name that a module imports from the package."""
    found = {}
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            module = node.module.removeprefix("squashlens.").replace(".", "/")
            source = PACKAGE / f"{module}.py"
            found |= {alias.name: source if source.is_file() else PACKAGE / module for alias in node.names}
    return found
