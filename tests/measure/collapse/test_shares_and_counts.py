"""Proposition B.9 on real blocks, against plain models that are given the masks and positions by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import squashlens as sl
from tests.cases import few

FAMILIES = ["gemma", "gemma2", "llama", "qwen3", "gpt2", "neox", "mistral", "olmo2"]


def plain_streams(
    plain: Any, ids: list[int], mask: str, positions: str
) -> list[np.ndarray]:
    """v⁽⁰⁾ … v⁽ᴸ⁻¹⁾ and y, as Hugging Face has them."""
    n = len(ids)
    seen = torch.ones(n, n).tril() if mask == "causal" else torch.ones(n, n)
    closed = torch.zeros(n, n, dtype=plain.dtype).masked_fill(
        seen == 0, torch.finfo(plain.dtype).min
    )[None, None]
    given: Any = closed
    kinds = set(getattr(plain.config, "layer_types", None) or [])
    if len(kinds) > 1:
        given = dict.fromkeys(kinds, closed)
    place = (
        torch.arange(n)[None]
        if positions == "kept"
        else torch.zeros(1, n, dtype=torch.long)
    )
    with torch.no_grad():
        out = plain(
            torch.tensor([ids]),
            attention_mask=given,
            position_ids=place,
            output_hidden_states=True,
        )
    return [state[0].numpy() for state in out.hidden_states]


@pytest.mark.few(1)
@pytest.mark.parametrize("family", few(FAMILIES))
def test_each_cell_is_what_the_plain_model_gives(
    bridge_of: Callable[..., Any], folder_of: Callable[[str], Path], family: str
) -> None:
    model = bridge_of(family, torch.float64)
    plain = AutoModelForCausalLM.from_pretrained(
        folder_of(family), attn_implementation="eager", dtype=torch.float64
    ).eval()
    ds = sl.theorems.shares_and_counts(
        model, [7, 9], times=2
    )  # four tokens are within every window
    for mask in ("causal", "none"):
        for positions in ("kept", "none"):
            few = plain_streams(plain, [7, 9], mask, positions)
            many = plain_streams(plain, [7, 7, 9, 9], mask, positions)
            expected = [
                max(
                    np.abs(a[i] - b[j]).max() / np.sqrt((a[i] ** 2).mean())
                    for i, j in ((0, 0), (0, 1), (1, 2), (1, 3))
                )
                for a, b in zip(few, many, strict=True)
            ]
            found = ds.sel(mask=mask, positions=positions)
            np.testing.assert_allclose(found["distance"][:-1], expected[:-1], atol=1e-5)
            np.testing.assert_allclose(found["distance_y"], expected[-1], atol=1e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("family", "times"),
    [*((f, 2) for f in FAMILIES), ("gemma", 3), ("gpt2", 3), ("neox", 3)],
)
def test_only_without_both_are_they_one(
    bridge_of: Callable[..., Any], family: str, times: int
) -> None:
    ds = sl.theorems.shares_and_counts(
        bridge_of(family, torch.float64), [7, 9], times=times
    )
    assert ds["distance"].sel(mask="none", positions="none").max() < 1e-5
    assert ds["distance_y"].sel(mask="none", positions="none") < 1e-5
    for mask, positions in (("causal", "kept"), ("causal", "none"), ("none", "kept")):
        assert ds["distance_y"].sel(mask=mask, positions=positions) > 1e-3, (
            mask,
            positions,
        )


def test_behind_one_block_a_causal_mask_alone_parts_them(tiny: Any) -> None:
    """The last tokens have seen all, and are still one there; the first zero of 1100 has seen three tokens."""
    ds = sl.theorems.shares_and_counts(tiny).sel(mask="causal", positions="none")
    assert ds["distance"].sel(layer=0) == 0
    assert ds["distance"].sel(layer=1) > 1e-3
