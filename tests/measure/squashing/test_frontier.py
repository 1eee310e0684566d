"""The frontier that docs/certificates.md reports: how tight, how like the truth, on random Gemmas and the bundled one.

Ranges, not promises: wide enough for other machines, narrow enough that a method that loses its proof, its tightness or
its order falls out.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GemmaConfig

import squashlens as sl
from tests.cases import loaded

pytestmark = pytest.mark.slow
RUNGS = ["paper", "exact", "two", "sketch of 16, certified"]


def random_gemma(blocks: int, folder: Path) -> Any:
    """d = 64, four heads on one key/value head; matrices of unit gain, seeded."""
    config = GemmaConfig(
        vocab_size=60, hidden_size=64, intermediate_size=128, num_hidden_layers=blocks, num_attention_heads=4,
        num_key_value_heads=1, head_dim=16, pad_token_id=0, eos_token_id=1, bos_token_id=2,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(blocks)

    def change(plain: Any) -> None:
        for parameter in plain.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise / parameter.shape[-1] ** 0.5 if parameter.ndim > 1 else 0.1 * noise)

    return loaded(config, folder, change)[1]


def medians(model: Any, prompts: Any, content: Any, **options: Any) -> Any:
    found = sl.audit(model, prompts, positions=content, estimates=RUNGS, **options)
    assert (found["tightness"].min(("prompt", "position")).dropna("estimate") >= 1 - 1e-4).all()
    return sl.results.table(found)


@pytest.mark.parametrize(
    ("blocks", "analytic", "exact", "two"),
    [
        (4, (60, 2_000), (30, 300), (4, 40)),
        (6, (500, 50_000), (200, 3_000), (15, 200)),
        (8, (5_000, 2_000_000), (1_000, 50_000), (50, 1_500)),
    ],
)
def test_random_gemmas(blocks: int, analytic: Any, exact: Any, two: Any, tmp_path: Path) -> None:
    ids = torch.randint(5, 60, (2, 16), generator=torch.Generator().manual_seed(0))
    table = medians(random_gemma(blocks, tmp_path), ids, range(1, 15))
    tight = table["tightness"]
    for name, (low, high) in {"analytic edges": analytic, "exact edges": exact, "two blocks composed": two}.items():
        assert low <= tight[name] <= high, name
    assert 2 <= tight["sketch of 16, certified"] <= 12
    assert tight["two blocks composed"] < tight["exact edges"] < tight["analytic edges"]


def test_the_bundled_model(tiny: Any) -> None:
    """A certified method that is cheap and orders digits as the Jacobian does, position held; path bounds do not."""
    sequence = sl.prompts.bernoulli(
        tiny, 12, p=0.5, seed=0, prefix="How many ones are in the following sequence?", suffix="="
    )
    content = [sequence.position(k) for k in range(1, 13)]
    table = medians(tiny, sl.prompts.stacked([sequence]), content)
    assert 200 <= table["tightness"]["exact edges"] <= 3_000
    assert 10 <= table["tightness"]["two blocks composed"] <= 150
    assert 3 <= table["tightness"]["sketch of 16, certified"] <= 7
    assert table["partial"]["sketch of 16, certified"] > 0.9
    assert table["partial"]["exact edges"] < 0.8
    assert table["cost"]["sketch of 16, certified"] < np.inf
