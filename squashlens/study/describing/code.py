"""The code of your own measurements: a digest of each file that can change their numbers.

These are the file of the function, and those of your own modules that it imports, directly or through others. They are
found in the text of the files, so that modules are found too that a function imports when it is called. Packages of
Python, those that are installed and squashlens itself are not among them.

The digest of a file stands for the numbers only if the module in memory is that of the file: see `imported`.
"""

import ast
import importlib.util
import site
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path

from squashlens.errors import InputError
from squashlens.study.describing.imported import Files, digest_of, in_memory, parsed, require_imports, require_same

NOT_OWN = ("squashlens", "torch", "transformers", "transformer_lens")  # their versions are in the name of a cell
INSTALLED = ("site-packages", "dist-packages")


def code_of(module: str, *others: str) -> dict[str, str]:
    """The digest of the file of each module that the numbers depend on, by the name of the module.

    An error if a module in memory is not that of its file. Of `others`, only your own modules are read.
    """
    top, todo, files, imports = module.partition(".")[0], [module, *others], {}, {}
    while todo:
        name = todo.pop()
        if name in files or (name != module and name.partition(".")[0] in NOT_OWN):
            continue
        file = _file(name)
        if file is not None and (name == module or _is_own(name, file, top)):
            files[name] = file, _content(file)
            imports[name] = _imports(files[name][1], name, file) if file.suffix == ".py" else set()
            todo += imports[name]
    for name in files:
        require_same(name, files)
    for name in files:
        require_imports(name, {other: _below(other, imports, files) for other in imports[name] if other in files})
    return {name: digest_of(content) for name, (_, content) in sorted(files.items())}


def _below(name: str, imports: Mapping[str, set[str]], files: Files) -> str:
    """A digest of a module and of all own modules that it imports, directly or through others."""
    todo, found = [name], set()
    while todo:
        one = todo.pop()
        if one in files and one not in found:
            found.add(one)
            todo += imports[one]
    return digest_of("".join(f"{one} {digest_of(files[one][1])} " for one in sorted(found)).encode())


def require_code(code: Mapping[str, str]) -> None:
    """An error if a module that is in memory is not the one whose digest is given, as after `importlib.reload`.

    A module that was not in memory when the digests were taken has the file that it was imported from since.
    """
    for name, digest in code.items():
        module = sys.modules.get(name)
        if module is None:
            continue
        if in_memory(name, module, lambda name=name: _read(name)) != digest:
            raise changed(name)


def changed(name: str) -> InputError:
    """The error for code that is not the one that the keys of cells stand for."""
    return InputError(
        f"The code of {name!r} was changed after the study was described, whose cells are named by the earlier code.",
        "Make the Study again.",
    )


def _file(name: str) -> Path | None:
    """The file of a module, which is not imported for this; None if there is no module, or none with a file."""
    module = sys.modules.get(name)
    if module is not None:
        given = getattr(module, "__file__", None)
    else:
        spec = _spec(name)
        given = spec.origin if spec is not None and spec.has_location else None
    return Path(given) if given is not None and Path(given).is_file() else None


def _spec(name: str) -> ModuleSpec | None:
    """How a module would be imported. A name in a package is looked up without importing the package."""
    parent, _, _ = name.rpartition(".")
    try:
        if not parent:
            return importlib.util.find_spec(name)
        package = sys.modules.get(parent) or _spec(parent)
        path = getattr(package, "__path__", None) or getattr(package, "submodule_search_locations", None)
        specs = (finder.find_spec(name, path) for finder in sys.meta_path if path is not None)
        return next((spec for spec in specs if spec is not None), None)
    except Exception:  # whatever a finder raises, no module is found
        return None


def _is_own(name: str, file: Path, top: str) -> bool:
    """Whether a module belongs to the user: to the package of the measurement, or to none that is installed."""
    whole = file.resolve()
    installed = set(INSTALLED) & set(whole.parts) or any(whole.is_relative_to(folder) for folder in _installed())
    return name.partition(".")[0] == top or not installed


@cache
def _installed() -> frozenset[Path]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [sysconfig.get_path(name) for name in names] + [*site.getsitepackages(), site.getusersitepackages()]
    return frozenset(Path(folder).resolve() for folder in folders if folder)


def _read(name: str) -> bytes:
    file = _file(name)
    return b"" if file is None else _content(file)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"{str(file)!r} cannot be read: {error.strerror}.", "Check the permissions.") from error


def _imports(content: bytes, name: str, file: Path) -> set[str]:
    """The names of all modules that a file may import, with the packages they are in."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    found = {package} - {""}
    for node in ast.walk(parsed(content)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inside = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*inside, *([node.module] if node.module else [])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    parts = [name.split(".") for name in found if name]
    return {".".join(part[:end]) for part in parts for end in range(1, len(part) + 1)} - {name}
