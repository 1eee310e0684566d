"""What is refused before a model is loaded: arguments that are wrong whatever the model is.

Functions check their arguments before they use the model. Here each is called with an object in place of the model, and
of what is made from it, which ends the call as soon as it is used.
"""

import contextlib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from squashlens.checks.arguments import converted


class Used(BaseException):
    """The model is needed to go on. It is no `Exception`, so that no function catches it."""


class Absent:
    """What stands in place of the model."""

    def __getattribute__(self, name: str) -> Any:
        raise Used


def check(function: Callable[..., Any], arguments: Mapping[str, Any], absent: Collection[str]) -> None:
    """Raise the error that a function would raise for these arguments with any model.

    Args:
        function: a public function.
        arguments: its other arguments.
        absent: the parameters for the model, and for what is made from it.
    """
    plain = inspect.unwrap(function)
    parameters = inspect.signature(plain, eval_str=True).parameters
    given = {
        name: converted(value, parameters[name].annotation, name) if name in parameters else value
        for name, value in arguments.items()
        if name not in absent
    }
    with contextlib.suppress(Used):
        plain(**{name: Absent() for name in absent}, **given)
