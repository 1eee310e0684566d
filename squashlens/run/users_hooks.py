"""Test, once for a set of users' hooks that edit, that each prompt of a batch is treated alike and causality is kept.

A measurement runs a model many times, with several prompts in a batch, and its mathematics needs a causal model. With a
function that writes to ``z[0]`` instead of ``z[:]``, or that lets tokens attend to later ones, it would measure
something else. So after the first pass with a set of functions, its first prompt is run by itself, with its later
tokens replaced, and in a batch with that. Functions that only read are not called again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack

from squashlens.errors import InputError, UnsoundModelError
from squashlens.model.agreement import agree
from squashlens.model.anatomy import n_tokens
from squashlens.model.digests import writes
from squashlens.model.hooking.hook import torch_hook
from squashlens.model.hooking.standing import (
    Standing,
    key_of,
    standing,
    with_hooks,
    without_ambient,
)
from squashlens.model.snapshot import kept_of
from squashlens.run.run import Run

Pass = Callable[..., Tensor]  # `squashlens.run.forward.next_logits`
Final = tuple[Tensor, Tensor]  # y and the last logits


@contextmanager
def users_hooks_tested(
    run: Run, ids: Int[Tensor, "prompt position"], next_logits: Pass
) -> Iterator[None]:
    """Around a pass: test the users' hooks on the model, if this was not done before. See the module."""
    # The hooks with which the model was opened: the test is without those that the measurement itself adds.
    at_begin = kept_of(run.model).at_begin
    users = [hook for hook in standing(run.model) if hook.is_a_users]
    tested = run.proof.once("users' hooks", list[Any])  # the keys of sets of hooks
    key = key_of(run.model)
    if at_begin is None or not users or key in tested or _results_are_moved():
        yield
        return
    with _edits(users) as edits:
        yield
    if any(edits):
        with with_hooks(run.model, at_begin):
            _test(run, ids[:1], next_logits, users)
    tested.append(key)


def _results_are_moved() -> bool:
    """Whether a certificate moves every result at random, or widens it: that is a mode of PyTorch of its own."""
    modes = _get_current_function_mode_stack()
    return any(type(mode).__module__.startswith("squashlens.") for mode in modes)


@contextmanager
def _edits(users: list[Standing]) -> Iterator[list[bool]]:
    """Whether each call of a user's hook in the body returned another tensor, or wrote to the one that it got.

    PyTorch's own hooks, which may be on any module, count as edits. The list is filled during the body.
    """
    edits = [hook.point is None for hook in users]
    # Identity and number of writes of the tensors that entered points, until these are left.
    entering: list[tuple[int, int]] = []

    def before(_point: object, args: tuple[Any, ...]) -> None:
        entering.append((id(args[0]), writes(args[0])))

    def after(_point: object, _args: object, result: Any) -> None:
        edits.append(entering.pop() != (id(result), writes(result)))

    with ExitStack() as stack:
        for hook in users:
            if hook.point is not None:
                torch_hook(stack, hook.module, before, before=True)
                torch_hook(stack, hook.module, after, before=False)
        yield edits


def _test(
    run: Run,
    prompt: Int[Tensor, "1 position"],
    next_logits: Pass,
    users: list[Standing],
) -> None:
    """Raise an error for hooks that treat prompts of a batch differently, or let tokens depend on later ones."""
    n = prompt.shape[1]
    vocabulary = n_tokens(run.model)
    # The first token sees later ones, or they see the last.
    cuts = sorted({1, n // 2, n - 1}.intersection(range(1, n)))
    # (cut, position): the tokens from a cut on.
    replaced = torch.arange(n) >= torch.tensor(cuts).long()[:, None]
    others = (prompt + vocabulary // 2) % vocabulary
    changed = torch.where(replaced.to(prompt.device), others, prompt)
    # Each by itself, the unchanged one first.
    prompts = torch.cat([prompt, changed]).split(1)
    final = partial(_final, run, next_logits)
    alone = [final(ids) for ids in prompts]
    # Without their hook points.
    names = ", ".join(hook.name.partition(": ")[2] for hook in users[:3])
    if not _are_alike_in_a_batch(run, prompts, alone, final):
        raise InputError(
            f"With {names} the numbers of a prompt depend on other prompts in its batch, or change from run to run.",
            "Treat each prompt by itself in the function: `z[:, …]` instead of `z[0, …]`, and stored means; without "
            "random numbers, and without counting its calls.",
        )
    wrong = _moved_by_later(run, cuts, alone)
    if wrong is None:
        return
    with without_ambient(run.model):
        bare = [final(ids) for ids in prompts]
    # Rounding alone may send a token to other experts.
    if _moved_by_later(run, cuts, bare) == wrong:
        return
    raise UnsoundModelError(
        f"With {names} tokens depend on later ones: if those from position {wrong} on are replaced, earlier "
        "positions change.",
        "Correct the function; measurements hold for causal models only. Masked attention scores are the lowest "
        "finite number of their dtype, and not −∞.",
    )


def _are_alike_in_a_batch(
    run: Run,
    prompts: Sequence[Tensor],
    alone: list[Final],
    final: Callable[[Tensor], Final],
) -> bool:
    """Whether the first and the last prompt give in one batch what they gave `alone`.

    True as well if the batch fails, since a function may accept only one prompt.
    """
    try:
        together = final(torch.cat([prompts[0], prompts[-1]]))
    except torch.OutOfMemoryError:
        raise
    except Exception:
        return True
    # y, and then the last logits.
    for in_batch, first, last in zip(together, alone[0], alone[-1], strict=True):
        if not agree(in_batch, torch.cat([first, last]), run.dtype):
            return False
    return True


def _moved_by_later(run: Run, cuts: list[int], alone: list[Final]) -> int | None:
    """The first of the cuts before which y changes if all tokens from there on are replaced; None if there is none."""
    y, _ = alone[0]
    for cut, (other, _) in zip(cuts, alone[1:], strict=True):
        if not agree(other[:, :cut], y[:, :cut], run.dtype):
            return cut
    return None


def _final(run: Run, next_logits: Pass, ids: Int[Tensor, "prompt position"]) -> Final:
    """y at all positions and the last logits, from one pass under the hooks on the model."""
    ys: list[Tensor] = []

    def keep(y: Tensor) -> None:
        ys.append(y.detach().clone())

    with torch.no_grad():
        # With a context, even an empty one, a pass is not tested again.
        logits = next_logits(run, ids.clone(), [(run.site("y"), keep)], {})
    return ys[0], logits
