"""Models run without patterns: the same numbers as with them, hooks that bite, and what is not streamed."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GemmaConfig, GptOssConfig

import squashlens as sl
from squashlens.model.anatomy import residual_site
from squashlens.model.hooking.hook import Hook
from squashlens.model.hooking.standing import attached
from squashlens.run import fused, streamed
from squashlens.run.forward import next_logits
from squashlens.run.streamed import (
    implementation,
    patterns_written,
    why_not_streamed,
)
from squashlens.theory import attention as module
from squashlens.theory import fused_attention
from squashlens.theory.fused_attention import attend_with_lse
from tests.cases import COMMON, CONFIGS, MORE, few, foreign, save_random
from tests.references import run_of

IDS = torch.tensor([[2, 7, 11, 30, 7, 7, 59, 8, 14, 3, 5, 5, 41]])


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHORTEST", 5)
    monkeypatch.setattr(module, "CELLS", {"cpu": 1, "cuda": 1})


def seen(
    model: Any, sites: list[str], ids: Tensor = IDS
) -> tuple[dict[str, Tensor], Tensor]:
    kept: dict[str, Tensor] = {}
    with torch.no_grad():
        logits = next_logits(
            run_of(model),
            ids,
            [(s, lambda t, s=s: kept.__setitem__(s, t.clone())) for s in sites],
        )
    return kept, logits


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", few([*CONFIGS, *MORE]))
def test_streams_equal_those_with_patterns(
    name: str, dtype: torch.dtype, bridge_of: Any
) -> None:
    model = bridge_of(name, dtype)
    assert implementation(model) == "streamed"
    sites = [residual_site(layer, model) for layer in (0, 1, 2, 3, "y")]
    found, logits = seen(model, sites)
    with patterns_written("the test"):
        truth, expected = seen(model, sites)
    for site in sites:
        torch.testing.assert_close(
            found[site],
            truth[site],
            rtol=1e-5,
            atol=1e-5 * float(truth[site].abs().max()),
        )
    torch.testing.assert_close(
        logits, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max())
    )
    ids = IDS[0]
    assert (
        sl.results.provenance(sl.path_bound(model, ids))["attention_implementation"]
        == "streamed"
    )
    for options in (
        {},
        {"attention": "uniform"},
        {"from_layer": 1, "to_layer": 2, "query": 7},
    ):
        bound = sl.path_bound(model, ids, **options)
        with patterns_written("the test"):
            by_patterns = sl.path_bound(model, ids, **options)
        np.testing.assert_allclose(bound, by_patterns, rtol=1e-6)
        assert float(bound.min()) == 0 or options == {} or "attention" in options


def test_hooks_bite_as_they_do_with_patterns(bridge_of: Any) -> None:
    model = bridge_of("gemma2", torch.float32)
    for site in (
        "blocks.1.hook_resid_pre",
        "blocks.1.attn.hook_v",
        "blocks.0.attn.hook_z",
        "blocks.2.hook_mlp_out",
    ):
        bent = Hook("bent", site, lambda t: t * torch.linspace(0.2, 2, t.shape[-1]))
        with attached(model, bent):
            assert why_not_streamed(model) is None
            _, edited = seen(model, [])
            with patterns_written("the test"):
                _, expected = seen(model, [])
        torch.testing.assert_close(edited, expected, rtol=1e-5, atol=1e-5)
        assert (edited - seen(model, [])[1]).abs().max() > 1e-3
    with attached(
        model, Hook("freeze", "blocks.1.attn.hook_pattern", lambda t: t.detach())
    ):
        assert "hook_pattern" in str(why_not_streamed(model))
    assert "hook_rot_k" in str(why_not_streamed(model, ["blocks.1.attn.hook_rot_k"]))


def test_a_hook_that_would_not_fire_means_patterns(bridge_of: Any) -> None:
    """GPT-2's own attention projects queries, keys and values at once: the bridge's points for them stay silent."""
    model = bridge_of("gpt2", torch.float32)
    assert why_not_streamed(model) is None
    with attached(model, Hook("zero", "blocks.1.attn.hook_v", torch.zeros_like)):
        assert "hook_out" in str(why_not_streamed(model))
        _, edited = seen(model, [])
    assert (edited - seen(model, [])[1]).abs().max() > 1e-3
    handle = model.original_model.transformer.register_forward_hook(lambda *_: None)
    assert "PyTorch" in str(why_not_streamed(model))
    handle.remove()


def test_sinks_are_part_of_the_softmax(tmp_path: Any) -> None:
    config = GptOssConfig(
        **COMMON
        | {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 5}
    )
    model = sl.load(save_random(config, tmp_path), device="cpu")
    with torch.no_grad():
        for block in model.original_model.model.layers:
            block.self_attn.original_component.sinks.add_(1.0)
    sums = sl.path_bound(model, IDS[0]).sum()
    assert implementation(model) == "streamed", implementation(model)
    with patterns_written("the test"):
        np.testing.assert_allclose(sums, sl.path_bound(model, IDS[0]).sum(), rtol=1e-6)
    assert float(sums) < 0.95 * 4**3  # what goes to the sinks is gone


def test_rounding_of_a_deep_model_is_not_taken_for_another_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In bfloat16 sharp attention multiplies rounding beyond every constant tolerance; a wrong scale still shows."""
    sizes = COMMON | {
        "num_hidden_layers": 10,
        "hidden_size": 32,
        "head_dim": 64,
    }
    torch.manual_seed(0)
    config = GemmaConfig(**sizes | {"num_key_value_heads": 4, "initializer_range": 0.3})
    inner: Any = AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16, attn_implementation="eager"
    )
    model = foreign(inner.eval()).eval().requires_grad_(False)
    assert streamed._prove(model).reason is None
    with monkeypatch.context() as patch:
        patch.setattr(streamed, "SHAKEN", 0)  # what is beyond the constant tolerance
        assert streamed._prove(model).reason is not None
    attend = streamed._attend

    def another(*args: Any, scaling: float, **others: Any) -> Any:
        return attend(*args, scaling=1.1 * scaling, **others)

    monkeypatch.setattr(streamed, "_attend", another)
    assert streamed._prove(model).reason is not None


@contextmanager
def fused_anywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fused kernels on the CPU, uncompiled, and in wide dtypes."""
    with monkeypatch.context() as patch:
        patch.setattr(fused, "DEVICES", {"cpu"})
        patch.setattr(fused, "DTYPES", {torch.float32, torch.float64})
        for where in (
            fused,
            fused_attention,
        ):  # on a CPU flash attention takes heads of any width
            patch.setattr(
                where,
                "is_flash",
                lambda width, other, windowed, cap: not windowed and cap is None,
            )
        yield


FUSED = ("gemma2", "llama", "mistral", "gemma", "gemma3", "gpt2")


@pytest.mark.few(3)
@pytest.mark.parametrize("name", FUSED)
def test_measurements_by_fused_attention_equal_those_by_blocks(
    name: str, bridge_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole measurements, with groups, windows, caps and one key group; in float64, whose norms run in float32."""
    monkeypatch.setattr(module, "LONGEST", 4)
    model, several = bridge_of(name, torch.float64), torch.cat([IDS, IDS.flip(1)])
    calls: list[Any] = [
        lambda: sl.path_bound(model, several, to_layer=[2, 3]),
        lambda: sl.path_bound(model, IDS[0], query=7, sigma_psi=1e60, beta1=0.01),
        lambda: sl.attention_paths.hops(model, IDS[0]),
        lambda: sl.token_influence(model, IDS[0], method="none")["path_bound"],
        lambda: sl.collapse(model, sl.prompts.repeated(model, 7, 12))["distance_y"],
    ]
    for call in calls:
        by_blocks = call()
        with fused_anywhere(monkeypatch):
            found = call()
        assert (
            sl.results.provenance(by_blocks)["attention_implementation"] == "streamed"
        )
        assert sl.results.provenance(found)["attention_implementation"] == "fused"
        np.testing.assert_allclose(
            found, by_blocks, rtol=1e-9, atol=1e-12 * float(by_blocks.max())
        )
    assert implementation(model, (), 13) == "streamed", (
        "on a CPU, fused attention is for tests"
    )


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("gemma", "fused"),
        ("llama", "fused"),
        ("gemma3", "fused and streamed"),
        ("gemma2", "streamed"),
    ],
)
def test_jacobians_by_flash_attention_equal_those_by_blocks(
    name: str, way: str, bridge_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows and caps have none."""
    monkeypatch.setattr(module, "LONGEST", 4)
    monkeypatch.setattr(fused, "_reasons", {})
    jacobian = partial(
        sl.jacobian_norms,
        bridge_of(name, torch.float64),
        IDS[0],
        query=8,
        norm="frobenius",
    )
    by_blocks = jacobian()
    with fused_anywhere(monkeypatch):
        found = jacobian()
        np.testing.assert_allclose(found, by_blocks, rtol=1e-9)
        assert (
            sl.results.provenance(found)["attention_implementation"]
            == f"{way}, block by block"
        )


def fails(*_: Any, **__: Any) -> Any:
    raise RuntimeError("out of resource: shared memory")


def scaled_outputs(*args: Any) -> Any:
    outputs, lse = attend_with_lse(*args)
    return 1.1 * outputs, lse


def shifted_lse(*args: Any) -> Any:
    outputs, lse = attend_with_lse(*args)
    return outputs, lse + np.log(2)


@pytest.mark.parametrize("broken", [shifted_lse, scaled_outputs, fails])
def test_a_kernel_with_other_numbers_is_not_used(
    broken: Any, bridge_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST", 4)
    monkeypatch.setattr(fused, "attend_with_lse", broken)
    model = bridge_of("gemma3", torch.float32)
    by_blocks = sl.path_bound(model, IDS[0])
    monkeypatch.setattr(fused, "_reasons", {})
    with fused_anywhere(monkeypatch), pytest.warns(UserWarning, match="Fused"):
        found = sl.path_bound(model, IDS[0])
    assert sl.results.provenance(found)["attention_implementation"] == "streamed"
    np.testing.assert_array_equal(found, by_blocks)


@pytest.mark.parametrize(
    ("call", "where"),
    [
        (sl.path_bound, (fused, "attend_with_lse")),
        (sl.path_bound, (module, "row_times_pattern")),
        (sl.jacobian_norms, (module, "attend_with_lse")),
        (sl.jacobian_norms, (module, "pulled_back")),
    ],
    ids=["pass", "rows", "differentiable pass", "derivatives"],
)
def test_a_kernel_that_fails_after_its_test_ends_in_blocks(
    call: Any,
    where: tuple[Any, str],
    bridge_of: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LONGEST", 4)
    monkeypatch.setattr(fused, "_reasons", {})
    model = bridge_of("gemma3", torch.float32)
    by_blocks = call(model, IDS[0])
    with fused_anywhere(monkeypatch):
        call(model, IDS[0])
        monkeypatch.setattr(*where, fails)
        with pytest.warns(UserWarning, match="out of resource"):
            found = call(model, IDS[0])
    np.testing.assert_allclose(found, by_blocks, rtol=1e-5)
    way = sl.results.provenance(found)["attention_implementation"]
    assert way.partition(",")[0] == "streamed"
