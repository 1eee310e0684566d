"""What a step sees, its learning rate, and that an interrupted run goes on as if nothing had been."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

from training.prose import train as training
from training.prose.corpus import MANIFEST
from training.prose.tokenizer import TOKENIZER, TOKENS, encode, train_tokenizer
from training.prose.train import Recipe, Rows, halves_of

TEXTS = [
    f"The {word} of the {other} is in the house, and nobody saw it.\n" * 4
    for word in "abc"
    for other in "defg"
]
RECIPE = Recipe(steps=6, decay_from=4, tokens=64, first_length=16, warmup=2)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus folder with a tokenizer and tokens."""
    folder = tmp_path_factory.mktemp("corpus")
    tokenizer = train_tokenizer(TEXTS, vocabulary=300)
    tokenizer.save_pretrained(folder / TOKENIZER)
    np.save(
        folder / TOKENS,
        np.concatenate([np.array(encode(t, tokenizer), np.uint16) for t in TEXTS]),
    )
    (folder / MANIFEST).write_text("{}")
    return folder


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same architecture, made small."""
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "head_dim": 8,
        "vocab_size": 300,
    }
    config = {
        **training.config().to_dict(),
        **sizes,
        "layer_types": None,
        "sliding_window": 4,
    }
    monkeypatch.setattr(training, "CONTEXT", 32)
    monkeypatch.setattr(
        training, "config", lambda: Gemma2Config(**config, attn_implementation="eager")
    )


@pytest.mark.usefixtures("small")
def test_two_halves_are_the_whole_batch(text: Path) -> None:
    """The gradient of the halves is that of all rows at once."""
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(training.config())
    rows = Rows(np.load(text / TOKENS), seed=0)
    halves = halves_of(0, rows, RECIPE)
    loss = training.backward(model, halves, workers=1)
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    together = training.loss_of(model, torch.cat(halves))
    together.backward()
    assert loss == pytest.approx(
        together.item(), rel=1e-2
    )  # products in bfloat16 have eight bits
    for one, other in zip(gradients, (p.grad for p in model.parameters()), strict=True):
        assert other is not None
        assert torch.linalg.norm(one - other) <= 0.03 * torch.linalg.norm(other)
