"""The measured bound is one: on every architecture, at every weight scale, for everything that can be frozen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GemmaConfig

import squashlens as sl
from squashlens.engine.differentiating.chunks import local_block as locally
from squashlens.engine.differentiating.dissection import open_blocks
from squashlens.engine.differentiating.replay import record
from squashlens.engine.hooking.freeze import freezing
from squashlens.engine.state import steady
from squashlens.measure.squashing.certificates import certified
from squashlens.measure.squashing.certificates.edges import edges_of, maps_of
from squashlens.measure.squashing.certificates.local import local_edges
from squashlens.theory.norms import spectral_norms
from tests.cases import COMMON, CONFIGS, FAMILIES, FREEZABLE, MORE, few, loaded, random_model, with_freeze_sets
from tests.references import block_jacobian, frozen_model

IDS = torch.tensor([2, 7, 11, 30, 7, 7, 59])
MATRICES = ("analytic", "attention", "exact")  # kinds that are written out
KINDS = ("local", *MATRICES)


def equal_to_the_norm(model: Any, ids: torch.Tensor, edges: Any, **shared: Any) -> np.ndarray:
    """The bound without the allowance for rounding that is in it, where that is the norm of the Jacobian itself."""
    bound = sl.certified_bound(model, ids, edges=edges, **shared)
    bare = bound.values / (1 + bound.attrs["rounding"])
    np.testing.assert_allclose(bare, sl.jacobian_norms(model, ids, **shared).values, rtol=1e-6)
    return bare


@pytest.mark.few(2)
@pytest.mark.parametrize(("family", "freeze"), with_freeze_sets([*FAMILIES, *MORE]))
def test_edges_against_the_plain_models_blocks(family: str, freeze: Any, bridge_of: Callable[..., Any]) -> None:
    """Exact edges are the norms of the plain model's block Jacobians; the others are not below them."""
    model = bridge_of(family, torch.float64)
    plain = frozen_model(random_model((CONFIGS | MORE)[family]).double(), IDS[None], freeze)
    with steady(model):  # as in a measurement: the model is read once, not at every block
        _compare_edges(family, freeze, model, plain)


def _compare_edges(family: str, freeze: Any, model: Any, plain: Any) -> None:
    opened = open_blocks(model, IDS[None], freezing(freeze), range(3), batch=16)
    replay = record(model, IDS[None], freezing(freeze), 0, 3)
    queries = [0, 4, 6]  # the first token, one that a window of five shows all tokens, and one that it does not
    for block, to in ((1, 2), (2, 3), (2, "y")):  # block 0 is built like block 2
        jacobian = block_jacobian(plain, IDS[None], block, to, queries).permute(0, 2, 1, 3)
        truth = torch.linalg.svdvals(jacobian)[..., 0].numpy()
        assert truth[-1].min() > 1e-6 or family in ("gemma2", "gemma3", "mistral")  # windows cut the rest
        maps = maps_of(opened[block], to, freeze)
        found = {kind: edges_of(maps, kind, queries, spectral_norms).numpy()[queries] for kind in MATRICES}
        if not (family == "qwen3" and "norms" in freeze):
            local = local_edges(locally(replay, block, to), range(7), 3, certified.Norms(100, 3, 0).of)
            found["local"] = local.pushed(torch.eye(7, dtype=torch.float64)).numpy()[queries]
        # The softmax and most norms run in float32 even here.
        np.testing.assert_allclose(found["exact"], truth, rtol=1e-4, atol=1e-6 * truth.max())
        for kind in set(found) - {"exact"}:
            assert (found[kind] >= truth * (1 - 1e-5) - 1e-6 * truth.max()).all()
        assert np.abs(found["analytic"] / np.maximum(truth, 1e-30) - 1)[truth > 1e-3].max() > 1e-3  # not the same thing


def tiny_config(**changes: Any) -> Any:
    return GemmaConfig(**COMMON | {"num_key_value_heads": 1} | changes)


@pytest.mark.few(1)
@pytest.mark.parametrize("edges", KINDS)
def test_one_head_frozen_without_mlp_is_equality(edges: Any, tmp_path: Path) -> None:
    """One block, one head, attention and norms frozen: the edge is α ‖W_O W_V G‖ / ρ, which is the Jacobian."""

    def no_mlp(plain: Any) -> None:
        plain.model.layers[0].mlp.down_proj.weight.zero_()

    one_head = tiny_config(num_hidden_layers=1, num_attention_heads=1)
    _, model = loaded(one_head, tmp_path, no_mlp, torch.float64)
    bound = equal_to_the_norm(model, IDS, edges, freeze=("attention", "norms"), to_layer=1)
    # The same to y, and with a live norm before: a single row loses nothing at the final norm.
    equal_to_the_norm(model, IDS, edges, freeze="attention")
    layer, v = model.blocks[0], sl.capture(model, IDS).residuals[0][0]
    gain = 1 + layer.ln1.weight.detach()
    through = layer.attn.W_O[0].detach().T @ layer.attn.W_V[0].detach().T * gain
    alpha = sl.capture(model, IDS).patterns[0][0, 0, -1]
    rho = (v.square().mean(-1) + model.original_model.config.rms_norm_eps).sqrt()
    closed = alpha * torch.linalg.matrix_norm(through, ord=2) / rho
    np.testing.assert_allclose(bound[:-1], closed[:-1].numpy(), rtol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("freeze", [(), FREEZABLE], ids="+".join)
def test_one_token_and_one_block_are_equality(freeze: Any, tmp_path: Path) -> None:
    _, model = loaded(tiny_config(num_hidden_layers=1), tmp_path, dtype=torch.float64)
    for edges in KINDS:
        equal_to_the_norm(model, IDS[:1], edges, freeze=freeze)
    equal_to_the_norm(model, IDS, "exact", freeze=freeze)


@pytest.mark.slow
def test_composed_blocks_are_counted_from_the_top(bridge_of: Callable[..., Any]) -> None:
    """Two of three blocks: the lowest by itself, the upper two and the final norm together."""
    model = bridge_of("gemma2", torch.float64)
    bound = sl.certified_bound(model, IDS, edges="exact", n_composed=2)
    upper = sl.jacobian_norms(model, IDS, from_layer=1).values
    lower = [sl.certified_bound(model, IDS, edges="exact", query=j, to_layer=1).values for j in range(7)]
    np.testing.assert_allclose(bound, upper @ np.stack(lower), rtol=1e-5)


@pytest.mark.slow
def test_targets_sources_queries_and_prompts(bridge_of: Callable[..., Any]) -> None:
    model = bridge_of("llama", torch.float64)
    above: dict[str, Any] = {"from_layer": 1, "to_layer": [2, 3, "y"]}
    together = sl.certified_bound(model, IDS, between=above, query=4)
    for to in (2, 3, "y"):
        alone = sl.certified_bound(model, IDS, to_layer=to, from_layer=1, query=4)
        np.testing.assert_allclose(together.sel(to_layer=str(to)).values, alone.values, rtol=1e-6)
    assert (together.values[:, 5:] == 0).all()
    short = sl.certified_bound(model, IDS[:5], between=above)
    np.testing.assert_allclose(together.values[:, :5], short.values, rtol=1e-5)
    prompts = torch.stack([IDS, IDS.flip(0)])
    for row, ids in zip(sl.certified_bound(model, prompts).values, prompts, strict=True):
        np.testing.assert_allclose(row, sl.certified_bound(model, ids).values, rtol=1e-6)
    top = sl.certified_bound(model, IDS, from_layer=3)  # no block at all: the final norm
    np.testing.assert_allclose(top.values, sl.jacobian_norms(model, IDS, from_layer=3).values, rtol=1e-6)


@pytest.mark.slow
def test_large_matrices_go_by_lanczos_and_say_so(bridge_of: Callable[..., Any], monkeypatch: Any) -> None:
    model = bridge_of("gemma3", torch.float64)
    exact = {kind: sl.certified_bound(model, IDS[:4], edges=kind) for kind in KINDS}  # pyright: ignore
    assert exact["local"].attrs["failure_probability"] == 5e-7
    assert 0 < exact["exact"].attrs["rounding"] < 1e-9
    monkeypatch.setattr(certified, "SMALL", 4)
    monkeypatch.setattr(certified, "FEW", 4)
    for kind in KINDS:
        found = sl.certified_bound(model, IDS[:4], edges=kind)  # pyright: ignore
        assert sl.results.provenance(found)["certificate"]["failure_probability"] in (5e-7, 1e-6)
        ratio = found.values / exact[kind].values
        assert ratio.min() >= 1 - 1e-9
        assert ratio.max() <= 1.1 + 1e-9


def test_lanczos_inflates_by_its_share_of_the_whole() -> None:
    """Four steps in a row may add 10 % together, and the norms of large matrices stay above the truth."""
    wide = torch.randn(3, 600, 600, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    norms = certified.Norms(total=3, steps=4, seed=0)
    ratio = norms(wide) / spectral_norms(wide)
    assert norms.failure == certified.FAILURE
    assert (ratio >= 1).all()
    assert (ratio**4 <= 1.1).all()
    assert (ratio**4 > 1.05).all()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("edges", KINDS)
@pytest.mark.parametrize("family", few(FAMILIES))
def test_cuda_equals_cpu(family: str, edges: Any, bridge_of: Callable[..., Any], folder_of: Any) -> None:
    expected = sl.certified_bound(bridge_of(family), IDS, edges=edges)
    model = sl.load(folder_of(family), device="cuda")
    np.testing.assert_allclose(sl.certified_bound(model, IDS, edges=edges).values, expected.values, rtol=1e-3)
