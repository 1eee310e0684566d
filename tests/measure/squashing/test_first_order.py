"""First-order effects against the blocks of the Jacobian; audits of spans and their pools against their parts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import sem, t

import squashlens as sl
from squashlens.errors import InputError
from squashlens.measure.session import Session
from squashlens.measure.squashing.attributions import attribution
from squashlens.measure.squashing.estimates import first_order
from squashlens.measure.squashing.substitution import draw_variants
from squashlens.theory.probes import normals
from tests.cases import CONFIGS, random_model
from tests.references import first_residual, jacobian_by_jacrev, raw

IDS = torch.tensor([[2, 7, 11, 30, 7, 9, 59, 12]])
QUERY, SPANS, PROBES = 6, {"a": [1, 2], "b": [4]}, 256


@pytest.mark.parametrize("family", ["gemma3", "gpt2"])
def test_it_is_the_jacobian_times_the_change_of_embeddings(family: str, bridge_of: Callable[..., Any]) -> None:
    """GPT-2's position embedding is no part of the token's embedding, and stays."""
    model, plain = bridge_of(family), random_model(CONFIGS[family])
    blocks = jacobian_by_jacrev(plain, IDS, QUERY).detach().double()
    embeddings = first_residual(plain, IDS)[0].detach().double()
    moved = torch.einsum("poi,pi->po", blocks, embeddings)[: QUERY + 1]
    probes = normals(3)(PROBES, moved.shape[-1])
    expected = (moved @ probes.T).norm(dim=-1) / PROBES**0.5
    options: Any = {"n_probes": PROBES, "query": QUERY, "seed": 3}
    found = first_order(model, IDS[0], **options).values
    np.testing.assert_allclose(found[: QUERY + 1], expected, rtol=2e-3)
    assert found[QUERY + 1] == 0
    np.testing.assert_allclose(found[: QUERY + 1], moved.norm(dim=-1), rtol=0.25)  # an estimate of the distance itself
    of_spans = first_order(model, IDS[0], spans=SPANS, **options).values
    together = torch.stack([moved[inside].sum(dim=0) for inside in SPANS.values()])
    np.testing.assert_allclose(of_spans, (together @ probes.T).norm(dim=-1) / PROBES**0.5, rtol=2e-3)


def test_replacements_are_those_of_the_substitution_effect(bridge_of: Callable[..., Any]) -> None:
    model, plain = bridge_of("gemma3"), random_model(CONFIGS["gemma3"])
    blocks, embed = jacobian_by_jacrev(plain, IDS, IDS.shape[1] - 1).detach().double(), plain.get_input_embeddings()
    session, together = Session.start(model, IDS, "test"), {place: [place] for place in range(1, IDS.shape[1])}
    ((owners, branches),) = draw_variants(session, together, None, 3, IDS.shape[1] - 1, seed=5)
    probes = normals(5)(PROBES, blocks.shape[-1])
    expected: dict[int, list[float]] = {place: [] for place in together}
    for place, branch in zip(owners.tolist()[1:], branches[1:], strict=True):
        assert branch.tokens[1:] == tuple(IDS[0, place + 1 :].tolist())
        step = (embed(torch.tensor(branch.tokens[0])) - embed(IDS[0, place])).detach().double()
        expected[place].append(float((blocks[place] @ step @ probes.T).norm() / PROBES**0.5))
    found = first_order(model, IDS, of="predicted", n_probes=PROBES, n_replacements=3, seed=5).values
    assert np.isnan(found[0])
    np.testing.assert_allclose(found[1:], [np.mean(each) for each in expected.values()], rtol=2e-3)
    real = sl.substitution_effect(model, IDS, candidates="predicted", n_replacements=3, seed=5)
    assert real["noise_ceiling_kl"] <= 1


def test_an_audit_of_spans_has_the_parts_as_each_measurement_gives_them(tiny: Any) -> None:
    prompt, spans = "1101 = 2 11", {"first": [1, 2], "second": [3, 4], "last": [7, 8]}
    names = ["paper form", "mean attention row", "top-logit gradient", "knockout KL", "occlusion", "first order, zero"]
    audit = sl.audit(tiny, prompt, positions=spans, estimates=names, n_probes=64, seed=0)
    inside = {name: places for name, places in spans.items() if max(places) < len(sl.path_bound(tiny, prompt)) - 1}
    assert audit["token"].values.tolist() == [[*inside]]
    value = audit["value"].isel(prompt=0)
    parts = {
        "paper form": sl.path_bound(tiny, prompt, spans=inside),
        "Jacobian": sl.jacobian_norms(tiny, prompt, spans=inside),
        "knockout KL": sl.knockout_effect(tiny, prompt, spans=inside)["kl"],
        "first order, zero embedding": first_order(tiny, prompt, spans=inside),
    }
    for name, part in parts.items():
        np.testing.assert_allclose(value.sel(estimate=name), part, rtol=1e-6, err_msg=name)
    row = attribution(tiny, prompt, of="mean_attention")
    assert float(row.sum()) == pytest.approx(1)
    sums = [row.values[places].sum() for places in inside.values()]
    np.testing.assert_allclose(value.sel(estimate="mean attention row"), sums, rtol=1e-6)
    assert "several tokens" in str(audit["refused"].sel(estimate="occlusion").item())
    exact = sl.audit(tiny, prompt, estimates=["exact edges"])  # a whole name is that estimate alone
    assert exact["estimate"].values.tolist() == ["null", "exact edges", "Jacobian"]


def test_a_sink_is_not_compared(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    at = torch.tensor([False, False, True, False, False, False, False])
    monkeypatch.setattr("squashlens.measure.squashing.audit.are_sinks", lambda _: at)
    found = sl.audit(tiny, "1101 =", estimates=["paper form"])
    assert found["content"].values.nonzero()[0].tolist() == [1, 3, 4]


def test_a_pool_has_the_means_and_intervals_of_its_texts(tiny: Any) -> None:
    texts = ["1101101 =", "10110 =", "111010011 ="]
    audits = [sl.audit(tiny, text, estimates=["paper form", "knockout KL", "expected"], seed=0) for text in texts]
    pool = sl.results.pooled(audits, base="paper form")
    at: Any = {"estimate": "Jacobian", "reference": "knockout KL", "way": "raw"}
    each = np.array([float(one["agreement"].sel(at)) for one in audits])
    behind = each - [float(one["agreement"].sel(at | {"estimate": "paper form"})) for one in audits]
    for name, values in {"agreement": each, "gain": behind}.items():
        low, high = t.interval(0.95, 2, values.mean(), sem(values))
        expected = [values.mean(), *(np.clip([low, high], -1, 1) if name == "agreement" else (low, high))]
        np.testing.assert_allclose([float(pool[name + end].sel(at)) for end in ("", "_low", "_high")], expected)
    assert pool["places"].values.tolist() == [int(one["content"].sum()) for one in audits]
    again = sl.results.pooled([pool], base="paper form")
    assert again.drop_attrs().equals(pool.drop_attrs())
    assert sl.results.provenance(pool)["call"]["prompt"] == texts
    assert (np.abs(pool["agreement_low"]) <= 1).where(pool["agreement_low"].notnull(), True).all()
    table = sl.results.table(pool)
    rows = table[(table["variable"] == "agreement") & (table["estimate"] == "Jacobian") & (table["way"] == "raw")]
    assert rows[rows["reference"] == "knockout KL"]["value"].item() == float(pool["agreement"].sel(at))
    assert np.isnan(pool["noise_ceiling"].sel(reference="knockout KL")).all()
    with pytest.raises(InputError, match="is not an estimate"):
        raw(sl.results.pooled)(audits, base="guess")
    with pytest.raises(InputError, match="different estimates"):
        raw(sl.results.pooled)([audits[0], sl.audit(tiny, texts[0], estimates=["rollout"])])


def test_a_pool_is_of_one_model_and_of_audits_alone(tiny: Any) -> None:
    audit = sl.audit(tiny, "1101101 =", estimates=["paper form", "expected"], seed=0)
    other = sl.audit(sl.load("tiny-prose"), "1101101 =", estimates=["paper form", "expected"], seed=0)
    with pytest.raises(InputError, match="of different models"):
        raw(sl.results.pooled)([audit, other])
    with pytest.raises(InputError, match="the result of another measurement"):
        raw(sl.results.pooled)([audit, sl.knockout_effect(tiny, "1101101 =")])
