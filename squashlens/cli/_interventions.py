"""Interventions as a user types them: ``sliding_window(8, sink=1)`` is a function of `squashlens.hooks` with arguments.

Several that act together are joined by ``+``. Arguments are numbers, texts and lists: the text is read, and never run
as Python.
"""

import ast
import inspect
from collections.abc import Iterable, Iterator
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
        try:
            described = [_described(call) for call in _calls(ast.parse(f"({text}\n)", mode="eval").body)]
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
            raise InputError(f"interventions={short_repr(text)} is not a hook with its arguments.", EXAMPLE) from error
        found[name] = require_hooks(described)
    return found


def _calls(node: ast.expr) -> Iterator[ast.expr]:
    """The calls that a text joins by +."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _calls(node.left)
        yield from _calls(node.right)
    else:
        yield node


def _described(node: ast.expr) -> dict[str, dict[str, Any]]:
    """A call as a study describes it: the name of a function, with its arguments by name."""
    import squashlens as sl

    call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
    if not isinstance(call.func, ast.Name) or any(one.arg is None for one in call.keywords):
        raise ValueError("no call of a function by its name")
    values = [ast.literal_eval(one) for one in call.args]
    named = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    function = getattr(sl.hooks, call.func.id, None)
    placed = inspect.signature(function).bind_partial(*values).arguments if inspect.isfunction(function) else {}
    if placed.keys() & named.keys():
        raise ValueError("an argument is given twice")
    return {call.func.id: placed | named}
