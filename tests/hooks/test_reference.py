"""Other prompts' streams in a token's place, against PyTorch hooks on the plain model and against edited inputs."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch

import squashlens as sl
from squashlens.errors import InputError
from tests.cases import FAMILIES, few
from tests.references import model_with_streams, raw

IDS = torch.tensor([[2, 5, 9, 11, 9, 30, 31, 9, 17, 4]])
OTHERS = torch.tensor([[2, 7, 8, 12, 19, 20, 21, 22, 3, 6], [2, 40, 41, 42, 43, 44, 45, 46, 47, 48]])
PLACES = (2, 5)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS, use_cache=False)


@pytest.mark.parametrize("family", few(FAMILIES))
def test_the_mean_and_a_drawn_prompt(family: str, bridge_of: Callable[..., Any], plain_of: Callable[..., Any]) -> None:
    model, plain = bridge_of(family), plain_of(family)
    with torch.no_grad():
        states = plain(OTHERS, use_cache=False, output_hidden_states=True).hidden_states
    rows = torch.stack(list(states[:3]))[:, :, list(PLACES)]
    drawn = Random("resample 1").randrange(2)
    for hook, expected in (
        (sl.hooks.mean_residual(PLACES, OTHERS, blocks=(1, 2), bos="as-given"), rows.mean(dim=1)),
        (sl.hooks.resample_residual(PLACES, OTHERS, blocks=(1, 2), seed=1, bos="as-given"), rows[:, drawn]),
    ):
        before = logits(model)
        with sl.applied(model, hook):
            found = logits(model)
        with torch.no_grad():
            truth = model_with_streams(plain, PLACES, 1, expected)(IDS, use_cache=False).logits
        torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-4)
        assert (found - before).abs().max() > 1e-2
        assert torch.equal(logits(model), before)


def test_every_block_from_the_first_is_another_token(bridge_of: Callable[..., Any]) -> None:
    """Put in at block 0 alone, the other prompt's streams are its embeddings: as if that token stood there."""
    model = bridge_of("gemma3")
    swapped = IDS.clone()
    swapped[0, 5] = OTHERS[1, 5]
    with sl.applied(model, sl.hooks.mean_residual([5], OTHERS[1:], blocks=(0,), bos="as-given")):
        found = logits(model)
    with torch.no_grad():
        torch.testing.assert_close(found, model(swapped, use_cache=False), rtol=1e-5, atol=1e-5)


def test_the_reference_is_the_plain_models(bridge_of: Callable[..., Any]) -> None:
    """Hooks that stand, or are hung along with it, have no part in the reference."""
    model = bridge_of("llama")
    hook = sl.hooks.mean_residual(PLACES, OTHERS, blocks=(2,), bos="as-given")
    wipe = sl.hooks.zero_residual((1,), blocks=(0,))
    with sl.applied(model, wipe), sl.applied(model, hook):
        nested = logits(model)
    with sl.applied(model, wipe, hook):
        assert torch.equal(logits(model), nested)


def test_nothing_depends_on_the_token_that_stands_there(bridge_of: Callable[..., Any]) -> None:
    """From block 0 on: another token at that position changes no bit behind it, and one elsewhere does."""
    model = bridge_of("gemma")
    with sl.applied(model, sl.hooks.resample_residual(PLACES, OTHERS, seed=0, bos="as-given")), torch.no_grad():
        before = model(IDS, use_cache=False)[:, -1]
        for place in (2, 5, 4):
            swapped = IDS.clone()
            swapped[0, place] = 33
            assert torch.equal(model(swapped, use_cache=False)[:, -1], before) == (place in PLACES)


def test_refusals(bridge_of: Callable[..., Any]) -> None:
    model = bridge_of("llama")
    for hook, complaint in (
        (sl.hooks.mean_residual([10], OTHERS, bos="as-given"), "has no position 10"),
        (sl.hooks.mean_residual([2], OTHERS, blocks=(3,), bos="as-given"), "has block 3"),
    ):
        with pytest.raises(InputError, match=complaint), sl.applied(model, hook):
            pass
    with pytest.raises(InputError, match=r"mean_residual: \(\) are not positions"):
        raw(sl.hooks.mean_residual)([], OTHERS)
