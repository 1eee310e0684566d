"""The audit against each measurement by itself; swaps and proxies against plain models."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import sem, spearmanr, t

import squashlens as sl
from squashlens.measure.squashing.estimates import ATTRIBUTIONS, one_cotangent, rollout
from tests.cases import CONFIGS, random_model
from tests.references import jacobian_by_jacrev, plain_outputs

IDS = torch.tensor([[2, 7, 11, 30, 7, 7, 59], [2, 8, 8, 30, 9, 7, 12]])


def test_substitution_is_seeded(tiny: Any) -> None:
    among: dict[str, Any] = {"candidates": list(range(20, 60)), "n_replacements": 2}
    one, again, other = (sl.substitution_effect(tiny, "110101 =", **among, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one["effect"], again["effect"])
    assert (one["effect"] != other["effect"]).values[1:].any()
    layer = sl.substitution_effect(tiny, "110 =", to_layer=3)
    assert "kl" not in layer


def test_proxies_against_jacrev(bridge_of: Callable[..., Any]) -> None:
    model, plain = bridge_of("gemma", torch.float64), random_model(CONFIGS["gemma"]).double()
    blocks = jacobian_by_jacrev(plain, IDS[:1], 6).detach()
    ones = one_cotangent(model, IDS[0], of="ones")
    np.testing.assert_allclose(ones.values, blocks.sum(dim=1).norm(dim=-1), rtol=1e-5)
    with torch.no_grad():
        best = plain_outputs(plain, IDS[:1]).logits[0, -1].argmax()
    row = plain.get_output_embeddings().weight[best].detach()
    top = one_cotangent(model, IDS[0], of="top_logit")
    np.testing.assert_allclose(top.values, (row @ blocks).norm(dim=-1), rtol=1e-5)
    shares = sl.paths.composition(model, IDS[0]).sel(layer=0)
    np.testing.assert_array_equal(rollout(model, IDS[0]).values, shares.values)


def ranks(one: np.ndarray, other: np.ndarray) -> list[float]:
    """Spearman's ρ for each prompt."""
    return [spearmanr(a, b).statistic for a, b in zip(one, other, strict=True)]


@pytest.mark.slow
def test_the_audit_is_its_parts(bridge_of: Callable[..., Any]) -> None:
    model = bridge_of("gemma2", torch.float64)
    found = sl.audit(model, IDS, positions=[2, 3, 4, 5], n_probes=4, n_replacements=3)
    assert found["value"].dims == ("estimate", "prompt", "position")
    value = found["value"]
    parts = {
        "paper form": sl.path_bound(model, IDS),
        "null": sl.path_bound(model, IDS, attention="uniform"),
        "analytic edges, attention and norms frozen": sl.certified_bound(model, IDS, freeze=("attention", "norms")),
        "two blocks composed": sl.certified_bound(model, IDS, edges="exact", n_composed=2),
        "Jacobian, norms frozen": sl.jacobian_norms(model, IDS, freeze="norms"),
        "Frobenius norm": sl.jacobian_norms(model, IDS, norm="frobenius"),
        "Jacobian": sl.jacobian_norms(model, IDS),
        "knockout KL": sl.knockout_effect(model, IDS)["kl"],
    }
    for name, part in parts.items():
        np.testing.assert_allclose(value.sel({"estimate": name}).values, part.values, rtol=1e-9, err_msg=name)
    bounds = found.sel({"estimate": found["bounds"] != ""})
    assert bounds.sizes["estimate"] == 14
    assert (bounds["tightness"].values >= 1 - 1e-9).all()
    tight = value.sel({"estimate": "analytic edges, norms frozen"}) / value.sel({"estimate": "Jacobian, norms frozen"})
    np.testing.assert_allclose(found["tightness"].sel({"estimate": "analytic edges, norms frozen"}), tight)
    assert found["tightness"].sel({"estimate": "paper form"}).isnull().all()
    assert found["cost"].sel({"estimate": "Jacobian"}) == 1
    inner = {name: value.sel(estimate=name).isel(position=[2, 3, 4, 5]).values for name in found["estimate"].values}
    paper, null, truth = (inner[name] for name in ("paper form", "null", "Jacobian"))
    at: Any = {"estimate": "paper form", "reference": "Jacobian", "way": "raw"}
    agreement = found["agreement"]
    assert agreement.sel(at).item() == pytest.approx(np.mean(ranks(paper, truth)))
    assert agreement.sel(at | {"way": "over_null"}).item() == pytest.approx(np.mean(ranks(paper / null, truth)))
    assert agreement.sel(at | {"estimate": "Jacobian"}).item() == pytest.approx(1)
    assert found["agreement_low"].sel(at) <= agreement.sel(at) <= found["agreement_high"].sel(at)
    paired = [found[f"agreement_over_jacobian{end}"].sel(at).item() for end in ("", "_low", "_high")]
    differences = np.array(ranks(paper, truth)) - 1  # the Jacobian agrees with itself
    assert paired[0] == pytest.approx(differences.mean())
    np.testing.assert_allclose(paired[1:], t.interval(0.95, len(IDS) - 1, differences.mean(), sem(differences)))
    # Attributions are compared with effects as well. A logit is not a norm, and bounds none.
    effects = ["substitution effect", "leave-one-out KL", "knockout KL", "expected replacement KL"]
    assert found["reference"].values.tolist() == ["Jacobian", *effects]
    attributed = found.sel({"estimate": list(ATTRIBUTIONS)})
    assert set(attributed["kind"].values) == {"attribution"}
    assert attributed["over_jacobian"].isnull().all()
    assert attributed["tightness"].isnull().all()
    judged = {"estimate": "value-weighted attention", "reference": "leave-one-out KL", "way": "raw"}
    expected = np.mean(ranks(inner[judged["estimate"]], inner[judged["reference"]]))
    assert agreement.sel(judged).item() == pytest.approx(expected)
    table = sl.results.table(found, reference=judged["reference"])
    assert table.loc[judged["estimate"], "raw"] == pytest.approx(expected)
    needing = {"gradient times input", "integrated gradients", "occlusion", "AttnLRP"}  # a library
    assert {*found["estimate"].values[found["refused"].values != ""]} <= needing
