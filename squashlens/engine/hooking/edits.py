"""Find out whether a user's hooks edit activations or only read them: those that only read need no tests."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks
from torch.utils._pytree import tree_leaves

from squashlens._typing import Bridge
from squashlens.engine.digests import tensor_digest
from squashlens.engine.hooking.hook import all_modules, distinct_points, is_a_users, torch_hook
from squashlens.engine.locks import locked


@contextmanager
def edits(model: Bridge) -> Iterator[set[str]]:
    """Collect, while the body runs, the names of the modules where one of a user's hooks edits.

    A hook edits if the tensors are not, bit for bit, what they were before it. Backward hooks do not act in a forward
    pass. A hook on every module counts as one that edits.
    """
    found = {"every module"} if any(map(is_a_users, _global_forward_hooks.values())) else set[str]()
    with ExitStack() as stack:
        stack.enter_context(locked(model))
        points: dict[Any, str] = {point: name for name, point in distinct_points(model).items()}
        for module in all_modules(model):
            name = points.get(module, type(module).__name__)
            for table, entering in ((module._forward_hooks, False), (module._forward_pre_hooks, True)):
                own = [h.user_hook for h in vars(module)["fwd_hooks"]] if module in points and not entering else []
                if any(map(is_a_users, [*own, *table.values()])):
                    _compare_around(stack, module, name, found, entering)
        yield found


def _compare_around(stack: ExitStack, module: nn.Module, name: str, found: set[str], entering: bool) -> None:
    """Compare tensors before the first and after the last of a module's hooks, at its input or its output."""
    seen: list[list[object]] = []

    def before(_module: nn.Module, args: object, rest: object) -> None:
        seen.append(_leaves((args, rest) if entering else rest))

    def after(_module: nn.Module, args: object, rest: object) -> None:
        if seen.pop() != _leaves((args, rest) if entering else rest):
            found.add(name)

    options = {"with_kwargs": True} if entering else {}
    for look, first in ((before, True), (after, False)):
        torch_hook(stack, module, look, before=entering, prepend=first, **options)


def _leaves(value: object) -> list[object]:
    """Every object in nested containers by its identity, and every tensor by its content."""
    return [tensor_digest(leaf) if isinstance(leaf, Tensor) else id(leaf) for leaf in tree_leaves(value)]
