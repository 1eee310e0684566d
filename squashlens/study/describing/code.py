"""The code of your own measurements, by which their cells are named: digests of files, and of what is in memory.

The files are those of the function's module and of your own modules that it imports, directly or through others. They
are found in the text of the files, so that modules are found too that a function imports when it is called. Packages of
Python, those that are installed and squashlens itself are not among them.

Python runs what it imported and not what a file has now. So the functions, classes and plain constants in memory count
too, as far as the measurement uses them by name: code that is older than its file never has the name of the file's.
"""

import ast
import dis
import functools
import hashlib
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

from squashlens.engine.canonical import SIMPLE, Canonical, contents_of, installed, names_in, sha256
from squashlens.errors import InputError

IN_MEMORY = "in memory"  # beside the names of modules
PLAIN = SIMPLE | tuple | frozenset  # values that cannot change


def code_of(module: str, function: Any) -> dict[str, str]:
    """The digest of each file that the numbers of a function depend on, by its module, and that of what is in memory.

    Without a file of the module, a change of it could not be noticed, and there are no digests.
    """
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
        todo += _imports(content, name, file) if file.suffix == ".py" else ()
    return found | {IN_MEMORY: _in_memory(function)} if module in found else {}


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


def _in_memory(function: Any) -> str:
    """A digest of your own functions, classes and plain constants in memory that a function uses by name."""
    lines, changing, todo, seen = set[str](), set[str](), [function], {}
    constants: dict[str, Any] = {}
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, type):
            todo += [*vars(value).values(), *value.__bases__] if _is_own(sys.modules.get(value.__module__)) else []
        elif not isinstance(value, FunctionType):
            todo += _inside(value)
        elif not installed(value.__code__.co_filename):
            held = [contents_of(cell) for cell in value.__closure__ or ()]
            given = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *held]
            plain = [Canonical().text(one) for one in given if isinstance(one, PLAIN)]
            lines.add(" ".join([Canonical().code(value.__code__), *plain]))
            changing |= {
                _full(value, one.argval) for one in dis.get_instructions(value) if one.opname == "STORE_GLOBAL"
            }
            named = _named(value)
            constants |= {name: one for name, one in named.items() if isinstance(one, PLAIN)}
            todo += [*named.values(), *given, *_inside(value)]
    lines |= {f"{name} = {Canonical().text(one)}" for name, one in constants.items() if name not in changing}
    return sha256("\n".join(sorted(lines)))


def _full(function: FunctionType, name: str) -> str:
    return f"{function.__globals__.get('__name__')}.{name}"


def _named(function: FunctionType) -> dict[str, Any]:
    """The globals that a function names, and what it names of your own modules among them, by their full names."""
    names, found, todo = names_in(function.__code__), {}, [function.__globals__]
    for namespace in todo:
        for name in names & namespace.keys():
            found[f"{namespace.get('__name__')}.{name}"] = value = namespace[name]
            if _is_own(value) and all(one is not vars(value) for one in todo):
                todo.append(vars(value))
    return found


def _is_own(module: object) -> bool:
    """Whether this is a module that belongs to the user."""
    file = getattr(module, "__file__", None) if isinstance(module, ModuleType) else None
    return file is not None and not installed(file)


def _inside(value: Any) -> list[Any]:
    """The functions in a value, such as a property, a method, or what a decorator made of a function; and its class."""
    if isinstance(value, property):
        return [value.fget, value.fset, value.fdel]
    if isinstance(value, staticmethod | classmethod | MethodType):
        return [value.__func__]
    if isinstance(value, functools.partial):
        return [value.func]
    return [type(value), getattr(value, "__dict__", {}).get("__wrapped__")]
