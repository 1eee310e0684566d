"""The lists of public names, made from the sources: `make names` writes them anew.

Public are the functions under `@measurement`, those of `squashlens/figures` under `@draws`, and those of
`squashlens/hooks` under `@validated`. Other names, such as `load`, stay listed as long as their module defines them.
"""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = Path("squashlens")
LISTS = {  # the file with a list, the folders whose functions are in it, and their decorator
    "__init__.pyi": (("measure", "maps", "reporting"), "measurement("),
    "figures/__init__.py": (("figures",), "draws("),
    "hooks/__init__.py": (("hooks",), "validated"),
}


def found(root: Path, folders: tuple[str, ...], decorator: str) -> dict[str, str]:
    """The module of each function in some folders that has a decorator."""
    modules = (path for folder in folders for path in sorted((root / PACKAGE / folder).rglob("*.py")))
    return {
        node.name: ".".join(path.relative_to(root).with_suffix("").parts)
        for path in modules
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        if any(ast.unparse(one).startswith(decorator) for one in node.decorator_list)
    }


def defines(root: Path, module: str, name: str) -> bool:
    """Whether a module still defines a name."""
    path = root / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    return any(getattr(node, "name", "") == name for node in tree)


def imported(path: Path) -> dict[str, str]:
    """The module of each name that a file imports from the package."""
    return {
        alias.name: f"squashlens.{node.module}" if node.level else node.module
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def written(root: Path, listing: str) -> str:
    """The text of a file, with its list as it should be."""
    path = root / PACKAGE / listing
    folders, decorator = LISTS[listing]
    text, stub = path.read_text(encoding="utf-8"), listing.endswith("i")
    tree = ast.parse(text).body
    imports = [node for node in tree if isinstance(node, ast.ImportFrom)]
    kept = {name: module for name, module in imported(path).items() if defines(root, module, name)}
    elsewhere = imported(root / PACKAGE / "paths.py") if stub else {}
    names = {name: at for name, at in (kept | found(root, folders, decorator)).items() if name not in elsewhere}
    modules: dict[str, list[str]] = {}
    for name, module in sorted(names.items()):
        modules.setdefault(module.replace("squashlens", "", 1) if stub else module, []).append(name)
    lines = [f"from {module} import {', '.join(names)}" for module, names in sorted(modules.items())]
    whole = [alias.name for node in imports if not node.module for alias in node.names]
    lines = [f"from . import {', '.join(whole)}"] * bool(whole) + lines
    first, last = imports[0].lineno - 1, max(node.end_lineno or 0 for node in imports)
    (public,) = (node for node in tree if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")
    rows = text.splitlines()
    between, after = rows[last : public.lineno - 1], rows[public.end_lineno :]
    every = [f'    "{name}",' for name in sorted([*names, *whole])]
    return "\n".join([*rows[:first], *lines, *between, "__all__ = [", *every, "]", *after, ""])


def main() -> None:
    for listing in LISTS:
        (ROOT / PACKAGE / listing).write_text(written(ROOT, listing), encoding="utf-8")
    ruff = Path(sys.executable).with_name("ruff")
    files = [str(PACKAGE / listing) for listing in LISTS]
    for command in (["check", "--fix", "--select", "I"], ["format"]):
        subprocess.run([ruff, *command, "--quiet", *files], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
