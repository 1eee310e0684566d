"""The glossary and the code name the same parameters."""

import inspect
import re
from pathlib import Path

import squashlens as sl
from squashlens.checks.arguments import description
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


def test_every_parameter_is_in_the_glossary_and_no_other() -> None:
    modules = (sl, sl.paths, sl.hooks, sl.prompts, sl.results)
    functions = [getattr(module, name) for module in modules for name in odd.names(module)]
    signatures = [inspect.signature(one, eval_str=True) for one in functions if inspect.isfunction(one)]
    used = {name for signature in signatures for name in signature.parameters}
    rows_now = listed("## Parameters")
    missing, unused = sorted(used - {*rows_now}), sorted({*rows_now} - used)
    assert rows_now == sorted(used), (
        f"In docs/glossary.md, under Parameters, add rows for {missing} and remove {unused}, in alphabetical order."
    )


def test_every_parameter_has_a_meaning_and_a_unit() -> None:
    assert all(len(row) == 3 and all(row) for row in rows("## Parameters"))


def test_errors_name_only_classes_that_a_user_can_look_up() -> None:
    """An argument of a wrong kind raises an error that describes the annotation, with names that are documented."""
    signatures = [inspect.signature(function, eval_str=True) for function in odd.public().values()]
    hints = {one.annotation for each in signatures for one in each.parameters.values()} - {inspect.Parameter.empty}
    assert len(hints) > 60
    classes = {name for hint in hints for name in re.findall(r"\b[A-Z]\w+", description(hint))}
    public_names = {name for module in odd.modules() for name in odd.names(module)}
    of_libraries = {"TransformerBridge", "Dataset", "DataArray", "Figure", "Tensor", "EvalLog"}
    assert classes - public_names == of_libraries | {"True", "False"}
    described = " ".join(map(description, hints))
    assert "growing sequence" in described
    assert not re.search(r"a integer|ndarray", described)


def test_the_page_that_the_help_names_is_about_the_figure() -> None:
    (page,) = re.findall(r"docs/(\w+\.md)", inspect.getdoc(sl.figures.of) or "")
    assert "| `of` draws |" in (ROOT / "docs" / page).read_text(encoding="utf-8")
