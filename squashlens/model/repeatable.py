"""Standing functions that a measurement may rely on: the same numbers every time, and each prompt by itself.

A measurement runs a model many times, several prompts side by side. A function that draws random numbers, counts its
calls, or writes to ``z[0]`` where it means ``z[:]``, then gives each pass another model.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.errors import InputError
from squashlens.model.anatomy import dtype_of, residual_site
from squashlens.model.forward import forward
from squashlens.model.hooks import unnamed
from squashlens.model.proof import agree
from squashlens.model.registry import once


def require_repeatable(model: Bridge, ids: Int[Tensor, "prompt position"]) -> None:
    """Refuse plain functions under which a prompt's y changes when it is run again, or behind another prompt.

    The other prompt has the same tokens in the opposite order. Where a function takes one prompt only, nothing is
    compared: a measurement that runs several ends with that function's own refusal.
    """
    functions = unnamed(model)
    if functions:
        one = ids[:1]
        # A measurement made of others asks again for each of them.
        once(model, lambda: _try(model, one, list(functions)), list(functions.values()), tuple(one[0].tolist()))


def _try(model: Bridge, one: Int[Tensor, "prompt position"], functions: list[str]) -> None:
    alone, again = _final(model, one), _final(model, one)
    names = ", ".join(name.partition(" ")[2] for name in functions[:3])
    if not torch.equal(alone, again):
        raise InputError(
            f"Under {names} the model gives other numbers each time it runs.",
            "Give a function that draws nothing at random and keeps no count of its calls.",
        )
    try:
        beside = _final(model, torch.cat([one.flip(1), one]))[1:]
    except torch.OutOfMemoryError:
        raise
    except Exception:  # it takes one prompt
        return
    if not agree(beside, alone, dtype_of(model)):
        raise InputError(
            f"Under {names} a prompt's numbers depend on the other prompts in its batch.",
            "Let the function treat all prompts alike: `z[:, …]` where it says `z[0, …]`.",
        )


def _final(model: Bridge, ids: Int[Tensor, "prompt position"]) -> Float[Tensor, "prompt position d"]:
    seen: list[Tensor] = []
    with torch.inference_mode(False), torch.no_grad():
        forward(model, ids, [(residual_site("y", model), lambda y: seen.append(y.detach().clone()))])
    return seen[0]
