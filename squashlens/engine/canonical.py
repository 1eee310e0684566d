"""Values as text that is the same in every process: for digests of models, of hooks, and of the code that runs.

A function is its code, its defaults, the variables that it closes over, and the globals that it reads. A module is its
class and all its weights. Of an object of unknown kind only the type and its plain attributes are known, so `unseen`
lists it: whoever needs to know everything must look at what it does instead.
"""

import functools
import hashlib
import sysconfig
import types
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from squashlens.engine.digests import tensor_digest, tensor_digests

DEPTH = 8  # levels of nested containers that are covered
SIMPLE = bool | int | float | complex | str | bytes | torch.dtype | torch.device | np.generic | range | Enum | None
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
            if not depth or type(value) not in _CONTAINERS:
                self.unseen.append(type(value).__qualname__)
            return self.container(value, depth - 1) if depth else type(value).__qualname__
        if isinstance(value, nn.Module):
            return self._module(value, depth)
        if callable(value) or isinstance(value, types.CodeType):
            return self.code(value, depth)
        if hasattr(value, "to_dict") and depth:  # a configuration of its own
            return self.text(value.to_dict(), depth)
        return self._object(value)

    def _array(self, value: Tensor | np.ndarray) -> str:
        if isinstance(value, Tensor):
            return tensor_digest(value)
        if value.dtype.kind in "biuf" and value.dtype.isnative:
            return tensor_digest(torch.from_numpy(np.ascontiguousarray(value)))
        return self.text(value.tolist())

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
            return f"partial {self.text([value.func, value.args, value.keywords], depth - 1)}"
        if isinstance(value, types.MethodType):
            return f"method {self.text([value.__func__, value.__self__], depth - 1)}"
        if isinstance(
            value, type | types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType
        ):
            return f"{getattr(value, '__module__', '')}.{value.__qualname__}"
        if not isinstance(value, types.FunctionType | types.CodeType):
            return self._object(value)
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
            cells = [_contents_of(cell) for cell in value.__closure__ or ()]
            given = (*(value.__defaults__ or ()), *sorted((value.__kwdefaults__ or {}).items()), *cells)
            lines += [self.text(one, depth - 1) for one in given]
            read = {name: value.__globals__[name] for name in code.co_names if name in value.__globals__}
            lines += [f"{name} = {self._global(one, depth - 1)}" for name, one in sorted(read.items())]
        return f"code {value.__qualname__ if isinstance(value, types.FunctionType) else ''} {' '.join(lines)}"

    def _global(self, value: Any, depth: int) -> str:
        """A global that a function reads: functions and modules of installed packages only by name."""
        file = getattr(value, "__file__", None) or getattr(getattr(value, "__code__", None), "co_filename", None)
        if isinstance(value, types.ModuleType):
            if file is not None and not installed(file):
                self.unseen.append(value.__name__)
            return value.__name__
        if isinstance(value, types.FunctionType) and installed(str(file)):
            return f"{value.__module__}.{value.__qualname__}"
        return self.text(value, depth)

    def _module(self, module: nn.Module, depth: int) -> str:
        """A module that is not a part of the model, such as a sparse autoencoder that a hook uses."""
        held = module.state_dict(keep_vars=True)
        weights = dict(zip(held, tensor_digests([*held.values()]), strict=True))
        forward = self.text(type(module).forward, depth - 1) if depth else ""
        return f"{type(module).__module__}.{type(module).__qualname__} {module.training} {weights} {forward}"

    def _object(self, value: Any) -> str:
        """An object of unknown kind as text: its type and its plain attributes."""
        self.unseen.append(type(value).__qualname__)
        plain = {key: one for key, one in getattr(value, "__dict__", {}).items() if isinstance(one, SIMPLE | Tensor)}
        return f"{type(value).__qualname__} {self.container(plain, 0)}" if plain else type(value).__qualname__


def _contents_of(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # still empty
        return None


@cache
def installed(file: str) -> bool:
    """Whether a file belongs to Python or to an installed package."""
    path = Path(file)
    if {"site-packages", "dist-packages"} & {*path.parts}:
        return True
    return any(path.is_relative_to(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
