"""The code of your own measurements, by which their cells are named: digests of files.

The files are those of the function's module and of your own modules that it imports, directly or through others. They
are found in the text of the files, so that modules are found too that a function imports when it is called. Packages of
Python, those that are installed and squashlens itself are not among them.

Python runs what it imported and not what a file has now. So a module that is older than its file is refused.
"""

import ast
import hashlib
import inspect
import sys
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from squashlens.engine.digests import installed
from squashlens.errors import InputError

AGAIN = "Restart Python, or use `importlib.reload` for this module and those that use it."
_looked_at: dict[str, tuple[Any, str]] = {}  # modules as they were imported, and the digests that their files had


def code_of(module: str, function: Any) -> dict[str, str]:
    """The digest of each file that the numbers of a function depend on, by its module."""
    top, todo, found = module.partition(".")[0], [module, str(getattr(function, "__module__", module))], {}
    while todo:
        name = todo.pop()
        file = None if name in found else _file(name)
        if file is None or (installed(str(file)) and name.partition(".")[0] != top):
            continue
        try:
            content = file.read_bytes()
        except OSError as error:
            raise InputError(f"{str(file)!r} cannot be read: {error.strerror}.", "Check the permissions.") from error
        found[name] = hashlib.sha256(content).hexdigest()
        _require_current(name, file, content, found[name])
        todo += _imports(content, name, file) if file.suffix == ".py" else ()
    if module not in found:
        raise InputError(
            f"The module {module!r} is in no file, so that a change of it could not be noticed.",
            "Write your measurement into a module of its own, and give that as 'module:function'.",
        )
    return found


def _file(name: str) -> Path | None:
    """The file of a module, which is not imported for this; None if there is no module, or none with a file."""
    module, path = sys.modules.get(name), None
    if module is not None:
        given = getattr(module, "__file__", None)
        return Path(given) if given is not None and Path(given).is_file() else None
    parent = name.rpartition(".")[0]
    if parent:
        path = getattr(sys.modules.get(parent), "__path__", None)
        init = _file(parent) if path is None else None
        path = path or ([str(init.parent)] if init is not None and init.name == "__init__.py" else [])
    spec = PathFinder.find_spec(name, path)
    return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None


def _require_current(name: str, file: Path, content: bytes, digest: str) -> None:
    """An error for a module that has other code than its file, or old functions of a module that was imported again."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if spec is None or type(spec.loader) is not SourceFileLoader:
        return
    spec_before, before = _looked_at.setdefault(name, (spec, digest))
    _looked_at[name] = (spec, digest) if spec_before is not spec else (spec, before)  # imported again
    edited, codes = _looked_at[name][1] != digest, _codes(compile(content, file, "exec", dont_inherit=True))
    for value in (one for one in vars(module).values() if isinstance(one, type | FunctionType)):
        home = sys.modules.get(value.__module__)
        if home is None or installed(str(getattr(home, "__file__", ""))) or "." in value.__qualname__:
            continue
        if home is not module and all(one is not value for one in vars(home).values()):
            raise InputError(f"{value.__module__} was imported again, and {name} has its old {value.__name__}.", AGAIN)
        edited |= home is module and getattr(inspect.unwrap(value), "__code__", codes[0]) not in codes
    if edited:
        raise InputError(f"{str(file)!r} was edited after it was imported.", AGAIN)


def _codes(code: CodeType) -> list[CodeType]:
    return [code, *(inner for one in code.co_consts if isinstance(one, CodeType) for inner in _codes(one))]


def _imports(content: bytes, name: str, file: Path) -> set[str]:
    """The names of all modules that a file may import, with the packages they are in."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    found = {package}
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # it is imported when a function is called, and has no code yet
        return set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inside = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*inside, *([node.module] if node.module else [])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    parts = [name.split(".") for name in found if name]
    return {".".join(part[:end]) for part in parts for end in range(1, len(part) + 1)}
