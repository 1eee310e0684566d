"""Whether your own modules in memory are those of their files.

Python runs what it imported, and not what a file has now. A change is noticed in two ways. The digest that a file has
when a process first asks is kept until the module is imported again. And the functions and constants of the module are
compared with those that the file has, which notices a change that is older than the first question.
"""

import ast
import functools
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from squashlens.errors import InputError

Files = Mapping[str, tuple[Path, bytes]]  # the file of each module, and its content


@dataclass
class _Import:
    """What a module was when it was first seen: its file's digest, and those of the modules that it had imported."""

    mark: Any  # a module that is imported again, or reloaded, has another
    digest: str
    imports: dict[str, str] = field(default_factory=dict)


_imported: dict[str, _Import] = {}


def require_same(name: str, files: Files) -> None:
    """An error if the module in memory is not that of the file."""
    module, (file, content) = sys.modules.get(name), files[name]
    if module is None:
        return
    known = _imported.get(name)
    if known is None or known.mark is not _mark(module):
        known = _Import(_mark(module), digest_of(content))
    other = file if known.digest != digest_of(content) else _other(module, files)
    if other is not None:
        raise InputError(
            f"{str(other)!r} is not what the module {name!r} has in memory: the file was changed after Python had "
            "imported it, or the module was changed in memory.",
            "Restart Python; or call importlib.reload on the changed module, then on those that import it. Then make "
            "the Study again.",
        )
    _imported[name] = known


def require_imports(name: str, imports: Mapping[str, str]) -> None:
    """An error if a module has names from an earlier version of another."""
    known = _imported.get(name)
    if known is None:
        return
    for other, digest in imports.items():
        if other in sys.modules and known.imports.setdefault(other, digest) != digest:
            raise InputError(
                f"The module {other!r}, or one that it imports, was changed after {name!r} had imported it, and "
                f"{name!r} still has what it imported then.",
                f"Restart Python; or call importlib.reload on {other!r}, then on {name!r}, and make the Study again.",
            )


def _mark(module: ModuleType) -> Any:
    return getattr(module, "__spec__", None) or module


def in_memory(name: str, module: ModuleType, read: Callable[[], bytes]) -> str:
    """The digest of the file that a module was imported from; `read` is called for one that was not seen before."""
    known = _imported.get(name)
    if known is None or known.mark is not _mark(module):
        known = _imported[name] = _Import(_mark(module), digest_of(read()))
    return known.digest


def _other(module: ModuleType, files: Files) -> Path | None:
    """A file that has not the functions that a module has of it, or not its constants; None if all agree."""
    contents = dict(files.values())
    own = contents.get(Path(str(module.__file__)))
    if own is None or type(getattr(module, "__loader__", None)) is not SourceFileLoader:
        return None  # another loader may make other code of the same file
    for code in _codes(vars(module), files, set()):
        content = contents.get(Path(code.co_filename))
        if content is not None and _signature(code) not in _compiled(content, code.co_filename):
            return Path(code.co_filename)
    constants = _constants(own).items()  # a script that has not come to its end lacks some
    same = all(repr(vars(module)[name]) == text for name, text in constants if name in vars(module))
    return None if same else Path(str(module.__file__))


def _codes(namespace: Mapping[str, Any], modules: Collection[str], seen: set[int]) -> Iterator[CodeType]:
    """The code of all functions of a module, of its classes, and of those that it imported from `modules`."""
    for value in list(namespace.values()):
        for one in _parts(value):
            if isinstance(one, FunctionType):
                yield one.__code__
        if isinstance(value, type) and value.__module__ in modules and id(value) not in seen:
            seen.add(id(value))
            yield from _codes(vars(value), modules, seen)


def _parts(value: Any) -> Iterator[Any]:
    """A value, and the functions in it: of a property, a method, or one that a decorator made."""
    yield value
    if isinstance(value, property):
        yield from (value.fget, value.fset, value.fdel)
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__
    elif isinstance(value, functools.partial):
        yield value.func
    elif not isinstance(value, ModuleType | type) and "__wrapped__" in getattr(value, "__dict__", ()):
        yield from _parts(value.__wrapped__)


@cache
def _compiled(content: bytes, file: str) -> frozenset[Any]:
    """All functions of a file."""
    try:
        todo = [compile(content, file, "exec", dont_inherit=True)]
    except (SyntaxError, ValueError):
        return frozenset()
    found = set()
    while todo:
        code = todo.pop()
        found.add(_signature(code))
        todo += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return frozenset(found)


def _signature(code: CodeType) -> Any:
    """What a function does, as a value: its instructions, names and constants, and where it stands."""
    constants = tuple(_signature(one) if isinstance(one, CodeType) else _text(one) for one in code.co_consts)
    return code.co_qualname, code.co_firstlineno, code.co_code, constants, code.co_names, code.co_varnames


def _text(value: object) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


@cache
def _constants(content: bytes) -> dict[str, str]:
    """The numbers and texts that a file gives a name once, outside functions and conditions."""
    tree = parsed(content)
    bound: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound[node.id] += 1
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound[node.name] += 1
        elif isinstance(node, ast.Global):
            bound.update(node.names)
        elif isinstance(node, ast.alias):
            bound[(node.asname or node.name).partition(".")[0]] += 1
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            try:
                value = ast.literal_eval(node.value)
                hash(value)  # a list or dict may be meant to change
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                continue
            if bound[name] == 1:
                found[name] = repr(value)
    return found


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@cache
def parsed(content: bytes) -> ast.Module:
    try:
        return ast.parse(content)
    except (SyntaxError, ValueError):  # the module cannot be imported, or only in another encoding
        return ast.Module([], [])
