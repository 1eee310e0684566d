"""Attribution methods of other libraries against sums over the plain model, and how the audit judges them."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import squashlens as sl
from squashlens.errors import InputError, UnsoundModelError
from squashlens.measure.squashing.audits.attributions import attribution
from squashlens.measure.squashing.audits.estimates import ATTRIBUTIONS
from tests.cases import CONFIGS, random_model
from tests.oracles.test_closed_form import TOKEN, averaging_llama, closed_form
from tests.references import plain_outputs

IDS = torch.tensor([2, 7, 11, 30, 7, 7, 59])
QUERY = 5
WITH_CAPTUM = ("gradient_times_input", "integrated_gradients", "occlusion")
needs_captum = pytest.mark.skipif(importlib.util.find_spec("captum") is None, reason="captum is not installed")


def slow(family: str) -> dict[str, np.ndarray]:
    """Every score from the plain model in float64, by its definition: one token, and one step, at a time."""
    plain = random_model(CONFIGS[family]).double()
    start = plain.get_input_embeddings()(IDS[None]).detach()

    def run(embeddings: torch.Tensor) -> torch.Tensor:
        return plain_outputs(plain, IDS[None], embeddings).logits[0, QUERY]

    best = int(run(start).argmax())

    def gradient(embeddings: torch.Tensor) -> torch.Tensor:
        leaf = embeddings.clone().requires_grad_()
        return torch.autograd.grad(run(leaf)[best], leaf)[0][0]

    # captum integrates with Gauss–Legendre nodes on [0, 1].
    nodes, weights = np.polynomial.legendre.leggauss(50)
    averaged = sum(w / 2 * gradient((x + 1) / 2 * start) for x, w in zip(nodes, weights, strict=True))
    left_out, occluded = [], []
    with torch.no_grad():
        own = run(start)
        p = own.log_softmax(-1)
        for place in range(QUERY + 1):
            without = start.clone()
            without[0, place] = 0
            q = run(without)
            occluded.append(abs(own[best] - q[best]).item())
            left_out.append((p.exp() * (p - q.log_softmax(-1))).sum().item())
    return {
        "gradient_times_input": (gradient(start) * start[0]).norm(dim=-1)[: QUERY + 1].numpy(),
        "integrated_gradients": (averaged * start[0]).norm(dim=-1)[: QUERY + 1].numpy(),  # pyright: ignore
        "occlusion": np.array(occluded),
        "leave_one_out": np.array(left_out),
    }


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["gemma", "gpt2"])
def test_scores_against_the_plain_model(family: str, bridge_of: Callable[..., Any]) -> None:
    model = bridge_of(family, torch.float64)
    for of, expected in slow(family).items():
        if of in WITH_CAPTUM and importlib.util.find_spec("captum") is None:
            continue
        found = attribution(model, IDS, of=of, query=QUERY, bos="as-given").values  # pyright: ignore
        assert expected.min() > 1e-4 * expected.max()
        np.testing.assert_allclose(found[: QUERY + 1], expected, rtol=1e-4, atol=1e-6 * expected.max(), err_msg=of)
        assert (found[QUERY + 1 :] == 0).all()


@pytest.mark.parametrize("family", ["gemma", "gpt2"])
def test_value_weighted_attention_is_what_attention_writes(family: str, bridge_of: Callable[..., Any]) -> None:
    """With every other value at 0, block b's attention writes exactly the vector whose norm is meant, and its bias."""
    model, place = bridge_of(family, torch.float64), 3
    found = attribution(model, IDS, of="value_weighted", query=QUERY, bos="as-given").values[place]
    norms = []
    for block in range(3):
        written: list[torch.Tensor] = []
        others = [i for i in range(len(IDS)) if i != place]
        for hidden in (others, range(len(IDS))):
            zeroed = sl.hooks.zero_values(hidden, blocks=[block])
            with sl.applied(model, zeroed), torch.no_grad():
                _, cache = model.run_with_cache(IDS[None], names_filter=f"blocks.{block}.attn.hook_out")
            written.append(cache[f"blocks.{block}.attn.hook_out"][0, QUERY])
        norms.append((written[0] - written[1]).norm().item())
    assert found == pytest.approx(np.mean(norms), rel=1e-5)


@pytest.mark.slow
@needs_captum
def test_the_audit_judges_attributions(bridge_of: Callable[..., Any]) -> None:
    model = bridge_of("llama")
    ids = torch.stack([IDS, IDS.flip(0).roll(1), torch.tensor([2, 8, 8, 30, 9, 7, 12])])
    wanted = ["gradient", "integrated", "occlusion", "AttnLRP", "value", "leave", "subst"]
    found = sl.audit(model, ids, estimates=wanted, n_replacements=2, bos="as-given", progress=False)
    assert found["reference"].values.tolist() == ["Jacobian", "substitution effect", "leave-one-out KL"]
    attributed = found.sel({"estimate": list(ATTRIBUTIONS)})
    assert set(attributed["kind"].values) == {"attribution"}
    assert attributed["over_jacobian"].isnull().all()  # a logit is not a norm
    assert attributed["tightness"].isnull().all()
    inner = found["value"].isel(position=found["content"].values)
    one, other = (inner.sel({"estimate": name}).values for name in ("occlusion", "leave-one-out KL"))
    expected = np.mean([spearmanr(a, b).statistic for a, b in zip(one, other, strict=True)])
    judged = found["agreement"].sel({"estimate": "occlusion", "reference": "leave-one-out KL", "way": "raw"}).item()
    assert judged == pytest.approx(expected)
    reasons = dict(zip(found["estimate"].values, found["refused"].values, strict=True))
    assert not any(reason for name, reason in reasons.items() if name != "AttnLRP")
    table = sl.results.table(found, reference="leave-one-out KL")
    assert table.loc["occlusion", "raw"] == pytest.approx(expected)


def test_what_is_not_applicable_says_why(bridge_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    monkeypatch.setitem(sys.modules, "lxt", None)
    model = bridge_of("gemma")
    found = sl.audit(model, IDS, estimates=["occlusion", "AttnLRP"], bos="as-given", progress=False)
    for name, needed in (("occlusion", "captum"), ("AttnLRP", "lxt")):
        row = found.sel({"estimate": name})
        assert row["value"].isnull().all()
        assert row["agreement"].isnull().all()
        assert np.isnan(row["cost"])
        assert f"needs {needed}, which is not installed" in row["refused"].item()
        assert 'pip install "squashlens[compare]"' in row["refused"].item()
    with pytest.raises(InputError, match="needs captum"):
        attribution(model, IDS, of="occlusion", bos="as-given")
    deeper = sl.audit(model, IDS, estimates=["all-ones"], from_layer=1, bos="as-given", progress=False)
    assert "leave-one-out KL" not in deeper["reference"]
    with pytest.raises(InputError, match="no estimate's name starts so"):
        sl.audit(model, IDS, estimates=["occlusion"], from_layer=1, bos="as-given", progress=False)


PATCHES = """
import torch

def wrap_attention_forward(forward):
    def attend(module, query, key, value, *args, **kwargs):
        return forward(module, query, key, value.detach() + (value - value.detach()) / 2, *args, **kwargs)
    return attend

def norm(self, x):
    return self.weight * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt().detach()
"""
RULES = """
from functools import partial
from transformers.models.llama import modeling_llama
from lxt.efficient.patches import norm

attnLRP = {modeling_llama.LlamaRMSNorm: partial(print, norm), modeling_llama: print}
"""


def test_rules_act_on_one_model_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package in the form of LXT, with two rules, on the Llama that has a closed form (see `tests/oracles`)."""
    package = tmp_path / "packages" / "lxt"
    (package / "efficient" / "models").mkdir(parents=True)
    broken = "raise RuntimeError('imports everything')"
    for name, text in {
        "__init__": "", "efficient/__init__": broken, "efficient/models/__init__": broken,
        "efficient/patches": PATCHES, "efficient/models/llama": RULES,
    }.items():  # fmt: skip
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    for name in [name for name in sys.modules if name.partition(".")[0] == "lxt"]:
        monkeypatch.delitem(sys.modules, name)
    plain, c, n = averaging_llama(0.7), 0.7, 6
    plain.save_pretrained(tmp_path / "model")
    model = sl.load(tmp_path / "model", device="cpu", dtype=torch.float64, progress=False)
    modeling = sys.modules[type(plain).__module__]
    before = modeling.eager_attention_forward, modeling.LlamaRMSNorm.forward
    ids = torch.full((n,), TOKEN)
    found = attribution(model, ids, of="attn_lrp", bos="as-given").values
    x = plain.get_input_embeddings().weight[TOKEN].detach()
    with torch.no_grad():
        best = plain(ids[None]).logits[0, -1].argmax()
    along = (plain.get_output_embeddings().weight[best] @ x).abs().item()
    np.testing.assert_allclose(found, along * closed_form(x.numpy(), c, n, passed=0.5), rtol=1e-6)
    assert (modeling.eager_attention_forward, modeling.LlamaRMSNorm.forward) == before
    assert not any(name.startswith("lxt.efficient") for name in sys.modules)
    sys.modules.pop("lxt", None)


@pytest.mark.skipif(importlib.util.find_spec("lxt") is None, reason="LXT is not installed: make compare")
def test_relevances_are_refused_where_they_would_not_be_those_of_the_model(bridge_of: Callable[..., Any]) -> None:
    found = sl.audit(bridge_of("gemma"), IDS, estimates=["AttnLRP"], bos="as-given", progress=False)
    reason = found.sel({"estimate": "AttnLRP"})["refused"].item()
    assert "LXT has no rules for GemmaForCausalLM" in reason
    assert "llama" in reason
    model = bridge_of("llama")
    with sl.applied(model, sl.hooks.mask_tokens([3])), pytest.raises(UnsoundModelError, match="without the hooks"):
        attribution(model, IDS, of="attn_lrp", bos="as-given")
