"""Windows imposed by hooks against plain models that have them in their configuration, and how far they let see."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, MistralConfig

import squashlens as sl
from tests.cases import CONFIGS, save_random
from tests.references import last_streams

CONTENT = [7, 8, 7, 7, 9, 9, 8, 7, 8, 8, 9, 7]


def windows(model: Any, sequence: Any, sizes: list[int], sinks: list[int], **options: Any) -> Any:
    """`compare` of windows, labelled by their size and number of sinks."""
    hooks = {f"{size} {sink}": sl.hooks.sliding_window(size, sink=sink) for sink in sinks for size in sizes}
    return sl.compare(model, sequence, hooks, progress=False, **options)


def distances(plain: Any, sequence: Any, length: int) -> tuple[np.ndarray, float]:
    """L∞ distances of v and v* by layer, y last, from two plain passes; and the scale they are to be read on."""
    a, b = (last_streams(plain, ids).double() for ids in (sequence.pair(length).v, sequence.pair(length).v_star))
    return (a - b).abs().amax(-1).numpy(), a.abs().max().item()


def seeing(plain: Any, window: int, sink: int) -> Any:
    """A copy of the plain model whose queries pick out the last `window` keys and the first `sink`, of those that the
    model itself lets them see."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
        groups = query.shape[1] // value.shape[1]
        key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
        cap, scale = options.get("softcap"), options.get("scaling") or query.shape[-1] ** -0.5
        mixed = torch.zeros_like(query)
        for q in range(query.shape[2]):
            native = [k for k in range(q + 1) if mask is None or mask[0, 0, q, k] > -1]
            kept = [k for k in native if k > q - window or k < sink]
            logits = query[:, :, q : q + 1] @ key[:, :, kept].transpose(-1, -2) * scale
            logits = logits if cap is None else cap * torch.tanh(logits / cap)
            mixed[:, :, q : q + 1] = logits.softmax(dim=-1) @ value[:, :, kept]
        return mixed.transpose(1, 2).contiguous(), None

    AttentionInterface.register("squashlens_seeing", attend)
    AttentionMaskInterface.register("squashlens_seeing", eager_mask)
    changed = copy.deepcopy(plain)
    changed.set_attn_implementation("squashlens_seeing")
    return changed


@pytest.mark.parametrize("family", ["gemma2", pytest.param("gemma3", marks=pytest.mark.slow), "mistral", "gpt2"])
def test_windows_equal_models_that_see_no_farther(family: str, bridge_of: Any, plain_of: Any) -> None:
    """Keys picked out one query at a time, with native windows of 5 or without; sinks, softcaps and groups included."""
    model, plain = bridge_of(family), plain_of(family)
    sequence = sl.prompts.build(model, CONTENT, prefix=[2, 5, 11], suffix=[20])
    ds = windows(model, sequence, [2, 4, 8], [0, 2], lengths=[3, 12], scale="absolute")
    for sink, size in ((0, 2), (0, 4), (0, 8), (2, 2), (2, 4)):
        changed = seeing(plain, size, sink)
        for length in (3, 12):
            expected, scale = distances(changed, sequence, length)
            here = ds.sel(change=f"{size} {sink}", length=length)
            found = np.append(here["distance"], here["distance_y"])
            assert np.abs(found - expected).max() <= 1e-5 * scale, (sink, size, length)
    apart = ds["distance"].sel(layer=3, length=12).values[1:].reshape(2, 3)
    assert np.abs(np.diff(apart[0])).min() > 1e-4
    if family != "mistral":  # whose own windows hide the sinks
        assert np.abs(apart[0, :2] - apart[1, :2]).min() > 1e-4
    native = {"mistral": [5, 5, 5], "gemma2": [5, np.nan, 5], "gemma3": [5, np.nan, 5]}
    np.testing.assert_array_equal(ds["native_window"], native.get(family, [np.nan] * 3))
    assert (ds["native_window"].dims, ds["native_window"].attrs["units"]) == (("block",), "tokens")


def test_windows_equal_configured_ones(bridge_of: Any, folder_of: Any) -> None:
    """Mistral's own window is 5: narrower, as if configured so; wider, nothing happens."""
    model = bridge_of("mistral")
    sequence = sl.prompts.build(model, CONTENT, prefix=[2, 5, 11])
    ds = windows(model, sequence, [2, 4, 5, 9], [0], lengths=[4, 12], scale="absolute")
    for size in (2, 4, 5, 9):
        config = AutoConfig.from_pretrained(folder_of("mistral"))
        assert config.sliding_window == 5
        config.sliding_window = min(size, 5)
        plain = AutoModelForCausalLM.from_pretrained(
            folder_of("mistral"), config=config, attn_implementation="eager"
        ).eval()
        for length in (4, 12):
            expected, scale = distances(plain, sequence, length)
            here = ds.sel(change=f"{size} 0", length=length)
            assert np.abs(np.append(here["distance"], here["distance_y"]) - expected).max() <= 1e-5 * scale, size
    last = ds["distance"].sel(layer=3, length=12).values[1:]
    assert np.abs(last[:2] - last[2]).min() > 1e-3
    np.testing.assert_allclose(last[3:], last[2], rtol=1e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["gpt2", "mistral"])
def test_nothing_comes_from_out_of_reach(family: str, bridge_of: Any) -> None:
    """L blocks of window w reach L (w − 1) tokens back: the bound is 0 beyond and positive within. A sink is a way
    for the first tokens alone."""
    model, blocks = bridge_of(family), 3
    sequence = sl.prompts.build(model, [*CONTENT, *CONTENT], prefix=[2, 5], suffix=[20, 21])
    ds = windows(model, sequence, [1, 2, 3, 5], [0, 3], lengths=[24])
    last = 2 + 24 + 2 - 1
    away = last - np.arange(2, 26)
    for size in (1, 2, 3, 5):
        found = ds["bound"].sel(change=f"{size} 0").values
        np.testing.assert_array_equal(found > 0, away <= blocks * (size - 1))
        assert (found[away > blocks * (size - 1)] == 0).all()
        sunk = ds["bound"].sel(change=f"{size} 3").values  # the third token is content token 1
        sinks = np.arange(24) == 0 if family != "mistral" else False  # whose own windows hide them
        np.testing.assert_array_equal(sunk > 0, (away <= blocks * (size - 1)) | sinks)
    whole = ds["bound"].sel(change="as it is").values
    reach = blocks * 4 if family == "mistral" else 99
    np.testing.assert_array_equal(whole > 0, away <= reach)


def test_repeats_out_of_reach_collapse_altogether(bridge_of: Any, folder_of: Any, tmp_path: Path) -> None:
    """With nothing but the repeated token within L (w − 1) tokens of the last, v and v* see the same. Against a plain
    Mistral with Llama's weights and that window."""
    model = bridge_of("llama")
    weights = AutoModelForCausalLM.from_pretrained(folder_of("llama"), attn_implementation="eager")
    config = MistralConfig(**{**CONFIGS["mistral"].to_dict(), "sliding_window": 3})
    plain = AutoModelForCausalLM.from_pretrained(save_random(config, tmp_path), attn_implementation="eager").eval()
    plain.load_state_dict(weights.state_dict())
    sequence = sl.prompts.build(model, [7] * 14, prefix=[2, 5, 11])
    ds = windows(model, sequence, [3], [0, 1], scale="absolute")
    for length in (1, 3, 6, 7, 14):
        expected, scale = distances(plain, sequence, length)
        here = ds.sel(change="3 0", length=length)
        found = np.append(here["distance"], here["distance_y"])
        assert np.abs(found - expected).max() <= 1e-5 * scale, length
    last = ds["distance"].isel(layer=-1)
    scale = distances(plain, sequence, 14)[1]
    inside = last["length"] <= 3 * 2
    far = last.sel(change="3 0")
    assert far.where(~inside, drop=True).max() <= 1e-5 * scale
    assert far.where(inside, drop=True).min() > 1e-4 * scale
    assert last.sel(change="3 1").min() > 1e-4 * scale  # BOS comes ever farther away
    assert last.sel(change="as it is").min() > 1e-4 * scale
