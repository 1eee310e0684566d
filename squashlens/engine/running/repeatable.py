"""Test that users' hooks give the same numbers every time, and treat each prompt separately.

A measurement runs a model many times, with several prompts in a batch. With a function that draws random numbers,
counts its calls, or writes to ``z[0]`` instead of ``z[:]``, each pass would be another model. So if a function of the
user's edits in a pass, its first prompt is run twice by itself, and in its batch (a single prompt with a copy of
itself), and all must agree with the pass itself; so must the last prompt by itself and in the batch. That is done for
the first such pass of a call, and for the first with several prompts. Functions that only read are not called again.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from squashlens._typing import Bridge
from squashlens.engine.agreement import agree
from squashlens.engine.anatomy import dtype_of, residual_site
from squashlens.engine.digests import tensor_digest
from squashlens.engine.hooking.hook import Hook, Unchecked, attached, torch_hook
from squashlens.engine.hooking.standing import hooks_as_now, standing, with_hooks
from squashlens.engine.locks import locked
from squashlens.engine.proving.registry import Call, call_of
from squashlens.errors import InputError

Run = Callable[[Bridge, Tensor], Tensor]


@contextmanager
def repeatable(model: Bridge, ids: Int[Tensor, "prompt position"], run: Run) -> Iterator[None]:
    """Around a pass: see whether users' hooks edit, and if so, let `run` test them. See the module."""
    call = call_of(model)
    # A certificate moves rounding at random, within a mode of PyTorch.
    moved = [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]
    functions = [hook.name for hook in standing(model) if hook.is_a_users] if call is not None and not moved else []
    if call is None or not functions:
        yield
        return
    # Hooks of squashlens that edit, such as ablations, are on the model only in its own passes.
    seen: list[Tensor] = []
    look = Unchecked("seen", residual_site("y", model), lambda y: seen.append(y[:1].detach().clone()))
    compared = hooks_as_now(model) == call.at_begin
    with edits(model) as edited, attached(model, *[look] * compared):
        yield
    names = ", ".join(name.partition(": ")[2] for name in functions[:3])
    several = len(ids) > 1
    if edited and several not in call.tested:
        call.tested.add(several)
        _test(model, ids, call, run, names, seen)


def _test(
    model: Bridge, ids: Int[Tensor, "prompt position"], call: Call, run: Run, names: str, seen: list[Tensor]
) -> None:
    def final(rows: Int[Tensor, "prompt position"]) -> list[Tensor]:
        """y and logits of some prompts under the hooks that the model had at the begin of the call."""
        y: list[Tensor] = []
        look = Hook("squashlens", residual_site("y", model), lambda found: y.append(found.detach().clone()))
        with with_hooks(model, call.at_begin), attached(model, look), torch.inference_mode(False), torch.no_grad():
            logits = run(model, rows.clone())
        return [y[0], logits]

    ends = [ids[:1].clone(), ids[-1:].clone()]
    alone = [final(end) for end in (ends if len(ids) > 1 else ends[:1])]
    _require_same(all(map(torch.equal, final(ends[0]), alone[0])), names)
    try:
        together = final(ids if len(ids) > 1 else torch.cat([ids, ids]))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # it accepts only one prompt
        together = []
    rows = [[part[:1] for part in together], [part[-1:] for part in together]]
    if together and not all(_agree(model, row, one) for row, one in zip(rows, (alone[0], alone[-1]), strict=True)):
        raise InputError(
            f"With {names} the numbers of a prompt depend on the other prompts in its batch.",
            "Treat all prompts alike in the function: `z[:, …]` instead of `z[0, …]`.",
        )
    _require_same(_agree(model, seen[:1], alone[0][: len(seen[:1])]), names)  # generating runs several passes


def _agree(model: Bridge, ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(agree(a, b, dtype_of(model)) for a, b in zip(ours, theirs, strict=True))


def _require_same(same: bool, names: str) -> None:
    if not same:
        raise InputError(
            f"With {names} the model gives other numbers in each run.",
            "Use a function without random numbers that does not count its calls.",
        )


@contextmanager
def edits(model: Bridge) -> Iterator[set[str]]:
    """Collect, while the body runs, the kinds of modules where a user's hook edits: leaves other bits in a tensor.

    A hook on every module counts as one that edits.
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
