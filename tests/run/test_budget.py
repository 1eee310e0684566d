"""Estimates against the allocator's own peak, and refusals before memory runs out."""

from typing import Any

import pytest
import torch
from transformers import Gemma2Config, GemmaConfig, GPT2Config, LlamaConfig

import squashlens as sl
from squashlens.errors import CapacityError
from squashlens.run import budget
from squashlens.run.forward import forward
from squashlens.run.streamed import patterns_written
from tests.cases import save_random
from tests.cuda.works import allocated
from tests.references import run_of

BASE: dict[str, Any] = dict(
    vocab_size=60,
    max_position_embeddings=4096,
    pad_token_id=0,
    bos_token_id=2,
    eos_token_id=1,
)


def sized(d: int, mlp: int, heads: int, groups: int, head: int) -> dict[str, Any]:
    return BASE | {
        "hidden_size": d,
        "intermediate_size": mlp,
        "num_hidden_layers": 4,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": head,
    }


SHAPES: dict[str, Any] = {
    "wide MLP": GemmaConfig(**sized(128, 1024, 4, 1, 32)),
    "wide heads": LlamaConfig(**sized(128, 128, 8, 8, 64)),
    "cap and window": Gemma2Config(**sized(128, 512, 4, 2, 32), sliding_window=128),
    "no gate": GPT2Config(
        vocab_size=60,
        n_embd=128,
        n_layer=4,
        n_head=4,
        n_positions=4096,
        bos_token_id=2,
        eos_token_id=1,
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", SHAPES)
def test_estimates_are_within_a_quarter_of_the_allocated(
    shape: str, tmp_path: Any
) -> None:
    model = sl.load(save_random(SHAPES[shape], tmp_path), device="cpu")
    sl.path_bound(
        model, torch.tensor([2, 3, 4])
    )  # what is proved at first use is not what is estimated
    n, many = 1200, 300
    ids = torch.randint(3, 60, (n,), generator=torch.Generator().manual_seed(0))
    ids[0] = 2
    with torch.no_grad():
        passing = allocated(lambda: forward(run_of(model), ids[None], []))
    options: Any = {
        "norm": "frobenius",
        "method": "sketch",
        "n_probes": 16,
        "vjp_batch_size": 16,
    }
    products = allocated(lambda: sl.jacobian_norms(model, ids[:many], **options))
    assert budget.pass_bytes(run_of(model), 1, n) == pytest.approx(passing, rel=0.25)
    assert budget.products_bytes(run_of(model), 1, many, 16) == pytest.approx(
        products, rel=0.25
    )


def test_patterns_are_estimated_and_refused(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model whose patterns have to be computed: what they take, and a refusal where they do not fit."""
    model = sl.load(save_random(SHAPES["wide heads"], tmp_path), device="cpu")
    ids = torch.randint(3, 60, (600,), generator=torch.Generator().manual_seed(0))
    with patterns_written("the test"), torch.no_grad():
        forward(run_of(model), ids[None, :4], [])
        taken = allocated(lambda: forward(run_of(model), ids[None], []))
    expected = budget.pattern_bytes(run_of(model), 1, 600)
    assert expected == pytest.approx(taken, rel=0.25)
    monkeypatch.setattr("squashlens.model.memory.available", lambda _: expected - 1)
    with patterns_written("the test"), pytest.raises(CapacityError):
        forward(run_of(model), ids[None], [])
    forward(run_of(model), ids[None], [])
    monkeypatch.setattr(
        "squashlens.model.memory.available",
        lambda _: 4 * budget.graph_bytes(run_of(model), 1, 600) - 1,
    )
    with patterns_written("the test"), pytest.raises(CapacityError):
        sl.jacobian_norms(model, ids, norm="frobenius", method="sketch", n_probes=1)


def test_twice_the_prompt_takes_twice_the_memory(tiny: Any) -> None:
    """Beyond what a block of rows takes, which does not grow."""
    for estimate in (
        budget.pass_bytes,
        lambda m, p, n: budget.products_bytes(m, p, n, 4),
    ):
        at = [estimate(run_of(tiny), 1, n) for n in (20_000, 40_000, 80_000)]
        assert at[2] - at[1] == pytest.approx(2 * (at[1] - at[0]), rel=0.05)
