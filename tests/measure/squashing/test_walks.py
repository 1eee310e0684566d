"""Path tools on real models, against the plain models' patterns."""

from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from tests.cases import FAMILIES, few
from tests.references import mean_patterns, path_sum
from tests.theory.test_path_sums import walks

IDS = torch.tensor([[2, 5, 9, 11, 30]])
COUNTED = {"sigma_psi": 0.0}


@pytest.mark.parametrize("family", few(FAMILIES))
def test_strongest_paths_of_a_model(family: str, bridge_of: Any, plain_of: Any) -> None:
    patterns = mean_patterns(plain_of(family), IDS)
    expected = walks([torch.tensor(p) for p in patterns], 3)
    best = sl.attention_paths.strongest_paths(bridge_of(family), IDS, k=6, query=3)
    np.testing.assert_allclose(best["weight"], [w for w, _ in expected[:6]], rtol=1e-5)
    assert best["position_at"].values[0].tolist() == list(expected[0][1])
    seen = [p > 0 for p in patterns]
    null = dict(
        map(
            reversed,
            walks([torch.tensor(a / a.sum(axis=1, keepdims=True)) for a in seen], 3),
        )
    )
    for walk, weight, ratio in zip(
        best["position_at"].values,
        best["weight"].values,
        best["over_null"].values,
        strict=True,
    ):
        assert ratio == pytest.approx(weight / null[tuple(walk)], rel=1e-6)
    total = path_sum(patterns, 3).sum()
    np.testing.assert_allclose(best["share"], best["weight"] / total, rtol=1e-5)
    elsewhere = [(w, walk) for w, walk in expected if not {0, 2} & {*walk}]
    others = sl.attention_paths.strongest_paths(
        bridge_of(family), IDS, k=6, query=3, avoid=[0, 2]
    )
    np.testing.assert_allclose(
        others["weight"], [w for w, _ in elsewhere[:6]], rtol=1e-5
    )
    np.testing.assert_allclose(others["share"], others["weight"] / total, rtol=1e-5)
    everything = sl.attention_paths.strongest_paths(
        bridge_of(family), IDS, k=10_000, query=3
    )
    assert everything["share"].sum().item() == pytest.approx(1, rel=1e-9)


@pytest.mark.few(2)
@pytest.mark.parametrize("attention", ["model", "uniform", "topological"])
def test_hops_add_up_to_the_bound(
    attention: Any, bridge_of: Any, plain_of: Any
) -> None:
    for family in ("gemma", "gemma3", "gpt2"):
        model = bridge_of(family)
        shares = sl.attention_paths.hops(model, IDS, attention=attention)
        bound = sl.path_bound(model, IDS, attention=attention, **COUNTED)
        np.testing.assert_allclose(
            shares.sum("hop"), bound / bound.sum(), rtol=1e-7
        )  # weights are float32
        assert shares.sizes == {"hop": 4, "position": 5}
        null = sl.path_bound(model, IDS, attention="uniform", **COUNTED)
        np.testing.assert_allclose(
            shares["null"].sum("hop"), null / null.sum(), rtol=1e-9
        )
        assert shares.sel(hop=0).values.tolist()[:-1] == [0, 0, 0, 0]
        # Attending in every block: the product of the patterns alone.
        if attention == "model":
            product = np.linalg.multi_dot(mean_patterns(plain_of(family), IDS)[::-1])[
                -1
            ]
            np.testing.assert_allclose(
                shares.sel(hop=3) * float(bound.sum()), product, rtol=1e-5
            )


def test_topological_bound_counts_paths(bridge_of: Any) -> None:
    """(T + I)³ for full attention; windows cut paths."""
    full = sl.path_bound(bridge_of("llama"), IDS, attention="topological", **COUNTED)
    matrix = np.tril(np.ones((5, 5))) + np.eye(5)
    assert full.values.tolist() == np.linalg.matrix_power(matrix, 3)[-1].tolist()
    long = torch.arange(3, 13)[None]
    cut = sl.path_bound(bridge_of("mistral"), long, attention="topological", **COUNTED)
    whole = sl.path_bound(bridge_of("llama"), long, attention="topological", **COUNTED)
    assert (cut <= whole).all()
    assert cut.values[0] < whole.values[0]


@pytest.mark.parametrize("family", ["gemma", "llama", "gpt2"])
def test_depth_limit_against_eigenvalues(
    family: str, bridge_of: Any, plain_of: Any
) -> None:
    ds = sl.attention_paths.depth_limit(bridge_of(family), IDS, depth=200)
    for block, pattern in enumerate(mean_patterns(plain_of(family), IDS)):
        half = (pattern + np.eye(5)) / 2
        power = np.linalg.matrix_power(half, 7)[-1]
        assert ds["first_share"].sel(block=block, depth=7).item() == pytest.approx(
            power[0], rel=1e-5
        )
        eigenvalues = np.sort(np.linalg.eigvals(half).real)
        assert ds["predicted_rate"].sel(block=block).item() == pytest.approx(
            eigenvalues[-2], rel=1e-5
        )
        assert ds["observed_rate"].sel(block=block).item() == pytest.approx(
            eigenvalues[-2], rel=0.05
        )
        assert ds["first_share"].sel(block=block, depth=200).item() == pytest.approx(
            1, abs=1e-6
        )
    assert (ds["absorbing"] == 0).all()
    np.testing.assert_allclose(ds["first_share"] + ds["rest"], 1, atol=1e-4)


def test_tokens_that_see_only_themselves_break_the_premise(tiny: Any) -> None:
    def selfish(pattern: torch.Tensor) -> torch.Tensor:
        changed = pattern.clone()
        changed[:, :, 2] = 0.0
        changed[:, :, 2, 2] = 1.0
        return changed

    with sl.applied(
        tiny, sl.hooks.Hook("selfish", "blocks.{block}.attn.hook_pattern", selfish)
    ):
        ds = sl.attention_paths.depth_limit(tiny, "1101 =")
    assert (ds["absorbing"] >= 1).all()
    assert (ds["first_share"].sel(depth=64) < 0.99).any()
