"""The glossary and the code name the same parameters."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import squashlens as sl
from squashlens.checks.arguments import description, options_of
from tests import odd

ROOT = Path(__file__).parent.parent
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    """The text under a heading, up to the next one of any level."""
    _, _, rest = GLOSSARY.partition(f"\n{heading}\n")
    return re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(heading: str) -> list[list[str]]:
    table = [line.strip("|").split(" | ") for line in section(heading).splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in table]


def listed(heading: str) -> list[str]:
    return [row[0].strip("`") for row in rows(heading)]


def public(module: ModuleType) -> list[str]:
    """The names of `__all__`; where a module has none, those that it defines."""
    return list(getattr(module, "__all__", None) or odd.own(module))


def measurements() -> Iterator[Any]:
    for module in (sl, sl.paths, sl.hooks, sl.prompts, sl.results):
        found = [getattr(module, name) for name in public(module)]
        yield from (one for one in found if inspect.isfunction(one))


def test_every_parameter_is_in_the_glossary_and_no_other() -> None:
    parameters = [one for each in measurements() for one in inspect.signature(each, eval_str=True).parameters.values()]
    used = {name for one in parameters for name in (one.name, *options_of(one.annotation))}
    assert listed("## Parameters") == sorted(used)


def test_every_parameter_has_a_meaning_and_a_unit() -> None:
    assert all(len(row) == 3 and all(row) for row in rows("## Parameters"))


def test_errors_name_only_classes_that_a_user_can_look_up() -> None:
    """An argument of a wrong kind raises an error that describes the annotation, with names that are documented."""
    modules = [sl, *(getattr(sl, name) for name in sl.__all__ if isinstance(getattr(sl, name), ModuleType))]
    functions = [getattr(module, name) for module in modules for name in public(module)]
    hints = {
        parameter.annotation
        for function in functions
        if callable(function)
        for parameter in inspect.signature(function, eval_str=True).parameters.values()
    } - {inspect.Parameter.empty}
    assert len(hints) > 60
    classes = {name for hint in hints for name in re.findall(r"\b[A-Z]\w+", description(hint))}
    public_names = {name for module in modules for name in public(module)}
    assert classes - public_names == {"TransformerBridge", "Dataset", "DataArray", "Figure", "Tensor", "True", "False"}
    described = " ".join(map(description, hints))
    assert "growing sequence" in described
    assert not re.search(r"a integer|ndarray", described)


def test_the_page_that_the_help_names_is_about_the_figure() -> None:
    (page,) = re.findall(r"docs/(\w+\.md)", inspect.getdoc(sl.figures.of) or "")
    assert "| `of` draws |" in (ROOT / "docs" / page).read_text(encoding="utf-8")
