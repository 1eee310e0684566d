"""Values as text that is the same in every process: for digests of models, of hooks, and of the code that runs.

A function is its code, its defaults, the variables that it closes over, and the globals that it and its inner functions
read. Whatever else may change what it does without being seen here (objects, classes, modules, and the code of your own
packages) is listed in `unseen`: whoever needs to know everything must look at what the function does instead. What it
reads from files, the environment or random generators of libraries is not seen.
"""

import functools
import hashlib
import sys
import sysconfig
import types
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from operator import itemgetter
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from squashlens.engine.digests import tensor_digest, tensor_digests

DEPTH = 8  # levels of nested containers that are covered
SIMPLE = bool | int | float | complex | str | bytes | np.generic | range | slice | types.EllipsisType | None
SIMPLE |= torch.dtype | torch.device | Enum | PurePath
_PLAIN = frozenset({bool, int, float, str, type(None)})  # most values; a test of the type is the fastest
_BUILTIN = types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType
_CONTAINERS = (dict, OrderedDict, defaultdict, list, tuple, set, frozenset)


def digest(value: object) -> str:
    """A digest of an object's repr, eight hexadecimal digits."""
    return sha256(repr(value))[:8]


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class Canonical:
    """How values become text: `names` of objects by id, entries of mappings to leave out, and what was not seen."""

    names: Mapping[int, str] = field(default_factory=dict)
    left_out: frozenset[str] = frozenset()
    unseen: list[str] = field(default_factory=list)
    mutable: list[str] = field(default_factory=list)  # containers, which are seen, and may change while a function runs
    begun: dict[int, Any] = field(default_factory=dict)  # functions; kept, so that no other object gets the same id

    def text(self, value: Any, depth: int = DEPTH) -> str:
        """A value as text."""
        if type(value) in _PLAIN:
            return repr(value)
        if id(value) in self.names:
            return self.names[id(value)]
        if isinstance(value, Tensor | np.ndarray):
            return self._array(value)
        if isinstance(value, SIMPLE):
            return str(value) if isinstance(value, Enum) else repr(getattr(value, "item", lambda: value)())
        if isinstance(value, Mapping | set | frozenset | list | tuple):
            return self._held(value, depth)
        if isinstance(value, nn.Module):
            return self._module(value)
        if callable(value) or isinstance(value, types.CodeType):
            return self.code(value, depth)
        if hasattr(value, "to_dict") and depth:  # a configuration of its own
            self.unseen.append(type(value).__qualname__)
            return self.text(value.to_dict(), depth)
        return self._object(value, depth)

    def _array(self, value: Tensor | np.ndarray) -> str:
        if isinstance(value, Tensor) and value.layout == torch.strided:
            return tensor_digest(value)
        if type(value) is np.ndarray and value.dtype.kind in "biuf" and value.dtype.isnative:
            return tensor_digest(torch.from_numpy(np.ascontiguousarray(value)))
        self.unseen.append(type(value).__qualname__)
        return type(value).__qualname__

    def _held(self, value: Any, depth: int) -> str:
        """A container in a user's value, which may change if it is not a tuple."""
        if not depth or type(value) not in _CONTAINERS:
            self.unseen.append(type(value).__qualname__)
        if not isinstance(value, tuple | frozenset):
            self.mutable.append(type(value).__qualname__)
        return self.container(value, depth - 1) if depth else type(value).__qualname__

    def container(self, value: Mapping[Any, Any] | Iterable[Any], depth: int) -> str:
        """The items of a container as text; those of a mapping or a set in the order of their texts."""
        if isinstance(value, Mapping):
            kept = sorted(((repr(k), v) for k, v in value.items() if k not in self.left_out), key=itemgetter(0))
            return "{" + ", ".join(f"{k}: {self.text(v, depth)}" for k, v in kept) + "}"
        inside = [self.text(v, depth) for v in value]
        return "[" + ", ".join(inside if isinstance(value, list | tuple) else sorted(inside)) + "]"

    def code(self, value: Any, depth: int = DEPTH) -> str:
        """A function as text."""
        if isinstance(value, functools.partial):
            return f"partial {self.text((value.func, value.args, *sorted(value.keywords.items())), depth - 1)}"
        if isinstance(value, types.MethodType):
            return f"method {self.text((value.__func__, value.__self__), depth - 1)}"
        if isinstance(value, type):
            return self._named(value, getattr(sys.modules.get(value.__module__), "__file__", None))
        if isinstance(value, _BUILTIN):
            if not isinstance(getattr(value, "__self__", None), types.ModuleType | type | None):
                self.unseen.append(value.__qualname__)
            return f"{getattr(value, '__module__', '')}.{value.__qualname__}"
        if not isinstance(value, types.FunctionType | types.CodeType):
            return self._object(value, depth)
        if id(value) in self.begun:  # it calls itself, or two functions share it
            return value.__qualname__ if isinstance(value, types.FunctionType) else value.co_qualname
        self.begun[id(value)] = value
        code = value if isinstance(value, types.CodeType) else value.__code__
        lines = [hashlib.sha256(code.co_code).hexdigest()[:16], repr(code.co_names)]
        if depth:
            lines += [self.text(constant, depth - 1) for constant in code.co_consts]
        else:
            self.unseen.append(code.co_qualname)
        if isinstance(value, types.FunctionType) and depth:
            cells = [contents_of(cell) for cell in value.__closure__ or ()]
            given = (*(value.__defaults__ or ()), *sorted((value.__kwdefaults__ or {}).items()), *cells)
            lines += [self.text(one, depth - 1) for one in given]
            read = {name: value.__globals__[name] for name in names_in(code) if name in value.__globals__}
            lines += [f"{name} = {self._global(one, depth - 1)}" for name, one in sorted(read.items())]
            lines += [self.text(value.__dict__, depth - 1)] if value.__dict__ else []
        return f"code {value.__qualname__ if isinstance(value, types.FunctionType) else ''} {' '.join(lines)}"

    def _global(self, value: Any, depth: int) -> str:
        """A global that a function reads: functions of installed packages only by name, if they close over nothing."""
        if isinstance(value, types.ModuleType):
            return self._named(value, getattr(value, "__file__", None))
        if isinstance(value, types.FunctionType) and not value.__closure__ and installed(value.__code__.co_filename):
            return f"{value.__module__}.{value.__qualname__}"
        return self.text(value, depth)

    def _named(self, value: Any, file: str | None) -> str:
        """The name of a class or module; those of your own may change."""
        home = str(getattr(value, "__module__", value.__name__)).partition(".")[0]
        if not (installed(file) if file else home in sys.builtin_module_names):
            self.unseen.append(value.__name__)
        return f"{home}.{getattr(value, '__qualname__', value.__name__)}"

    def _module(self, module: nn.Module) -> str:
        """A module that is not a part of the model, such as a sparse autoencoder that a hook uses."""
        self.unseen.append(type(module).__qualname__)
        held = module.state_dict(keep_vars=True)
        return f"{type(module).__qualname__} {dict(zip(held, tensor_digests([*held.values()]), strict=True))}"

    def _object(self, value: Any, depth: int) -> str:
        """An object as text: all attributes of one of squashlens's own, and the plain attributes of any other."""
        held = getattr(value, "__dict__", {})
        if type(value).__module__.startswith("squashlens.") and depth:
            return f"{type(value).__qualname__} {self.container(held, depth - 1)}"
        self.unseen.append(type(value).__qualname__)
        plain = {key: one for key, one in held.items() if isinstance(one, SIMPLE | Tensor)}
        return f"{type(value).__qualname__} {self.container(plain, 0)}" if plain else type(value).__qualname__


def names_in(code: types.CodeType) -> set[str]:
    """The names that code uses, also in the functions that are defined in it."""
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return {*code.co_names}.union(*map(names_in, inner))


def contents_of(cell: Any) -> Any:
    """What a function closes over in one cell; None while it is empty."""
    try:
        return cell.cell_contents
    except ValueError:  # still empty
        return None


@cache
def installed(file: str) -> bool:
    """Whether a file belongs to Python, to an installed package, or to squashlens."""
    path = Path(file)
    if {"site-packages", "dist-packages"} & {*path.parts} or path.is_relative_to(Path(__file__).parent.parent):
        return True
    return any(path.is_relative_to(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
