"""What no hook can do raises an error: when it is made, when it is applied, or in the pass."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import squashlens as sl
from squashlens import hooks as change
from squashlens.errors import InputError, RangeError, UnsoundModelError
from squashlens.hooks.round_activations import rounded
from tests.conftest import PROMPT
from tests.hooks.passes import IDS, logits
from tests.measurements import model as tiny
from tests.references import raw

SITE = "blocks.1.attn.hook_z"
OTHER = torch.tensor([[2, 7, 8, 12, 19, 20, 21, 22, 3, 6]])
SHORT = OTHER[:, :4]
WRONG_SHAPE = {"blocks.0.attn.hook_z": torch.zeros(1, 10, 4, 5)}


def half(z: torch.Tensor) -> torch.Tensor:
    return z * 0.5


def index_of_nothing(tensor: torch.Tensor) -> torch.Tensor:
    return tensor[[][0]]


MADE: list[Callable[[], Any]] = [
    lambda: change.sliding_window(0),
    lambda: change.sliding_window(3, sink=-1),
    lambda: change.attention_temperature(0.0),
    lambda: change.mask_attention((1,), ()),
    lambda: change.zero_attention((-1,)),
    lambda: change.mask_tokens((1,), heads=()),
    lambda: raw(change.zero_heads)([-1]),
    lambda: change.scale_attention(-1.0, [2]),
    lambda: change.log_scaling(1),
    lambda: change.patch_residual([2, 2], OTHER),
    lambda: change.patch_residual([2], OTHER, from_positions=[1, 2]),
    lambda: change.patch_heads([2], OTHER, from_positions=[1]),
    lambda: change.patch_heads([0], sl.capture(tiny(), PROMPT)),
    lambda: change.round_activations(-1),
    lambda: raw(change.round_activations)("int8"),
    lambda: rounded(torch.tensor([1.0, -1e6]), "float16"),
    lambda: change.find_positions(tiny(), PROMPT, ";"),
    lambda: change.find_positions(tiny(), PROMPT, "one"),  # a part of "ones"
    lambda: change.find_positions(tiny(), PROMPT, str.isspace),
    lambda: change.find_positions(tiny(), [PROMPT, PROMPT], "1"),
    lambda: change.Hook("mine", SITE, lambda: 0),
    lambda: change.Hook("mine", SITE, lambda a, b: a),
    lambda: change.Hook("mine", SITE, lambda a, b, c: a),
]
APPLIED: list[Any] = [
    change.sliding_window(2, heads=(9,)),
    change.sliding_window(2, blocks=(7,)),
    change.zero_heads([4]),
    # Positions beyond the prompt.
    change.zero_residual([10, 12]),
    change.mask_tokens([10]),
    change.zero_mlp(positions=[10]),
    change.zero_heads([1], positions=[15]),
    # Of the source.
    change.patch_residual([10], OTHER),
    change.patch_residual([1], torch.cat([OTHER, OTHER])),
    change.patch_residual([1], OTHER, (3,)),
    change.patch_heads([1], WRONG_SHAPE),
    change.patch_heads([1], {}),
    change.patch_heads([0], SHORT),
    change.mean_residual([10], OTHER),
    # Other things than hooks.
    3,
    (SITE,),
    (SITE, 3),
    (SITE, half, "fwd"),
    half,
    {SITE: half},
    (SITE, lambda *, tensor, hook: tensor),
    ("blocks.1.attn.hook_zz", half),
    (lambda name: False, half),
    ("embed.hook_in", lambda tensor, hook: None),  # token ids are no activations
]


@pytest.mark.parametrize("make", MADE, ids=range(len(MADE)))
def test_a_hook_that_cannot_be_made(make: Callable[[], Any]) -> None:
    with pytest.raises((InputError, RangeError)):
        make()


@pytest.mark.parametrize("hook", APPLIED, ids=range(len(APPLIED)))
def test_a_hook_that_cannot_be_applied(
    hook: Any, bridge_of: Callable[..., Any]
) -> None:
    model = bridge_of("llama")
    before = logits(model)
    with pytest.raises(InputError):
        logits(model, hook)
    assert torch.equal(logits(model), before)


def test_hooks_that_are_taken_off_while_they_are_in_use(
    bridge_of: Callable[..., Any],
) -> None:
    model = bridge_of("llama")
    with pytest.raises(InputError), sl.applied(model, sl.hooks.zero_residual([1])):
        model.reset_hooks()


def test_logits_beyond_the_range_of_the_dtype(bridge_of: Any) -> None:
    model = bridge_of("llama", torch.bfloat16)
    for hook in (change.log_scaling(4), change.adaptive_temperature()):
        assert logits(model, hook).isfinite().all()
    freeze = change.attention_temperature(1e-40)
    with pytest.raises(UnsoundModelError), sl.applied(model, freeze):
        sl.top_tokens(model, IDS)


def test_functions_that_fail_or_have_no_derivative(bridge_of: Any) -> None:
    """The error is that of the function, with a note that names the hooks."""
    model = bridge_of("llama")
    detached = ("blocks.2.hook_resid_pre", lambda tensor: tensor.detach())
    failing = ("blocks.1.hook_resid_pre", index_of_nothing)
    for hook, error in ((detached, RuntimeError), (failing, IndexError)):
        with pytest.raises(error) as caught, sl.applied(model, hook):
            sl.jacobian_norms(model, IDS)
        assert hook[0] in caught.value.__notes__[0]
