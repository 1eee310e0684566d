"""The frontier that docs/certificates.md reports: how tight, how like the truth, on random Gemmas and the bundled one.

Ranges, not promises: wide enough for other machines, narrow enough that a method that loses its proof, its tightness or
its order falls out.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import spearmanr
from transformers import GemmaConfig

import squashlens as sl
from tests.cases import loaded

pytestmark = pytest.mark.slow


def random_gemma(blocks: int, folder: Path) -> Any:
    """d = 64, four heads on one key/value head; matrices of unit gain, seeded."""
    config = GemmaConfig(
        vocab_size=60,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=blocks,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=16,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
    )
    generator = torch.Generator().manual_seed(blocks)

    def change(plain: Any) -> None:
        for parameter in plain.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(
                noise / parameter.shape[-1] ** 0.5
                if parameter.ndim > 1
                else 0.1 * noise
            )

    return loaded(config, folder, change)[1]


def rungs(model: Any, ids: Any, content: Any) -> tuple[dict[str, Any], Any]:
    """Each certified bound by name, and the norm; none is too small at any position."""
    norm = sl.jacobian_norms(model, ids, method="exact")
    bounds = {
        "exact": sl.certified_bound(model, ids),
        "sketch": sl.jacobian_norms(
            model, ids, method="sketch_upper", n_probes=16, seed=0
        ),
    }
    for bound in bounds.values():
        assert float((bound / norm).min()) >= 1 - 1e-4
    inner = {name: bound.isel(position=content) for name, bound in bounds.items()}
    return inner, norm.isel(position=content)


@pytest.mark.parametrize(
    ("blocks", "exact"), [(4, (30, 300)), (6, (200, 3_000)), (8, (1_000, 50_000))]
)
def test_random_gemmas(blocks: int, exact: Any, tmp_path: Path) -> None:
    ids = torch.randint(5, 60, (2, 16), generator=torch.Generator().manual_seed(0))
    bounds, norm = rungs(random_gemma(blocks, tmp_path), ids, range(1, 15))
    tight = {name: float((bound / norm).median()) for name, bound in bounds.items()}
    assert exact[0] <= tight["exact"] <= exact[1]
    assert 2 <= tight["sketch"] <= 12


def test_the_bundled_model(tiny: Any) -> None:
    """A certified method that is cheap and orders digits as the Jacobian does, position held; path bounds do not."""
    sequence = sl.prompts.bernoulli(
        tiny,
        12,
        p=0.5,
        seed=0,
        prefix="How many ones are in the following sequence?",
        suffix="=",
    )
    content = [sequence.position(k) for k in range(1, 13)]
    bounds, norm = rungs(tiny, sl.prompts.stacked([sequence])[0], content)
    tight = {name: float((bound / norm).median()) for name, bound in bounds.items()}
    assert 200 <= tight["exact"] <= 3_000
    assert 3 <= tight["sketch"] <= 7
    ranks = {name: spearmanr(bound, norm).statistic for name, bound in bounds.items()}
    assert ranks["sketch"] > 0.9
    assert ranks["exact"] < 0.8
