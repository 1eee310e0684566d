"""Find out whether a user's hooks edit activations or only read them: those that only read need no tests."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from squashlens._typing import Bridge
from squashlens.engine.digests import tensor_digest
from squashlens.engine.hooking.hook import standing, torch_hook
from squashlens.engine.locks import locked


@contextmanager
def edits(model: Bridge) -> Iterator[set[str]]:
    """Collect, while the body runs, the kinds of modules where one of a user's hooks edits.

    A hook edits if the tensors are not, bit for bit, what they were before it. Backward hooks do not act in a forward
    pass. A hook on every module counts as one that edits.
    """
    users = [hook for hook in standing(model) if hook.is_a_users and hook.table.startswith("_forward")]
    found = {hook.place for hook in users if hook.module is None}
    with locked(model), ExitStack() as stack:
        for module, table in dict.fromkeys((hook.module, hook.table) for hook in users):
            if module is not None:
                _compare_around(stack, module, found, table == "_forward_pre_hooks")
        yield found


def _compare_around(stack: ExitStack, module: nn.Module, found: set[str], entering: bool) -> None:
    """Compare tensors before the first and after the last of a module's hooks, at its input or its output."""
    seen: list[list[object]] = []

    def before(_module: nn.Module, args: object, rest: object) -> None:
        seen.append(_leaves((args, rest) if entering else rest))

    def after(_module: nn.Module, args: object, rest: object) -> None:
        if seen.pop() != _leaves((args, rest) if entering else rest):
            found.add(type(module).__name__)

    options = {"with_kwargs": True} if entering else {}
    for look, first in ((before, True), (after, False)):
        torch_hook(stack, module, look, before=entering, prepend=first, **options)


def _leaves(value: object) -> list[object]:
    """Every object in nested containers by its identity, and every tensor by its content."""
    return [tensor_digest(leaf) if isinstance(leaf, Tensor) else id(leaf) for leaf in tree_leaves(value)]
