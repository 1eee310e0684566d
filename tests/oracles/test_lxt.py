"""AttnLRP as LXT computes it, on the Llama whose relevances have a closed form."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.measure.squashing.attributions import attribution
from tests.oracles.test_closed_form import TOKEN, averaging_llama, closed_form

INSTALLED = importlib.util.find_spec("lxt") is not None
# A package in the form of LXT, with two of its rules, where it is not installed.
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


@pytest.fixture
def _rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not INSTALLED:
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
    yield
    if not INSTALLED:
        sys.modules.pop("lxt", None)


@pytest.mark.usefixtures("_rules")
def test_relevances_of_the_averaging_llama(tmp_path: Path) -> None:
    """LXT halves what passes through values and holds norm denominators: row n of ∏ (I + (c/2ρ) M) / ρ_L, times ⟨w, x⟩.

    The stream grows as in the model, so the denominators are those of c, not of c/2.
    """
    c, n = 0.7, 7
    plain = averaging_llama(c)
    plain.save_pretrained(tmp_path / "model")
    model = sl.load(tmp_path / "model", device="cpu", dtype=torch.float64)
    ids = torch.full((n,), TOKEN)
    x = plain.get_input_embeddings().weight[TOKEN].detach()  # pyright: ignore
    with torch.no_grad():
        best = plain(ids[None]).logits[0, -1].argmax()
    along = (plain.get_output_embeddings().weight[best] @ x).item()  # pyright: ignore
    expected = abs(along) * closed_form(x.numpy(), c, n, passed=0.5)
    modeling = sys.modules[type(plain).__module__]
    before = modeling.eager_attention_forward, modeling.LlamaMLP.forward, modeling.LlamaRMSNorm.forward
    found = attribution(model, ids, of="attn_lrp").values
    # LXT computes norms in float32, and its other rules are exact.
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    after = modeling.eager_attention_forward, modeling.LlamaMLP.forward, modeling.LlamaRMSNorm.forward
    assert after == before  # nothing of LXT is left on the classes
    assert not any(name.startswith("lxt.efficient") for name in sys.modules)


@pytest.mark.skipif(not INSTALLED, reason="LXT is not installed: make compare")
def test_relevances_run_on_families_that_lxt_knows(bridge_of: Callable[..., Any]) -> None:
    ids = torch.tensor([2, 7, 11, 30, 7, 7, 59])
    for family in ("llama", "gpt2", "qwen2", "qwen3", "gemma3"):
        found = attribution(bridge_of(family), ids, of="attn_lrp", query=5).values
        assert (found[:6] > 0).all(), family
        assert found[6] == 0
