"""Functions as hooks that would give each pass another model, and derivatives that do not exist."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import squashlens as sl
from squashlens.errors import InputError, UnsoundModelError

IDS = torch.tensor([2, 7, 11, 30, 7])
SITE = "blocks.1.attn.hook_z"


def first_of_the_batch(z: torch.Tensor) -> torch.Tensor:
    z = z.clone()
    z[0, :, 1] = 0
    return z


def last_is_zero(z: torch.Tensor) -> torch.Tensor:
    z = z.clone()
    z[-1, :, 1] *= 1 if len(z) == 1 else 0
    return z


def first_is_last(z: torch.Tensor) -> torch.Tensor:
    z = z.clone()
    z[0] = z[-1]
    return z


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (first_of_the_batch, "first_of_the_batch the numbers of a prompt depend on the other prompts in its batch"),
        (lambda z: z + 0.1 * torch.randn_like(z), "other numbers in each run"),
    ],
    ids=["first", "random"],
)
def test_functions_that_make_another_model_of_each_pass_are_refused(
    family: str, function: Any, complaint: str, bridge_of: Any
) -> None:
    model = bridge_of(family)
    with sl.applied(model, (SITE, function)):
        for measure in (sl.jacobian_norms, sl.substitution_effect, sl.path_bound):
            with pytest.raises(InputError, match=complaint):
                measure(model, IDS)
    theirs = model.hooks(fwd_hooks=[(SITE, lambda z, hook: function(z))])
    with theirs, pytest.raises(InputError, match=complaint[-20:]):
        sl.jacobian_norms(model, IDS)


def test_a_function_that_mixes_prompts_is_refused_where_there_are_several(bridge_of: Any) -> None:
    model = bridge_of("llama")
    both = torch.stack([IDS, IDS.flip(0)])
    for function in (lambda z: z + z.mean(dim=0), lambda z: z * len(z), last_is_zero, first_is_last):
        with sl.applied(model, (SITE, function)):
            assert sl.path_bound(model, IDS).shape == (5,)  # there it makes no difference
            for measure, given in ((sl.path_bound, both), (sl.substitution_effect, IDS)):
                with pytest.raises(InputError, match="depend on the other prompts"):
                    measure(model, given)


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["pair", "hook", "theirs"])
def test_functions_that_read_are_called_once_a_pass_and_on_the_prompt_alone(form: str, bridge_of: Any) -> None:
    model, seen = bridge_of("llama"), []
    prompt, place = sl.capture(model, IDS).residuals[0], "blocks.0.hook_resid_pre"

    def read(stream: torch.Tensor, hook: Any = None) -> None:
        seen.append(torch.equal(stream, prompt))

    hook: Any = (place, read) if form == "pair" else sl.hooks.Hook("read", place, read)
    with model.hooks(fwd_hooks=[(place, read)]) if form == "theirs" else sl.applied(model, hook):
        for measure, passes in ((sl.path_bound, 1), (sl.capture, 1), (sl.sensitivity, 3)):
            seen.clear()
            measure(model, IDS)
            assert seen == [True] * passes
        held = sl.capture(model, IDS)
        known = len(seen)
        sl.path_bound(model, held)
        assert len(seen) == known


@pytest.mark.parametrize("options", [{}, {"norm": "frobenius"}, {"method": "sketch"}], ids=str)
def test_a_derivative_that_does_not_exist_is_refused(options: dict[str, Any], bridge_of: Any) -> None:
    """Finite going forward: 0 · √|z| has the derivative 0 · ∞ at 0."""
    model = bridge_of("llama")
    with (
        sl.applied(model, (SITE, lambda z: (z * 0).abs().sqrt() + z)),
        pytest.raises(UnsoundModelError, match="derivative is NaN or infinite"),
    ):
        sl.jacobian_norms(model, IDS, **options)


@pytest.mark.parametrize("where", ["point", "module", "bridge", "every"])
def test_random_functions_are_found_wherever_they_are(where: str, bridge_of: Any) -> None:
    """PyTorch's hooks on a hook point, on a module, on the bridge itself, and on all modules."""
    model = bridge_of("llama")

    def noise(_module: Any, _args: Any, out: Any) -> Any:
        return out + 0.1 * torch.randn_like(out) if isinstance(out, torch.Tensor) and out.is_floating_point() else out

    places: dict[str, Any] = {
        "point": model.hook_dict[SITE].register_forward_hook,
        "module": model.original_model.model.layers[0].mlp.register_forward_hook,
        "bridge": model.register_forward_hook,
        "every": torch.nn.modules.module.register_module_forward_hook,
    }
    handle = places[where](noise)
    try:
        with pytest.raises(InputError, match="noise the model gives other numbers in each run"):
            sl.top_tokens(model, IDS)
    finally:
        handle.remove()


class OnlyFirst:
    """An edit of the first pass that it sees, and of no other."""

    calls = 0

    def __call__(self, z: torch.Tensor, hook: Any = None) -> torch.Tensor:
        self.calls += 1
        return z * 1.7 if self.calls == 1 else z


def with_gradients(z: torch.Tensor, hook: Any = None) -> torch.Tensor:
    return z * 1.7 if torch.is_grad_enabled() else z


@pytest.mark.parametrize(
    ("measure", "make"),
    [(sl.path_bound, OnlyFirst), (sl.top_tokens, OnlyFirst), (sl.jacobian_norms, OnlyFirst),
     (sl.jacobian_norms, lambda: with_gradients)],
)  # fmt: skip
def test_the_pass_that_gave_the_numbers_is_compared_itself(measure: Any, make: Any, bridge_of: Any) -> None:
    model = bridge_of("llama")
    hook = sl.hooks.Hook("h", SITE, make())
    with sl.applied(model, hook), pytest.raises(InputError, match="other numbers in each run"):
        measure(model, IDS)


@contextmanager
def removed(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("hang", ["point", "module", "every", "tensor"])
def test_hooks_that_change_derivatives_alone_are_refused(hang: str, bridge_of: Any) -> None:
    model = bridge_of("llama")

    def within(z: torch.Tensor, hook: Any) -> None:
        if z.requires_grad:
            z.register_hook(lambda g: g * 1e-6)

    def smaller(*arguments: Any) -> None:
        return None

    mlp, site = model.original_model.model.layers[1].mlp, "blocks.1.hook_resid_pre"
    hooks: dict[str, Callable[[], Any]] = {
        "point": lambda: model.hooks(bwd_hooks=[(site, lambda g, hook: (g * 1e-6,))]),
        "module": lambda: removed(mlp.register_full_backward_hook(smaller)),
        "every": lambda: removed(torch.nn.modules.module.register_module_full_backward_hook(smaller)),
        "tensor": lambda: model.hooks(fwd_hooks=[(site, within)]),
    }
    with hooks[hang]():
        with pytest.raises(InputError, match="changes derivatives but not the model's output"):
            sl.certified_bound(model, IDS)
        with pytest.raises(InputError, match="changes derivatives but not the model's output"):
            sl.jacobian_norms(model, IDS)
