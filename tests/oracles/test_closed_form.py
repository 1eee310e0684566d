"""A Llama whose Jacobian is known: attention averages, its values are the normed stream, and nothing else acts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import squashlens as sl

WIDTH, BLOCKS, TOKEN, EPS = 8, 3, 7, 1e-6


def averaging_llama(c: float) -> Any:
    """W_Q = W_K = 0, W_V = I, W_O = c I, no MLP, unit gains: each block adds c times a mean of normed streams."""
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=WIDTH,
        intermediate_size=4,
        num_hidden_layers=BLOCKS,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=WIDTH,
        max_position_embeddings=32,
        rms_norm_eps=EPS,
        bos_token_id=2,
        tie_word_embeddings=False,
    )
    plain = AutoModelForCausalLM.from_config(config).double()
    eye = torch.eye(WIDTH, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            elif "v_proj" in name:
                parameter.copy_(eye)
            elif "o_proj" in name:
                parameter.copy_(c * eye)
            elif "embed" in name or "lm_head" in name:
                parameter.copy_(
                    torch.randn(
                        parameter.shape, generator=generator, dtype=torch.float64
                    )
                )
            else:
                parameter.zero_()
    return plain


def closed_form(
    stream: np.ndarray, c: float, n: int, passed: float = 1.0
) -> np.ndarray:
    """Row n of ∏ₗ (I + (c/ρₗ) M) / ρ_L, for one token repeated: M averages, and all tokens have the same stream.

    A rule for gradients may let only the part `passed` of what attention writes go back.
    """
    average = np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None]
    product = np.eye(n)
    for _ in range(BLOCKS):
        rho = np.sqrt(np.square(stream).mean() + EPS)
        product = (np.eye(n) + passed * c / rho * average) @ product
        stream = stream * (1 + c / rho)
    return product[-1] / np.sqrt(np.square(stream).mean() + EPS)


@pytest.mark.few(1)
@pytest.mark.parametrize(("c", "n"), [(0.7, 9), (-0.3, 5), (4.0, 2), (0.7, 1)])
def test_norms_and_bounds_of_the_averaging_llama(
    c: float, n: int, tmp_path: Path
) -> None:
    plain = averaging_llama(c)
    plain.save_pretrained(tmp_path)
    model = sl.load(tmp_path, device="cpu", dtype=torch.float64)
    ids = torch.full((n,), TOKEN)
    expected = closed_form(
        plain.get_input_embeddings().weight[TOKEN].detach().numpy(), c, n
    )  # pyright: ignore
    options = {"freeze": ("attention", "norms")}
    norms = sl.jacobian_norms(model, ids, **options).values
    np.testing.assert_allclose(norms, np.abs(expected), rtol=1e-12)
    # Every block is a multiple of I, so the sum over its singular values is √d times the norm.
    frobenius = sl.jacobian_norms(model, ids, norm="frobenius", **options).values
    np.testing.assert_allclose(frobenius, np.abs(expected) * WIDTH**0.5, rtol=1e-12)
    if (
        c > 0
    ):  # positive multiples of I: nothing is lost between the norm of the sum and the sum of norms
        bound = sl.certified_bound(model, ids, **options).values
        assert (bound >= norms * (1 - 1e-12)).all()
        np.testing.assert_allclose(bound, expected, rtol=1e-9)
