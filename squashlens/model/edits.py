"""Does a standing hook edit what passes, or only look?

Several prompts can share one forward pass as long as nobody edits activations by position: position 5 of a
pass need not be position 5 of a prompt. A hook that counts or records does no harm; one that edits does.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from squashlens._typing import Bridge
from squashlens.model.hooks import belongs_to_a_library, distinct_points, torch_hook
from squashlens.model.locks import locked


@contextmanager
def edits(model: Bridge) -> Iterator[set[str]]:
    """Collects, while the body runs, the names of the modules at which a hook standing there before edits.

    A hook edits if it returns another object than it was given, or writes into a tensor. Backward hooks have
    no part in a forward pass.
    """
    found: set[str] = set()
    with ExitStack() as stack:
        stack.enter_context(locked(model))
        points = {point: name for name, point in distinct_points(model).items()}
        for module, name in {**{m: n for n, m in model.named_modules()}, **points}.items():
            for table, entering in ((module._forward_hooks, False), (module._forward_pre_hooks, True)):
                if any(module in points or not belongs_to_a_library(hook) for hook in table.values()):
                    _embrace(stack, module, name, found, entering)
        yield found


def _embrace(stack: ExitStack, module: nn.Module, name: str, found: set[str], entering: bool) -> None:
    """Look before the first and after the last of a module's hooks, on what enters it or on what leaves it."""
    seen: list[list[tuple[object, int]]] = []

    def before(_module: nn.Module, args: object, rest: object) -> None:
        seen.append(_leaves((args, rest) if entering else rest))

    def after(_module: nn.Module, args: object, rest: object) -> None:
        then, now = seen.pop(), _leaves((args, rest) if entering else rest)
        unchanged = len(then) == len(now) and all(a is b and i == j for (a, i), (b, j) in zip(then, now, strict=True))
        if not unchanged:
            found.add(name)

    options = {"with_kwargs": True} if entering else {}
    for look, first in ((before, True), (after, False)):
        torch_hook(stack, module, look, before=entering, prepend=first, **options)


def _leaves(value: object) -> list[tuple[object, int]]:
    """Every object in a nest of containers, with the number of times a tensor was written into."""
    return [(leaf, leaf._version if isinstance(leaf, Tensor) else 0) for leaf in tree_leaves(value)]
