"""Find out whether a user's hooks edit activations or only read them: those that only read need no tests."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from squashlens._typing import Bridge
from squashlens.engine.hooking.hook import distinct_points, is_a_users, torch_hook
from squashlens.engine.locks import locked


@contextmanager
def edits(model: Bridge) -> Iterator[set[str]]:
    """Collect, while the body runs, the names of the modules where one of a user's hooks edits.

    A hook edits if it returns another object than it got, or writes into a tensor. Backward hooks do not act in a
    forward pass.
    """
    found: set[str] = set()
    with ExitStack() as stack:
        stack.enter_context(locked(model))
        points = {point: name for name, point in distinct_points(model).items()}
        for module, name in {**{m: n for n, m in model.named_modules()}, **points}.items():
            for table, entering in ((module._forward_hooks, False), (module._forward_pre_hooks, True)):
                own = [h.user_hook for h in module.fwd_hooks] if module in points else table.values()
                if any(map(is_a_users, own)):
                    _compare_around(stack, module, name, found, entering)
        yield found


def _compare_around(stack: ExitStack, module: nn.Module, name: str, found: set[str], entering: bool) -> None:
    """Compare tensors before the first and after the last of a module's hooks, at its input or its output."""
    seen: list[list[tuple[object, int]]] = []

    def before(_module: nn.Module, args: object, rest: object) -> None:
        seen.append(_leaves((args, rest) if entering else rest))

    def after(_module: nn.Module, args: object, rest: object) -> None:
        earlier, now = seen.pop(), _leaves((args, rest) if entering else rest)
        unchanged = len(earlier) == len(now) and all(
            a is b and i == j for (a, i), (b, j) in zip(earlier, now, strict=True)
        )
        if not unchanged:
            found.add(name)

    options = {"with_kwargs": True} if entering else {}
    for look, first in ((before, True), (after, False)):
        torch_hook(stack, module, look, before=entering, prepend=first, **options)


def _leaves(value: object) -> list[tuple[object, int]]:
    """Every object in nested containers, with the number of times that each tensor was written into."""
    return [(leaf, leaf._version if isinstance(leaf, Tensor) else 0) for leaf in tree_leaves(value)]
