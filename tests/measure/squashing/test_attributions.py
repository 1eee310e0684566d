"""Attribution methods of other libraries against sums over the plain model."""

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.errors import InputError
from squashlens.measure.squashing.attributions import attribution
from tests.cases import CONFIGS, random_model
from tests.references import plain_outputs

IDS = torch.tensor([2, 7, 11, 30, 7, 7, 59])
QUERY = 5
WITH_CAPTUM = ("gradient_times_input", "integrated_gradients", "occlusion")


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
    occluded = []
    with torch.no_grad():
        own = run(start)
        for place in range(QUERY + 1):
            without = start.clone()
            without[0, place] = 0
            q = run(without)
            occluded.append(abs(own[best] - q[best]).item())
    return {
        "gradient_times_input": (gradient(start) * start[0]).norm(dim=-1)[: QUERY + 1].numpy(),
        "integrated_gradients": (averaged * start[0]).norm(dim=-1)[: QUERY + 1].numpy(),  # pyright: ignore
        "occlusion": np.array(occluded),
    }


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["gemma", "gpt2"])
def test_scores_against_the_plain_model(family: str, bridge_of: Callable[..., Any]) -> None:
    model = bridge_of(family, torch.float64)
    for of, expected in slow(family).items():
        if of in WITH_CAPTUM and importlib.util.find_spec("captum") is None:
            continue
        found = attribution(model, IDS, of=of, query=QUERY).values  # pyright: ignore
        assert expected.min() > 1e-4 * expected.max()
        np.testing.assert_allclose(found[: QUERY + 1], expected, rtol=1e-4, atol=1e-6 * expected.max(), err_msg=of)
        assert (found[QUERY + 1 :] == 0).all()


@pytest.mark.parametrize("family", ["gemma", "gpt2"])
def test_value_weighted_attention_is_what_attention_writes(family: str, bridge_of: Callable[..., Any]) -> None:
    """With every other value at 0, block b's attention writes exactly the vector whose norm is meant, and its bias."""
    model, place = bridge_of(family, torch.float64), 3
    found = attribution(model, IDS, of="value_weighted", query=QUERY).values[place]
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


def test_what_is_not_applicable_says_why(bridge_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    monkeypatch.setitem(sys.modules, "lxt", None)
    model = bridge_of("gemma")
    found = sl.audit(model, IDS, estimates=["occlusion", "AttnLRP"])
    for name, needed in (("occlusion", "captum"), ("AttnLRP", "lxt")):
        row = found.sel({"estimate": name})
        assert row["value"].isnull().all()
        assert row["agreement"].isnull().all()
        assert np.isnan(row["cost"])
        assert f"needs {needed}, which is not installed" in row["refused"].item()
        assert 'pip install "squashlens[compare]"' in row["refused"].item()
    with pytest.raises(InputError, match="needs captum"):
        attribution(model, IDS, of="occlusion")
