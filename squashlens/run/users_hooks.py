"""Test, once for a set of users' hooks that edit, that each prompt of a batch is treated alike and causality is kept.

A measurement runs a model many times, with several prompts in a batch, and its mathematics needs a causal model. With a
function that writes to ``z[0]`` instead of ``z[:]``, or that lets tokens attend to later ones, it would measure
something else. So after the first pass in which a set of functions edits, its first prompt is run by itself, with its
later tokens replaced, and in a batch with that. Functions that only read are not called again.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._pytree import tree_leaves

from squashlens.errors import InputError, UnsoundModelError
from squashlens.model.agreement import agree
from squashlens.model.digests import writes
from squashlens.model.hooking.attached import attached
from squashlens.model.hooking.hook import Hook, torch_hook
from squashlens.model.hooking.standing import (
    Standing,
    key_of,
    standing,
    with_hooks,
    without_ambient,
)
from squashlens.model.layout import kept_of
from squashlens.run.run import Run

BATCH = "the numbers of a prompt depend on the other prompts in its batch"
RANDOM = "the model gives other numbers in each run"
REMEDIES = {
    BATCH: "Treat each prompt by itself in the function: `z[:, …]` instead of `z[0, …]`, and stored means.",
    RANDOM: "Use a function without random numbers that does not count its calls.",
}
Pass = Callable[[Run, Tensor], Tensor]


@contextmanager
def users_hooks_tested(
    run: Run, ids: Int[Tensor, "prompt position"], whole_pass: Pass
) -> Iterator[None]:
    """Around a pass: see whether users' hooks edit, and test those that do with `whole_pass`. See the module."""
    at_begin = kept_of(run.model).at_begin
    # A certificate moves rounding at random, within a mode of its own.
    moved = any(
        type(mode).__module__.startswith("squashlens.")
        for mode in _get_current_function_mode_stack()
    )
    users = (
        [hook for hook in standing(run.model) if hook.is_a_users]
        if at_begin is not None and not moved
        else []
    )
    if (
        at_begin is None
        or not users
        or key_of(run.model) in run.proof.once("users' hooks", list[Any])
    ):
        yield
        return
    with edits(users) as edited:
        yield
    if edited:
        with with_hooks(run.model, *at_begin):
            _test(run, ids[:1], whole_pass, users)
        run.proof.once("users' hooks", list[Any]).append(key_of(run.model))


def _test(
    run: Run,
    prompt: Int[Tensor, "one position"],
    whole_pass: Pass,
    users: list[Standing],
) -> None:
    """Raise an error for hooks that treat prompts of a batch differently, or let tokens depend on later ones."""
    n, vocabulary = prompt.shape[1], int(run.model.cfg.d_vocab)
    cuts = sorted(
        {1, n // 2, n - 1} & {*range(1, n)}
    )  # the first token sees later ones, or they see the last
    replaced = (torch.arange(n) >= torch.tensor(cuts).long()[:, None]).to(prompt.device)
    prompts = torch.cat(
        [prompt, torch.where(replaced, (prompt + vocabulary // 2) % vocabulary, prompt)]
    )
    complaint = partial(_complaint, run, prompts, cuts, whole_pass)
    wrong = complaint()
    if wrong and all(
        hook.module is not None for hook in users
    ):  # others cannot be taken off
        with without_ambient(run.model):
            wrong = (
                0 if wrong == complaint() else wrong
            )  # rounding alone may send a token to other experts
    names = ", ".join(hook.name.partition(": ")[2] for hook in users[:3])
    if isinstance(wrong, str):
        raise InputError(f"With {names} {wrong}.", REMEDIES[wrong])
    if wrong:
        raise UnsoundModelError(
            f"With {names} tokens depend on later ones: if those from position {wrong} on are replaced, earlier "
            "positions change.",
            "Correct the function; measurements hold for causal models only. Masked attention scores are the lowest "
            "finite number of their dtype, and not −∞.",
        )


def _complaint(
    run: Run, prompts: Int[Tensor, "prompt position"], cuts: list[int], whole_pass: Pass
) -> str | int:
    """What is wrong: the cause of an error, the first of the tokens that earlier ones depend on, or nothing (0)."""
    alone = [_final(run, row, whole_pass) for row in prompts.split(1)]
    apart = [torch.cat(parts) for parts in zip(alone[0], alone[-1], strict=True)]
    try:
        both = _final(run, prompts[[0, -1]], whole_pass)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # a function that accepts only one prompt
        both = apart
    if not _same(run, both, apart):
        return (
            BATCH
            if all(map(torch.equal, _final(run, prompts[:1], whole_pass), alone[0]))
            else RANDOM
        )
    for cut, (y, _) in zip(cuts, alone[1:], strict=True):
        if not _same(run, [y[:, :cut]], [alone[0][0][:, :cut]]):
            return cut
    return 0


def _final(
    run: Run, rows: Int[Tensor, "prompt position"], whole_pass: Pass
) -> list[Tensor]:
    """y and the last logits."""
    y: list[Tensor] = []
    look = Hook(
        "squashlens",
        run.site("y"),
        lambda found: y.append(found.detach().clone()),
    )
    with attached(run.model, look), torch.no_grad():
        logits = whole_pass(run, rows.clone())
    return [y[0], logits]


def _same(run: Run, ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(agree(a, b, run.dtype) for a, b in zip(ours, theirs, strict=True))


@contextmanager
def edits(users: list[Standing]) -> Iterator[set[str]]:
    """Collect, while the body runs, the kinds of modules where a user's hook edits: returns or writes to a tensor.

    A hook on every module counts as one that edits.
    """
    found = {hook.place for hook in users if hook.module is None}
    with ExitStack() as stack:
        forward = [hook for hook in users if hook.table.startswith("_forward")]
        for module, table in dict.fromkeys(
            (hook.module, hook.table) for hook in forward
        ):
            if module is not None:
                _compare_around(stack, module, found, table == "_forward_pre_hooks")
        yield found


def _compare_around(
    stack: ExitStack, module: nn.Module, found: set[str], entering: bool
) -> None:
    """Compare what is there before the first and after the last of a module's hooks, at its input or its output."""
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
    """Every object in nested containers by its identity, and of tensors also how often they were written to."""
    return [(id(leaf), writes(leaf)) for leaf in tree_leaves(value)]
