"""The Jacobian's blocks against jacrev on the plain model, and their directions against finite steps."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from tests.cases import CONFIGS, random_model
from tests.references import jacobian_by_jacrev

IDS = torch.tensor([2, 7, 11, 30, 7, 7, 59])


@pytest.mark.few(2)
@pytest.mark.parametrize("family", ["gemma", "gemma2", "gpt2", "qwen2"])
def test_blocks_and_directions_are_those_of_the_plain_model(
    family: str, bridge_of: Callable[..., Any]
) -> None:
    plain = random_model(CONFIGS[family]).double()
    truth = jacobian_by_jacrev(plain, IDS[None], 6).detach().double().numpy()[[1, 4, 6]]
    found = sl.jacobian(bridge_of(family, torch.float64), IDS, positions=[4, 6, 1], k=4)
    assert found["position"].values.tolist() == [1, 4, 6]
    assert found["token_id"].values.tolist() == [7, 7, 59]
    np.testing.assert_allclose(found["jacobian"], truth, atol=1e-6 * abs(truth).max())
    values = np.linalg.svd(truth, compute_uv=False)
    np.testing.assert_allclose(found["singular_value"], values[:, :4], rtol=1e-5)
    np.testing.assert_allclose(
        found["share"],
        (values**2 / (values**2).sum(axis=1, keepdims=True))[:, :4],
        rtol=1e-5,
    )
    left, right = found["left"].values, found["right"].values
    for vectors in (left, right):
        np.testing.assert_allclose(
            vectors @ vectors.transpose(0, 2, 1),
            np.broadcast_to(np.eye(4), (3, 4, 4)),
            atol=1e-9,
        )
    moved = np.einsum("poi,pki->pko", truth, right)
    np.testing.assert_allclose(
        moved, values[:, :4, None] * left, atol=1e-5 * values.max()
    )
    assert (
        np.take_along_axis(left, abs(left).argmax(axis=2)[..., None], axis=2) > 0
    ).all()


@pytest.mark.parametrize("family", ["gemma2", "gpt2"])
def test_logits_change_as_a_step_along_the_direction_says(
    family: str, bridge_of: Callable[..., Any]
) -> None:
    """Against a central difference: a hook moves a token's embedding by a small step; gemma2 caps its logits."""
    model = bridge_of(family, torch.float64)
    found = sl.jacobian(model, IDS, positions=[3], k=2)
    for direction in (0, 1):
        one = found.isel(position=0, direction=direction)
        right, logits = torch.tensor(one["right"].values), []
        for sign in (1, -1):

            def step(
                stream: torch.Tensor, hook: Any, by: torch.Tensor = sign * 1e-3 * right
            ) -> torch.Tensor:
                moved = stream.clone()
                moved[:, 3] += by
                return moved

            with (
                torch.no_grad(),
                model.hooks(fwd_hooks=[("blocks.0.hook_resid_pre", step)]),
            ):
                logits.append(model(IDS[None], use_cache=False)[0, 6].double())
        change = (logits[0] - logits[1]) / 2e-3
        change -= change.mean()
        order = change.argsort().tolist()
        scale = change.abs().max().item()
        for name, ids in (("raised", order[::-1][:5]), ("lowered", order[:5])):
            np.testing.assert_allclose(one[name], change[ids], atol=2e-3 * scale)
            assert one[f"{name}_token"].values[0] == f"#{ids[0]}"
    assert sl.results.provenance(found)["unembedded"] == "yes"
