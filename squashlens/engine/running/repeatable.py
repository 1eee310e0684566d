"""Test that users' hook functions give the same numbers every time, and treat each prompt separately.

A measurement runs a model many times, with several prompts in a batch. With a function that draws random numbers,
counts its calls, or writes to ``z[0]`` instead of ``z[:]``, each pass would be another model.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.engine.agreement import agree
from squashlens.engine.anatomy import dtype_of, residual_site
from squashlens.engine.hooking.hook import plain_functions
from squashlens.engine.proving.registry import once
from squashlens.engine.running.forward import forward
from squashlens.errors import InputError


def require_repeatable(model: Bridge, ids: Int[Tensor, "prompt position"]) -> None:
    """Raise an error if, with the users' functions, y of a prompt changes in a second run or after another prompt.

    The other prompt has the same tokens in reverse order. If a function accepts only one prompt, the second test is
    left out; a measurement with several prompts then raises the function's own error.
    """
    functions = plain_functions(model)
    if functions:
        one = ids[:1]
        # Measurements that call others test only once.
        once(model, lambda: _try(model, one, list(functions)), list(functions.values()), tuple(one[0].tolist()))


def _try(model: Bridge, one: Int[Tensor, "prompt position"], functions: list[str]) -> None:
    alone, again = _final(model, one), _final(model, one)
    names = ", ".join(name.partition(" ")[2] for name in functions[:3])
    if not torch.equal(alone, again):
        raise InputError(
            f"With {names} the model gives other numbers in each run.",
            "Use a function without random numbers that does not count its calls.",
        )
    try:
        after_another = _final(model, torch.cat([one.flip(1), one]))[1:]
    except torch.OutOfMemoryError:
        raise
    except Exception:  # it accepts only one prompt
        return
    if not agree(after_another, alone, dtype_of(model)):
        raise InputError(
            f"With {names} the numbers of a prompt depend on the other prompts in its batch.",
            "Treat all prompts alike in the function: `z[:, …]` instead of `z[0, …]`.",
        )


def _final(model: Bridge, ids: Int[Tensor, "prompt position"]) -> Float[Tensor, "prompt position d"]:
    seen: list[Tensor] = []
    with torch.inference_mode(False), torch.no_grad():
        forward(model, ids, [(residual_site("y", model), lambda y: seen.append(y.detach().clone()))])
    return seen[0]
