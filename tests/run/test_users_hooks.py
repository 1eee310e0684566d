"""Functions as hooks that would give each pass another model, and derivatives that do not exist."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import squashlens as sl
from squashlens.errors import InputError, UnsoundModelError
from tests.cases import CONFIGS, save_random

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


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize(
    "measure", [sl.path_bound, sl.substitution_effect, sl.capture, sl.jacobian_norms]
)
def test_a_function_that_mixes_prompts_is_refused(
    measure: Any, family: str, bridge_of: Any
) -> None:
    model, averaged = bridge_of(family), lambda z: z + z.mean(dim=0)
    for function in (averaged, first_of_the_batch, last_is_zero):
        with sl.applied(model, (SITE, function)), pytest.raises(InputError):
            measure(model, IDS)
    theirs = model.hooks(fwd_hooks=[(SITE, lambda z, hook: averaged(z))])
    with theirs, pytest.raises(InputError):
        measure(model, IDS)


def test_it_is_refused_of_a_model_that_is_verified_in_the_same_call(
    tmp_path: Path,
) -> None:
    """Verification takes the hooks off, and makes the lists of the model's parts anew."""
    model = sl.load(save_random(CONFIGS["llama"], tmp_path), device="cpu")
    for _ in range(2):
        with torch.no_grad():
            model.ln_final.weight.mul_(1.1)
        with (
            sl.applied(model, (SITE, lambda z: z * len(z))),
            pytest.raises(InputError),
        ):
            sl.path_bound(model, IDS)


def all_visible(scores: torch.Tensor, hook: Any = None) -> torch.Tensor:
    """A mask as in HookedTransformer, where masked scores are −∞; here they are the lowest finite number."""
    return torch.where(torch.isinf(scores), scores, torch.zeros_like(scores))


def prefix_is_visible(pattern: torch.Tensor, hook: Any = None) -> torch.Tensor:
    """The first three tokens see each other, as in a prefix language model."""
    pattern = pattern.clone()
    pattern[:, :, :3, :3] = 1 / 3
    return pattern


def from_the_last(_module: Any, _args: Any, out: torch.Tensor) -> torch.Tensor:
    return torch.cat([out[:, :-2], out[:, -2:-1] + out[:, -1:], out[:, -1:]], dim=1)


@pytest.mark.parametrize("form", ["applied", "add_hook", "prefix", "torch"])
@pytest.mark.parametrize(
    "measure",
    [sl.path_bound, sl.jacobian_norms, sl.capture],
)
def test_hooks_that_let_tokens_see_later_ones_are_refused(
    measure: Any, form: str, bridge_of: Any
) -> None:
    model, scores = bridge_of("llama"), "blocks.1.attn.hook_attn_scores"
    mlp = model.original_model.model.layers[1].mlp
    forms: dict[str, Callable[[], Any]] = {
        "applied": lambda: sl.applied(model, (scores, all_visible)),
        "add_hook": lambda: model.hooks(fwd_hooks=[(scores, all_visible)]),
        "prefix": lambda: sl.applied(
            model, ("blocks.1.attn.hook_pattern", prefix_is_visible)
        ),
        "torch": lambda: mlp.register_forward_hook(from_the_last),
    }
    with forms[form](), pytest.raises(UnsoundModelError):
        measure(model, IDS)


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["pair", "hook", "theirs"])
def test_functions_that_read_are_called_once_a_pass_and_on_the_prompt_alone(
    form: str, bridge_of: Any
) -> None:
    model, seen = bridge_of("llama"), []
    prompt, place = sl.capture(model, IDS).residuals[0], "blocks.0.hook_resid_pre"

    def read(stream: torch.Tensor, hook: Any = None) -> None:
        seen.append(torch.equal(stream, prompt))

    hook: Any = (place, read) if form == "pair" else sl.hooks.Hook("read", place, read)
    with (
        model.hooks(fwd_hooks=[(place, read)])
        if form == "theirs"
        else sl.applied(model, hook)
    ):
        for measure, passes in (
            (sl.path_bound, 1),
            (sl.capture, 1),
            (sl.bound_vs_jacobian, 3),
        ):
            seen.clear()
            measure(model, IDS)
            assert seen == [True] * passes
        held = sl.capture(model, IDS)
        known = len(seen)
        sl.path_bound(model, held)
        assert len(seen) == known


@pytest.mark.parametrize(
    "options", [{}, {"norm": "frobenius"}, {"method": "sketch"}], ids=str
)
def test_a_derivative_that_does_not_exist_is_refused(
    options: dict[str, Any], bridge_of: Any
) -> None:
    """Finite going forward: 0 · √|z| has the derivative 0 · ∞ at 0."""
    model = bridge_of("llama")
    with (
        sl.applied(model, (SITE, lambda z: (z * 0).abs().sqrt() + z)),
        pytest.raises(UnsoundModelError),
    ):
        sl.jacobian_norms(model, IDS, **options)


@pytest.mark.parametrize("where", ["point", "module", "bridge"])
def test_random_functions_are_found_wherever_they_are(
    where: str, bridge_of: Any
) -> None:
    """PyTorch's hooks on a hook point, on a module, and on the bridge itself."""
    model = bridge_of("llama")

    def noise(_module: Any, _args: Any, out: torch.Tensor) -> torch.Tensor:
        return out + 0.1 * torch.randn_like(out)

    places: dict[str, Any] = {
        "point": model.hook_dict[SITE],
        "module": model.original_model.model.layers[0].mlp,
        "bridge": model,
    }
    with places[where].register_forward_hook(noise), pytest.raises(InputError):
        sl.top_tokens(model, IDS)


@pytest.mark.parametrize("where", ["point", "module"])
def test_backward_hooks_are_refused(where: str, bridge_of: Any) -> None:
    """They change derivatives, but not the output."""
    model = bridge_of("llama")
    if where == "point":
        smaller = ("blocks.1.hook_resid_pre", lambda gradient, hook: (gradient / 10,))
        context = model.hooks(bwd_hooks=[smaller])
    else:
        mlp = model.original_model.model.layers[1].mlp
        context = mlp.register_full_backward_hook(lambda *arguments: None)
    with context:
        for measure in (sl.certified_bound, sl.jacobian_norms):
            with pytest.raises(InputError):
                measure(model, IDS)
