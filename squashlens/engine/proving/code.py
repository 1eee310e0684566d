"""The code that a forward pass runs: the methods of its modules, and what they call by name.

A function of a library can be replaced while a program runs, by faster kernels or by rules for relevance. Two things
are read from the code that is reached from the `forward` of every module: a digest, which is the same in every process
with the same libraries, and the functions that another package has put in place of a library's own.

Names are followed through the globals of a function, and through the modules that these hold. Of functions of PyTorch
and Python only the code counts, and not what they call. Built-in functions count by name.
"""

import functools
import sys
import types
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from squashlens.engine.canonical import Canonical, contents_of, names_in, sha256
from squashlens.engine.functions import without_partials
from squashlens.engine.proving.fingerprint import Walk

# Packages whose functions may appear in the code of another library without counting as replaced.
LIBRARIES = {"torch", "transformers", "transformer_lens", "accelerate", "huggingface_hub", "numpy", "einops", "peft"}
LIBRARIES |= {"jaxtyping", "beartype", "kernels", "packaging", "torchao", "safetensors", "tqdm", "typing_extensions"}
LIBRARIES |= {"squashlens", *sys.stdlib_module_names}
_START = ("__call__", "_call_impl", "_wrapped_call_impl", "forward")
_OPERATORS = {f"__{r}{o}__" for o in ("matmul", "add", "sub", "mul", "truediv", "pow") for r in ("", "r", "i")}
_OPERATORS |= {"__neg__", "__getitem__", "__setitem__"}


@dataclass(frozen=True)
class Code:
    """The digest of the code, the functions that another package replaced, and what it does not show of these."""

    digest: str
    replaced: tuple[str, ...]
    unseen: tuple[str, ...] = ()


def code_of(walk: Walk) -> Code:
    """The code of all modules in a walk. It is read again only if something that was looked up has changed."""
    kinds = frozenset(type(module) for _, module in walk.modules)
    known = _known.get(kinds)
    if known is None or not known.holds():
        known = _known[kinds] = _Reading.of(kinds)
    if not known.foreign:
        return known.code
    canonical = Canonical()  # what a foreign function closes over or reads may change in place
    now = "\n".join(canonical.text(value) for value in known.foreign)
    return replace(known.code, digest=sha256(f"{known.code.digest} {now}")[:16], unseen=tuple(canonical.unseen))


@dataclass
class _Reading:
    """What was looked up while the code of some classes was read."""

    found: dict[tuple[str, str], tuple[Mapping[str, Any], Any]] = field(default_factory=dict)  # by label and name
    defined: dict[type, Set[str]] = field(default_factory=dict)  # of the names, those that each class defines itself
    codes: dict[types.FunctionType, types.CodeType] = field(default_factory=dict)
    names: set[str] = field(default_factory=lambda: {*_START, *_OPERATORS})
    lines: list[str] = field(default_factory=list)
    foreign: list[Any] = field(default_factory=list)
    code: Code = field(default_factory=lambda: Code("", ()))

    def holds(self) -> bool:
        return (
            all(where.get(name) is value for (_, name), (where, value) in self.found.items())
            and all(function.__code__ is code for function, code in self.codes.items())
            # A method that was inherited may be defined now.
            and all(self.names.intersection(vars(kind)) == own for kind, own in self.defined.items())
        )

    @classmethod
    def of(cls, kinds: frozenset[type]) -> "_Reading":
        reading = cls()
        bases = sorted({b for kind in kinds for b in kind.__mro__ if b is not object}, key=_label)
        bases.append(torch.Tensor)
        before = -1
        while before < len(reading.names):  # a method may use names whose methods come next
            before = len(reading.names)
            for base in bases:
                for name in sorted(reading.names & vars(base).keys()):
                    reading.look_up(_label(base), vars(base), name)
        reading.defined = {base: reading.names.intersection(vars(base)) for base in bases}
        origins = {(label, name): _foreign(label, value, name) for (label, name), (_, value) in reading.found.items()}
        replaced = {f"{'.'.join(at)}: {origin}": reading.found[at][1] for at, origin in origins.items() if origin}
        reading.foreign = [replaced[name] for name in sorted(replaced)]
        reading.code = Code(sha256("\n".join(sorted(reading.lines)))[:16], tuple(sorted(replaced)))
        return reading

    def look_up(
        self, label: str, where: Mapping[str, Any], name: str, names: Set[str] = frozenset(), depth: int = 4
    ) -> None:
        """Follow a name in a module or class; if it is a module itself, the `names` in it, also in its modules."""
        value = where[name]
        if isinstance(value, types.ModuleType):
            for inner in sorted(names & vars(value).keys()) if depth else ():
                self.look_up(value.__name__, vars(value), inner, names, depth - 1)
            return
        functions = _functions(value)
        if (label, name) in self.found or (not functions and (isinstance(value, type) or not callable(value))):
            return
        self.found[label, name] = where, value
        self.lines.append(f"{label}.{name} = {getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}")
        for function in functions:
            self.read(function, inside=_is_followed(function) or label.startswith("torch.nn.modules"))

    def read(self, function: types.FunctionType, inside: bool) -> None:
        """The code of one function and, if it is followed, of those that it names."""
        if function in self.codes:
            return
        self.codes[function] = function.__code__
        self.lines.append(Canonical().code(function.__code__))
        if inside:
            names, held = names_in(function.__code__), function.__globals__
            self.names |= names
            for name in sorted(names & held.keys()):
                self.look_up(str(held.get("__name__")), held, name, names)


_known: dict[frozenset[type], _Reading] = {}


def _functions(value: Any) -> list[types.FunctionType]:
    """The functions in an attribute: of a property, a method, a decorator, a partial."""
    found, waiting = dict[types.FunctionType, None](), [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, types.FunctionType) and one not in found:
            found[one] = None
            waiting += map(contents_of, one.__closure__ or ())
        elif isinstance(one, staticmethod | classmethod):
            waiting.append(one.__func__)
        elif isinstance(one, property):
            waiting += [one.fget, one.fset]
        elif isinstance(one, functools.partial):
            waiting.append(one.func)
    return list(found)


def _label(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_followed(function: types.FunctionType) -> bool:
    top = str(function.__module__).partition(".")[0]
    return top != "torch" and top not in sys.stdlib_module_names


def _foreign(label: str, value: Any, name: str) -> str | None:
    """The origin of a function that belongs neither to a library nor to the package where it stands; otherwise None."""
    value = without_partials(value)
    if isinstance(value, staticmethod | classmethod | property):
        return None
    origin = getattr(value, "__module__", None)
    if not callable(value) or not isinstance(origin, str):
        return None
    if origin.partition(".")[0] in LIBRARIES | {label.partition(".")[0]}:
        return None
    return f"{origin}.{getattr(value, '__qualname__', name)}"
