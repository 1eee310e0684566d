"""Jacobian norms against jacrev and central differences on the plain model, and against closed forms."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.measure.squashing.jacobians.sketch import EVENTS, Measure
from squashlens.theory.norms import gram_of, normals, sketch_factors
from tests.cases import CONFIGS, FAMILIES, MORE, few, random_model
from tests.references import (
    block_jacobian,
    exact_norms,
    jacobian_by_differences,
    jacobian_by_jacrev,
)

IDS = torch.tensor([2, 7, 11, 30, 7, 7, 59])


def norms_of(blocks: torch.Tensor) -> dict[str, np.ndarray]:
    blocks = blocks.detach().double()
    return {
        "spectral": torch.linalg.svdvals(blocks)[:, 0].numpy(),
        "frobenius": blocks.square().sum(dim=(1, 2)).sqrt().numpy(),
    }


# The softmax runs in float32 even here, so a step must stand well above its rounding.
TWINS = {
    "jacrev": (jacobian_by_jacrev, 1e-6),
    "differences": (partial(jacobian_by_differences, step=1e-3), 1e-3),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("family", few(FAMILIES))
def test_equals_the_plain_models_jacobian(
    family: str, twin: str, bridge_of: Callable[..., Any]
) -> None:
    blocks, rtol = TWINS[twin]
    truth = norms_of(blocks(random_model(CONFIGS[family]).double(), IDS[None], 6))
    for norm, expected in truth.items():
        assert expected.min() > 1e-3 * expected.max()  # known values, none of them zero
        found = sl.jacobian_norms(
            bridge_of(family, torch.float64), IDS, norm=norm, vjp_batch_size=5
        )
        np.testing.assert_allclose(found.values, expected, rtol=rtol)


def test_sources_and_targets_against_the_plain_blocks(
    bridge_of: Callable[..., Any],
) -> None:
    model = bridge_of("gemma")
    for top in (2, "y"):
        found = sl.jacobian_norms(model, IDS, from_layer=1, to_layer=top)
        blocks = block_jacobian(random_model(CONFIGS["gemma"]), IDS[None], 1, top, [6])[
            0
        ]
        expected = norms_of(blocks.transpose(0, 1))["spectral"]
        np.testing.assert_allclose(found.values, expected, rtol=2e-5, atol=1e-7)


def test_the_final_norm_alone_in_closed_form(bridge_of: Callable[..., Any]) -> None:
    """∂y/∂v⁽ᴸ⁾ of an RMSNorm is G (I − v̂v̂ᵀ ρ⁻²/d) / ρ."""
    model = bridge_of("gemma", torch.float64)
    run = sl.capture(model, IDS)
    v = run.residuals[3][0, -1]
    gain = 1 + model.ln_final.weight.detach()
    rho = (v.square().mean() + model.original_model.config.rms_norm_eps).sqrt()
    block = (
        gain[:, None]
        * (torch.eye(16, dtype=torch.float64) - torch.outer(v, v) / (16 * rho**2))
        / rho
    )
    found = sl.jacobian_norms(model, IDS, from_layer=3)
    assert found.values[-1] == pytest.approx(
        torch.linalg.matrix_norm(block, ord=2).item(), rel=1e-6
    )
    assert (found.values[:-1] == 0).all()


@pytest.mark.few(1)
@pytest.mark.parametrize("norm", ["spectral", "frobenius"])
def test_chunks_and_batches_do_not_matter(
    bridge_of: Callable[..., Any], norm: Any
) -> None:
    model, prompts = bridge_of("gemma2"), torch.stack([IDS, IDS.flip(0), IDS.roll(2)])
    together = sl.jacobian_norms(model, prompts, norm=norm, vjp_batch_size=13)
    for i, prompt in enumerate(prompts):
        alone = sl.jacobian_norms(
            model, prompt, norm=norm, vjp_batch_size=1 if i == 0 else None
        )
        np.testing.assert_allclose(together[i].values, alone.values, rtol=2e-4)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_works_without_gradients(mode: Any, tiny: Any) -> None:
    expected = sl.jacobian_norms(tiny, "110 =")
    with mode():
        np.testing.assert_array_equal(sl.jacobian_norms(tiny, "110 ="), expected)


@pytest.mark.slow
def test_sketches_stand_where_they_say(bridge_of: Callable[..., Any]) -> None:
    """Squares of estimates without bias; intervals and upper bounds that hold at every position and seed."""
    model = bridge_of("gemma3", torch.float64)
    exact = {
        norm: sl.jacobian_norms(model, IDS, norm=norm)
        for norm in ("spectral", "frobenius")
    }

    def sketched(seed: int, norm: Any, method: Any, n_probes: int = 6) -> Any:
        return sl.jacobian_norms(
            model, IDS, norm=norm, method=method, n_probes=n_probes, seed=seed
        )

    for norm, truth in exact.items():
        found = [sketched(seed, norm, "sketch") for seed in range(50)]
        assert all(((one["low"] <= one) & (one <= one["high"])).all() for one in found)
        inside = [
            bool(((one["low"] <= truth) & (truth <= one["high"])).all())
            for one in found
        ]
        assert np.mean(inside) >= 0.95, "of all positions together"
        for seed in range(8):
            assert (
                sketched(seed, norm, "sketch_upper") >= truth * (1 - 1e-5)
            ).all()  # norms run in float32
    squares, truth = [one.values**2 for one in found], exact["frobenius"].values ** 2
    np.testing.assert_allclose(
        np.mean(squares, axis=0), truth, rtol=4 * (2 / 6 / 50) ** 0.5
    )
    assert (np.std(squares, axis=0) <= 1.2 * (2 / 6) ** 0.5 * truth).all()
    whole = sketched(
        0, "spectral", "sketch", n_probes=99
    )  # more than d: nothing is left out
    np.testing.assert_allclose(whole["low"], exact["spectral"].values, rtol=1e-6)
    upper = sketched(49, "frobenius", "sketch_upper")
    said = sl.results.provenance(upper)["sketch"]
    low, high = sketch_factors(6, 1e-6 / 3 / 7)  # of three events at seven positions
    np.testing.assert_allclose(upper.values, high * found[-1].values, rtol=1e-4)
    np.testing.assert_allclose(upper["low"].values, low * found[-1].values, rtol=1e-4)
    assert (said["kind"], said["failure_probability"], said["seed"]) == (
        "upper bound",
        1e-6,
        49,
    )
    assert upper.attrs["failure_probability"] == 1e-6


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["gemma", "gpt2", "llama", "qwen3"])
def test_an_interval_has_the_norm_of_the_float64_twin_in_it(
    family: str, bridge_of: Callable[..., Any]
) -> None:
    truth = exact_norms(random_model((CONFIGS | MORE)[family]), IDS)
    model, shared = bridge_of(family), {"method": "sketch_upper"}
    lows = []
    for seed, probes in enumerate((2, 11, 24)):
        found = sl.jacobian_norms(model, IDS, n_probes=probes, seed=seed, **shared)  # pyright: ignore
        assert (found.values >= truth * (1 - 1e-12)).all()
        assert (found["low"].values <= truth * (1 + 1e-12)).all()
        lows.append((found["low"].values / truth).min())
    assert lows[1] > 0.05
    np.testing.assert_allclose(
        lows[2], 1, rtol=1e-9
    )  # as many directions as coordinates: all of J is seen


def test_intervals_hold_together_as_often_as_stated() -> None:
    """Three norms of matrices of rank one, whose bounds fail most often: 600 draws, failure probability 0.2."""
    generator, k, d = torch.Generator().manual_seed(2), 8, 24
    columns = torch.randn(3, d, 1, generator=generator, dtype=torch.float64)
    norms = columns.norm(dim=(1, 2))
    low, high = [], []
    for seed in range(600):
        directions = normals(seed, d, k).T
        measure = Measure(directions)
        ends = measure.ends(
            measure(gram_of(directions @ columns))[None], 0.2 / 3 / EVENTS
        )
        low.append((ends.low[0] > norms).any().item())
        high.append((ends.high[0] < norms).any().item())
    either = np.mean(np.array(low) | np.array(high))
    assert 0.03 < np.mean(high) <= 0.2 / 3 + 3 * math.sqrt(0.06 / 600)
    assert np.mean(low) <= 0.2 / 3 + 3 * math.sqrt(0.06 / 600)
    assert either <= 2 * 0.2 / 3 + 3 * math.sqrt(
        0.12 / 600
    )  # a third is left for the comparison with moved results
