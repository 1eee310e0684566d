"""Interventions as a user types them: ``sliding_window(8, sink=1)`` is a function of `squashlens.hooks` with arguments.

Several that act together are joined by ``+``. Arguments are numbers, texts and lists: the text is read, and never run
as Python.
"""

import ast
import inspect
from collections.abc import Iterable
from typing import Any

from squashlens._typing import short_repr
from squashlens.errors import InputError

EXAMPLE = "Write for example 'sliding_window(8, sink=1)', or 'sliding_window(8) + mask_tokens([0])'."


def interventions(typed: Iterable[str]) -> dict[str, list[Any]]:
    """The hooks of each intervention, by its text."""
    from squashlens.study.describing.arguments import require_hooks

    found: dict[str, list[Any]] = {}
    for text in typed:
        name = " ".join(text.split())
        if name in found:
            raise InputError(f"interventions= has {short_repr(name)} twice.", "Give it once.")
        found[name] = require_hooks([_described(part, text) for part in _parts(text)])
    return found


def _parts(text: str) -> list[ast.expr]:
    """The calls that a text joins by +."""
    try:
        node = ast.parse(f"({text}\n)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _unreadable(text) from error
    later: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        later.append(node.right)
        node = node.left
    return [node, *reversed(later)]


def _described(node: ast.expr, text: str) -> dict[str, dict[str, Any]]:
    """A call as a study describes it: the name of a function, with its arguments by name."""
    import squashlens as sl

    call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
    if not isinstance(call.func, ast.Name):
        raise _unreadable(text)
    name, function = call.func.id, getattr(sl.hooks, call.func.id, None)
    known = [*inspect.signature(function).parameters] if inspect.isfunction(function) else []
    try:
        values = [ast.literal_eval(one) for one in call.args]
        named = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords if one.arg}
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise _unreadable(text) from error
    if len(named) < len(call.keywords) or (known and (len(values) > len(known) or {*known[: len(values)]} & {*named})):
        raise _unreadable(text)
    return {name: dict(zip(known, values, strict=False)) | named}


def _unreadable(text: str) -> InputError:
    return InputError(f"interventions={short_repr(text)} is not a hook with its arguments.", EXAMPLE)
