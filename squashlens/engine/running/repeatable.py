"""Test that users' hooks give the same numbers every time, and treat each prompt separately.

A measurement runs a model many times, with several prompts in a batch. With a function that draws random numbers,
counts its calls, or writes to ``z[0]`` instead of ``z[:]``, each pass would be another model. So if a function of the
user's edits in the first pass of a call, or in the first that has several prompts, the last prompt of that pass is run
twice by itself, once in its batch (a single prompt with a copy of itself), and at the end of the call, and all must
agree. Functions that only read are not called again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Int
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.engine.agreement import agree
from squashlens.engine.anatomy import dtype_of, residual_site
from squashlens.engine.hooking.edits import edits
from squashlens.engine.hooking.hook import Hook, attached, users_functions, with_hooks
from squashlens.engine.proving.registry import Call, call_of
from squashlens.errors import InputError

Run = Callable[[Bridge, Tensor], object]


@contextmanager
def repeatable(model: Bridge, ids: Int[Tensor, "prompt position"], run: Run) -> Iterator[None]:
    """Around a pass: see whether users' hooks edit, and if so, let `run` test them. See the module."""
    call = call_of(model)
    new = call is not None and (call.first is None or (len(ids) > 1 and not call.batched))
    functions = users_functions(model) if new else []
    if call is None or not functions:
        yield
        return
    with edits(model) as edited:
        yield
    call.batched = call.batched or len(ids) > 1
    if edited:
        _test(model, ids, call, run, ", ".join(name.partition(": ")[2] for name in functions[:3]))
    elif call.first is None:
        call.first = torch.empty(0)


def _test(model: Bridge, ids: Int[Tensor, "prompt position"], call: Call, run: Run, names: str) -> None:
    def final(rows: Int[Tensor, "prompt position"]) -> Tensor:
        return _final(model, rows, call, run)

    last = ids[-1:].clone()
    alone = final(last)
    if call.first is None:
        _require_same(torch.equal(final(last), alone), names)
        # At the end the model may be run in another dtype, or with other kernels, than in the first pass.
        call.at_end.append(lambda: _require_same(agree(final(last), alone, dtype_of(model)), names))
    call.first = alone
    try:
        together = final(ids if len(ids) > 1 else torch.cat([ids, ids]))
    except torch.OutOfMemoryError:
        raise
    except Exception:  # it accepts only one prompt
        return
    rows = together[-1:] if len(ids) > 1 else together
    if not all(agree(row, alone[0], dtype_of(model)) for row in rows):
        raise InputError(
            f"With {names} the numbers of a prompt depend on the other prompts in its batch.",
            "Treat all prompts alike in the function: `z[:, …]` instead of `z[0, …]`.",
        )


def _require_same(same: bool, names: str) -> None:
    if not same:
        raise InputError(
            f"With {names} the model gives other numbers in each run.",
            "Use a function without random numbers that does not count its calls.",
        )


def _final(model: Bridge, ids: Int[Tensor, "prompt position"], call: Call, run: Run) -> Tensor:
    """y of some prompts under the hooks that the model had at the begin of the call."""
    seen: list[Tensor] = []
    look = Hook("squashlens", residual_site("y", model), lambda y: seen.append(y.detach().clone()))
    with with_hooks(model, call.at_begin), attached(model, look), torch.inference_mode(False), torch.no_grad():
        run(model, ids.clone())
    return seen[0]
