"""`token_influence` against one call for each query, its means by distance, and statistics against what a capture
shows."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl

IDS = torch.tensor([2, 7, 11, 30, 7, 7, 59])


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["gemma", "gemma3", "gpt2"])
def test_every_query_is_as_in_a_call_for_it(
    family: str, bridge_of: Callable[..., Any]
) -> None:
    model = bridge_of(family)
    found = sl.token_influence(model, IDS, layers=[0, 2, 3], method="auto")
    assert found["path_bound"].dims == ("query", "layer", "position")
    for query, layer in product((0, 4, 6), (0, 2)):
        one = found.sel(query=query, layer=layer)
        place: dict[str, Any] = {"query": query, "from_layer": layer}
        np.testing.assert_allclose(
            one["path_bound"], sl.path_bound(model, IDS, **place), rtol=1e-6
        )
        null = sl.path_bound(model, IDS, attention="uniform", **place)
        np.testing.assert_allclose(one["null"], null, rtol=1e-12)
        truth = sl.jacobian_norms(model, IDS, **place)
        np.testing.assert_allclose(
            one["jacobian"], truth, rtol=1e-4, atol=1e-7 * float(truth.max())
        )
    final = sl.jacobian_norms(model, IDS, from_layer=3, query=4)
    np.testing.assert_allclose(
        found["jacobian"].sel(query=4, layer=3), final, rtol=1e-5
    )
    assert final[4] > 0


@pytest.mark.slow
def test_distances_are_means_of_what_positions_keep(tiny: Any) -> None:
    prompt = "How many ones are in 1101 ="
    whole = sl.token_influence(tiny, prompt)["path_bound"].sel(layer=2)
    found = sl.influence_by_distance(tiny, prompt)
    assert list(found["quantity"].values) == ["path_bound", "null", "path_bound_random"]
    means = found.sel(quantity="path_bound", layer=2)
    n = whole.sizes["position"]
    for r in range(n - 1):
        # without BOS
        values = [whole.sel(query=q)[q - r].item() for q in range(1 + r, n)]
        assert means["influence"][r].item() == pytest.approx(np.mean(values))
        assert int(means["pairs"][r]) == n - 1 - r
    low = means["exponent_low"]
    high = means["exponent_high"]
    assert 0.99 * low <= means["exponent"] <= 1.01 * high  # ends are found to 10⁻⁴


def test_heads_and_representations_are_those_of_a_capture(tiny: Any) -> None:
    prompt = "How many ones are in 1101 ="
    found = sl.token_influence(tiny, prompt)
    heads = sl.head_statistics(tiny, prompt)
    run = sl.capture(tiny, prompt)
    again = sl.token_influence(tiny, run)
    np.testing.assert_allclose(again["path_bound"], found["path_bound"], rtol=1e-5)
    seen = run.to_xarray()
    pattern = seen["pattern"][:, 0].values.astype(float)
    streams = seen["residual"][:, 0].values.astype(float)
    np.testing.assert_allclose(
        heads["sink_rate"], pattern[:, :, 1:, 0].mean(axis=2), rtol=1e-4
    )
    logs = np.where(pattern > 0, np.log(np.where(pattern > 0, pattern, 1)), 0)
    entropy = -(pattern * logs).sum(axis=-1)[:, :, 1:].mean(axis=2)
    np.testing.assert_allclose(
        heads["attention_entropy"], entropy, rtol=1e-4, atol=1e-6
    )
    assert (
        heads["attention_entropy"].max("head") <= heads["uniform_entropy"] + 1e-6
    ).all()
    sizes = np.linalg.norm(streams, axis=-1)
    np.testing.assert_allclose(found["first_token_norm"], sizes[:, 0], rtol=1e-5)
    np.testing.assert_allclose(
        found["stream_norm"], sizes[:, 1:].mean(axis=1), rtol=1e-5
    )
    singular = np.linalg.svd(streams, compute_uv=False)
    shares = singular / singular.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        found["effective_rank"],
        np.exp(-(shares * np.log(shares)).sum(axis=1)),
        rtol=1e-4,
    )
    longer = torch.cat([run.ids, run.ids[:, -1:]], dim=1)
    other = sl.capture(tiny, longer).to_xarray()["residual"][:, 0, -1].values
    distance = np.abs(streams[:, -1] - other).max(axis=-1)
    np.testing.assert_allclose(
        found["collapse_distance"], distance, rtol=1e-3, atol=1e-4
    )
    with torch.no_grad():
        _, cache = tiny.run_with_cache(run.ids, names_filter="blocks.2.attn.hook_v")
    values = cache["blocks.2.attn.hook_v"][0].norm(dim=-1).numpy()
    np.testing.assert_allclose(
        heads["sink_value_norm"][2],
        np.repeat(values[0], 4 // values.shape[1]),
        rtol=1e-5,
    )
    np.testing.assert_allclose(
        heads["value_norm"][2, 0], values[1:, 0].mean(), rtol=1e-5
    )
