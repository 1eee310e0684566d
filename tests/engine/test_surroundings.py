"""What in the process has a say in a model's numbers: modes, replaced functions, backward hooks, writes in mid-call."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import squashlens as sl
from squashlens.engine.proving.fingerprint import Walk, code_of
from squashlens.errors import InputError
from tests.cases import CONFIGS, MORE, few
from tests.grouped import flat

IDS = torch.tensor([2, 7, 11, 30, 7])
SHARED: dict[str, Any] = {}


class Louder(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * 1.2 if func is torch.nn.functional.linear else found


class LouderBelow(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def packed() -> AbstractContextManager[Any]:
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * 1.3)


@pytest.mark.parametrize("around", [Louder, LouderBelow, packed], ids=["function", "dispatch", "saved"])
def test_modes_that_change_numbers_are_refused(around: Callable[[], Any], bridge_of: Any) -> None:
    model = bridge_of("llama")
    flat.jacobian_norms(model, IDS, **SHARED)
    with around(), pytest.raises(InputError, match="is active"):
        flat.jacobian_norms(model, IDS, **SHARED)


def test_a_device_without_data_is_refused(bridge_of: Any) -> None:
    model = bridge_of("gemma")
    ids = sl.prompts.tokenize(model, [2, 5, 7])
    with torch.device("meta"):
        assert torch.equal(sl.prompts.tokenize(model, [2, 5, 7]), ids)
        for use in (lambda: sl.path_bound(model, [2, 5, 7]), lambda: sl.load("tiny-gemma")):
            with pytest.raises(InputError, match="default device of PyTorch is meta.*Leave `with torch.device"):
                use()
    sl.path_bound(model, [2, 5, 7])


def test_modes_of_pytorch_that_look_are_not(bridge_of: Any) -> None:
    model = bridge_of("llama")
    plain = flat.path_bound(model, IDS, **SHARED)
    with torch.device("cpu"), torch.autograd.graph.save_on_cpu():
        assert plain.equals(flat.path_bound(model, IDS, **SHARED))
    with FlopCounterMode(display=False):  # hangs hooks of its own, under which patterns are written
        np.testing.assert_allclose(plain, flat.path_bound(model, IDS, **SHARED), rtol=1e-5)


@pytest.mark.parametrize("family", few([*CONFIGS, *MORE]))
def test_libraries_as_they_are_have_nothing_replaced(family: str, bridge_of: Any) -> None:
    assert code_of(Walk.over(bridge_of(family))).replaced == ()


@pytest.mark.parametrize("edges", ["analytic", "exact"])
@pytest.mark.parametrize("hang", ["point", "module", "every", "tensor"])
def test_hooks_that_change_derivatives_alone_are_refused(hang: str, edges: Any, bridge_of: Any) -> None:
    model = bridge_of("llama")

    def within(z: torch.Tensor, hook: Any) -> None:
        if z.requires_grad:
            z.register_hook(lambda g: g * 1e-6)

    def smaller(*arguments: Any) -> None:
        return None

    mlp, site = model.original_model.model.layers[1].mlp, "blocks.1.hook_resid_pre"
    hooks: dict[str, Callable[[], Any]] = {
        "point": lambda: model.hooks(bwd_hooks=[(site, lambda g, hook: (g * 1e-6,))]),
        "module": lambda: Removed(mlp.register_full_backward_hook(smaller)),
        "every": lambda: Removed(torch.nn.modules.module.register_module_full_backward_hook(smaller)),
        "tensor": lambda: model.hooks(fwd_hooks=[(site, within)]),
    }
    with hooks[hang]():
        with pytest.raises(InputError, match="changes derivatives but not the model's output"):
            flat.certified_bound(model, IDS, edges=edges, **SHARED)
        with pytest.raises(InputError, match="changes derivatives but not the model's output"):
            flat.jacobian_norms(model, IDS, **SHARED)


class Removed:
    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        self.handle.remove()
