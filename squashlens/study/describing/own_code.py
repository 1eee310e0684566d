"""The code of your own measurements, by which their cells are named: what runs, not what a file says.

It is read from the function in memory: its code, its defaults, what it closes over, and the globals that it uses. Your
own modules and classes among these are read as a whole; installed packages are known by their names.
"""

import inspect
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from squashlens.engine.digests import DEPTH, Canonical, sha256


def code_of(function: Callable[..., Any]) -> str:
    """The digest of what a function does, as far as its own code says it."""
    return sha256(_OwnCode().text(function))


class _OwnCode(Canonical):
    """As `Canonical`, and it also looks into modules, classes and cached functions of your own."""

    def code(self, value: Any, depth: int = DEPTH) -> str:
        if not isinstance(value, FunctionType) and inspect.isfunction(getattr(value, "__wrapped__", None)):
            return f"{type(value).__qualname__} of {super().code(value.__wrapped__, depth)}"  # of functools.cache
        return super().code(value, depth)

    def _global(self, value: Any, depth: int) -> str:
        return super()._global(value, DEPTH)  # functions are read once, so that this ends

    def _named(self, value: Any, file: str | None) -> str:
        """The name of a class or module, with all that is in it if it is your own."""
        others = len(self.unseen)
        name = super()._named(value, file)
        if len(self.unseen) == others or id(value) in self.begun:
            return name
        self.begun[id(value)] = value
        held = {
            key: one for key, one in vars(value).items() if not key.startswith("__") or isinstance(one, FunctionType)
        }
        if isinstance(value, ModuleType):  # not what it imports from elsewhere and does not use
            held = {
                key: one for key, one in held.items() if getattr(one, "__module__", value.__name__) == value.__name__
            }
        return f"{name} {' '.join(f'{key} = {self._global(one, DEPTH)}' for key, one in sorted(held.items()))}"
