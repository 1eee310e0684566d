"""Check that a model's parts match its configuration, since a short prompt does not show every difference.

A slightly larger epsilon, or rotary frequencies rounded to half precision, change a prompt of twelve tokens by less
than rounding, and a long prompt by more.
"""

from typing import Any

import torch
from torch import Tensor, nn

from squashlens.engine.agreement import same_frequencies
from squashlens.engine.proving.fingerprint import BOOKKEEPING, names_from_last_pass
from squashlens.errors import UnsoundModelError

_SIMPLE = (bool, int, float, str, type(None))


def require_same_parts(inner: nn.Module, plain: nn.Module) -> None:
    """Compare attributes and buffers of each module of a bridged model with those of a newly built model."""
    # A module and the bridge around it have the same name here; the module comes later and is kept.
    ours = {name.replace("._original_component", ""): module for name, module in inner.named_modules()}
    for name, theirs in plain.named_modules():
        module = ours.get(name)
        if module is None or type(module).__module__.startswith("transformer_lens"):
            continue  # the bridge has its own module there, which the logits test
        lists = isinstance(module, nn.ModuleList) and isinstance(
            theirs, nn.ModuleList
        )  # the bridge makes its own lists
        if type(module) is not type(theirs) and not lists:
            _refuse(plain, name, f"is a {type(module).__qualname__} instead of a {type(theirs).__qualname__}")
        skipped = BOOKKEEPING | names_from_last_pass(theirs) | names_from_last_pass(module)
        for key, value in vars(theirs).items():
            if key not in skipped and isinstance(value, _SIMPLE) and vars(module).get(key) != value:
                _refuse(plain, f"{name}.{key}", f"is {vars(module).get(key)!r} instead of {value!r}")
        for key, buffer in theirs._buffers.items():
            now: Any = module._buffers.get(key)
            if key not in skipped and buffer is not None and not (isinstance(now, Tensor) and _same(key, now, buffer)):
                _refuse(plain, f"{name}.{key}", "has other values")


def _same(key: str, ours: Tensor, theirs: Tensor) -> bool:
    if key.endswith("inv_freq"):  # must not be rounded: late positions multiply the error
        return same_frequencies(ours, theirs)
    narrower = min(
        ours.dtype, theirs.dtype, key=lambda dtype: dtype.itemsize
    )  # the new model is in float32, whatever the dtype of the run
    return ours.shape == theirs.shape and torch.equal(ours.to(narrower), theirs.to(narrower))


def _refuse(plain: nn.Module, what: str, difference: str) -> None:
    raise UnsoundModelError(
        f"This {type(plain).__name__} does not match its configuration: {what} {difference}.",
        "Change the configuration and load the model again, in the dtype of the run.",
    )
