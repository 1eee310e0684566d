"""The layout of the package: few modules in a folder, and a reason beside every function with many parameters."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "squashlens"
MODULES = 10  # at most in one folder, besides `__init__.py`
PARAMETERS = 10  # more of them need a comment that says why


def functions() -> Iterator[tuple[Path, ast.FunctionDef, list[str]]]:
    """Every function of the package, with its file and the lines of that file."""
    for file in sorted(PACKAGE.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                yield file, node, text.splitlines()


def parameters(function: ast.FunctionDef) -> int:
    """The number of parameters, without the object of a method."""
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def comment(function: ast.FunctionDef, lines: list[str]) -> str:
    """The comment on the line of `def` and on the lines above the function and its decorators."""
    first = min(node.lineno for node in (function, *function.decorator_list)) - 1
    above = first
    while above > 0 and lines[above - 1].lstrip().startswith("#"):
        above -= 1
    return " ".join([*lines[above:first], lines[function.lineno - 1].partition("#")[2]])


def test_every_function_with_many_parameters_says_why() -> None:
    many = [found for found in functions() if parameters(found[1]) > PARAMETERS]
    assert len(many) > 15  # they are found at all
    unexplained = [f"{file.name}: {one.name}" for file, one, lines in many if "arameters" not in comment(one, lines)]
    assert not unexplained


def test_a_folder_has_few_modules() -> None:
    folders: dict[Path, list[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        if file.name != "__init__.py":
            folders.setdefault(file.parent, []).append(file.name)
    assert len(folders) > 20
    large = {str(folder.relative_to(PACKAGE)): len(names) for folder, names in folders.items() if len(names) > MODULES}
    assert not large
