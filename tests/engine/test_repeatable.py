"""Functions as hooks that would give each pass another model, and derivatives that do not exist."""

from typing import Any

import pytest
import torch

import squashlens as sl
from squashlens.engine.running import repeatable
from squashlens.errors import InputError, UnsoundModelError

IDS = torch.tensor([2, 7, 11, 30, 7])
SITE = "blocks.1.attn.hook_z"
SHARED: dict[str, Any] = {"bos": "as-given", "progress": False}


def first_of_the_batch(z: torch.Tensor) -> torch.Tensor:
    z = z.clone()
    z[0, :, 1] = 0
    return z


def every_one(z: torch.Tensor) -> torch.Tensor:
    z = z.clone()
    z[:, :, 1] = 0
    return z


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (first_of_the_batch, "first_of_the_batch the numbers of a prompt depend on the other prompts in its batch"),
        (lambda z: z + z.mean(dim=0), "depend on the other prompts"),
        (lambda z: z * len(z), "depend on the other prompts"),
        (lambda z: z + 0.1 * torch.randn_like(z), "other numbers in each run"),
    ],
    ids=["first", "mean", "size", "random"],
)
def test_functions_that_make_another_model_of_each_pass_are_refused(
    family: str, function: Any, complaint: str, bridge_of: Any
) -> None:
    model = bridge_of(family)
    with sl.applied(model, (SITE, function)):
        for measure in (sl.jacobian_norms, sl.substitution_effect, sl.path_bound):
            with pytest.raises(InputError, match=complaint):
                measure(model, IDS, **SHARED)
    theirs = model.hooks(fwd_hooks=[(SITE, lambda z, hook: function(z))])
    with theirs, pytest.raises(InputError, match=complaint[-20:]):
        sl.jacobian_norms(model, IDS, **SHARED)


def test_a_measurement_made_of_others_tries_its_functions_once(bridge_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tried = bridge_of("llama"), []
    monkeypatch.setattr(repeatable, "_try", lambda model, ids, functions: tried.append(functions))
    with sl.applied(model, (SITE, every_one)):
        sl.sensitivity(model, IDS, **SHARED)
        assert len(tried) == 1
        sl.jacobian_norms(model, IDS, **SHARED)
        assert len(tried) == 2


def test_functions_that_treat_prompts_alike_are_measured(bridge_of: Any) -> None:
    model = bridge_of("llama")
    both = torch.stack([IDS, IDS.flip(0)])
    with sl.applied(model, (SITE, every_one)):
        together = sl.jacobian_norms(model, both, **SHARED)
        alone = sl.jacobian_norms(model, IDS, **SHARED)
    torch.testing.assert_close(torch.tensor(together.values[0]), torch.tensor(alone.values), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("options", [{}, {"norm": "frobenius"}, {"method": "sketch"}], ids=str)
def test_a_derivative_that_does_not_exist_is_refused(options: dict[str, Any], bridge_of: Any) -> None:
    """Finite going forward: 0 · √|z| has the derivative 0 · ∞ at 0."""
    model = bridge_of("llama")
    with (
        sl.applied(model, (SITE, lambda z: (z * 0).abs().sqrt() + z)),
        pytest.raises(UnsoundModelError, match="derivative is NaN or infinite"),
    ):
        sl.jacobian_norms(model, IDS, **SHARED, **options)
