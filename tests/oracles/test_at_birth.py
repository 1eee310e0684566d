"""Untrained models against the closed form of position bias at initialization (arXiv 2603.10123)."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from transformers import AutoModelForCausalLM, GPT2Config, Qwen2Config

import squashlens as sl

LENGTH, WIDTH = 48, 64
STD = 0.02  # of weights, in both papers' models, and of embeddings here
CONFIGS: dict[
    str, tuple[Any, int]
] = {  # and the width of the smallest published model of the family
    "gpt2": (
        GPT2Config(
            vocab_size=500,
            n_embd=WIDTH,
            n_layer=12,
            n_head=4,
            n_positions=64,
            bos_token_id=0,
            eos_token_id=1,
        ),
        768,
    ),
    "qwen2": (
        Qwen2Config(
            vocab_size=500,
            hidden_size=WIDTH,
            intermediate_size=348,
            num_hidden_layers=24,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            bos_token_id=0,
        ),
        896,
    ),
}


def at_birth(alpha: float, depth: int) -> np.ndarray:
    """Row n of ((1 − α) I + α M)^H, where M averages over a token and all tokens before it, and H is the depth."""
    average = np.tril(np.ones((LENGTH, LENGTH))) / np.arange(1, LENGTH + 1)[:, None]
    return np.linalg.matrix_power(
        (1 - alpha) * np.eye(LENGTH) + alpha * average, depth
    )[-1]


def untrained(name: str, folder: Path) -> Any:
    """An untrained model of the published depth, whose matrices amplify as much as those of the published width.

    A matrix with entries of standard deviation σ and width d has singular values in proportion to σ√d.
    """
    config, published = CONFIGS[name]
    wider = (published / WIDTH) ** 0.5
    config.initializer_range = STD * wider
    torch.manual_seed(0)
    plain = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for key, parameter in plain.named_parameters():
            if "embed" in key or "wte" in key or "wpe" in key:
                parameter.mul_(1 / wider)
    plain.save_pretrained(folder)
    return sl.load(folder, device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_untrained_models_rank_positions_as_the_closed_form_does(
    name: str, tmp_path: Path
) -> None:
    """Measured, two prompts each, α = 0.1: ρ = 0.92 and 0.87 for GPT-2, 0.88 and 0.90 for Qwen 2."""
    ids = torch.randint(1, 500, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    model = untrained(name, tmp_path)
    norms = sl.jacobian_norms(model, ids, norm="frobenius").values
    for row in norms:
        assert (
            spearmanr(row, at_birth(0.1, CONFIGS[name][0].num_hidden_layers)).statistic
            > 0.8
        )
        assert min(row[0], row[-1]) > 2 * row[LENGTH // 2]  # both ends of the U
    shuffled = np.random.default_rng(0).permutation(LENGTH)
    assert abs(spearmanr(norms[0][shuffled], at_birth(0.1, 12)).statistic) < 0.5
