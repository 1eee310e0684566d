"""Whether a model's parts are those that its configuration gives: a short prompt does not show every difference.

An epsilon that is a little larger, or rotary frequencies rounded to half precision, change the numbers of twelve tokens
by less than rounding does, and those of a long prompt by more.
"""

from typing import Any

import torch
from torch import Tensor, nn

from squashlens.errors import UnsoundModelError
from squashlens.model.fingerprint import BOOKKEEPING
from squashlens.model.rotary import remembered, same_frequencies

_SIMPLE = (bool, int, float, str, type(None))


def require_same_parts(inner: nn.Module, plain: nn.Module) -> None:
    """Compare numbers, names and buffers of each module of a bridged model with those of the model built anew."""
    # Of a module and the bridge around it, which have one name here, the module comes later and is kept.
    ours = {name.replace("._original_component", ""): module for name, module in inner.named_modules()}
    for name, theirs in plain.named_modules():
        module = ours.get(name)
        if module is None or type(module).__module__.startswith("transformer_lens"):
            continue  # the bridge has a module of its own there; the logits tell
        lists = isinstance(module, nn.ModuleList) and isinstance(theirs, nn.ModuleList)  # the bridge makes its own
        if type(module) is not type(theirs) and not lists:
            _refuse(plain, name, f"is a {type(module).__qualname__} instead of a {type(theirs).__qualname__}")
        skipped = BOOKKEEPING | remembered(theirs) | remembered(module)
        for key, value in vars(theirs).items():
            if key not in skipped and isinstance(value, _SIMPLE) and vars(module).get(key) != value:
                _refuse(plain, f"{name}.{key}", f"is {vars(module).get(key)!r} instead of {value!r}")
        for key, buffer in theirs._buffers.items():
            now: Any = module._buffers.get(key)
            if key not in skipped and buffer is not None and not (isinstance(now, Tensor) and _same(key, now, buffer)):
                _refuse(plain, f"{name}.{key}", "has other values")


def _same(key: str, ours: Tensor, theirs: Tensor) -> bool:
    if key.endswith("inv_freq"):  # which rounding must not touch: a late position multiplies it
        return same_frequencies(ours, theirs)
    narrower = min(ours.dtype, theirs.dtype, key=lambda dtype: dtype.itemsize)  # built in float32, whatever runs
    return ours.shape == theirs.shape and torch.equal(ours.to(narrower), theirs.to(narrower))


def _refuse(plain: nn.Module, what: str, difference: str) -> None:
    raise UnsoundModelError(
        f"This {type(plain).__name__} is not the plain model that its configuration gives: {what} {difference}.",
        "Change the configuration and load the model anew, in the dtype it should run in.",
    )
