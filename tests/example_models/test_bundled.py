"""The bundled model is what its card says, and opens without us."""

import re
from typing import Any

import pandas as pd
import pytest
import torch

from squashlens import example_models
from training.gemma.evaluate import BANDS, by_length, evaluate, targets

FOLDER = example_models.folder("tiny-gemma")


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Accuracy by task, pattern and length, as recorded."""
    return pd.read_csv(FOLDER / "accuracy.csv")


def test_bundled_models_are_of_modest_size() -> None:
    """A wheel has at most 25 MB."""
    most = {"tiny-gemma": 8_000_000, "tiny-prose": 12_000_000}
    assert example_models.bundled() == (*most,)
    for name, size in most.items():
        assert (
            sum(file.stat().st_size for file in example_models.folder(name).iterdir())
            <= size
        )


def test_it_opens_with_transformers_and_transformerlens_as_it_is() -> None:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = (
        AutoTokenizer.from_pretrained(FOLDER),
        AutoModelForCausalLM.from_pretrained(FOLDER).eval(),
    )
    bridge: Any = TransformerBridge.boot_transformers(str(FOLDER), device="cpu")
    ids = tokenizer(
        "What is the last digit in this sequence? 0007 =", return_tensors="pt"
    )["input_ids"]
    with torch.no_grad():
        plain, bridged = model(ids).logits, bridge(ids)
        said = model.generate(ids, max_new_tokens=2, do_sample=False)[0, ids.shape[1] :]
    torch.testing.assert_close(plain, bridged, rtol=1e-4, atol=1e-4)
    assert tokenizer.convert_ids_to_tokens(said) == ["7", "<eos>"]


def test_first_and_last_digit_in_range(table: pd.DataFrame) -> None:
    assert (
        by_length(table)
        .query("task in ('first', 'last') and length <= 48")["accuracy"]
        .min()
        >= 0.99
    )


@pytest.mark.slow
def test_the_whole_table_again(table: pd.DataFrame) -> None:
    again = evaluate(FOLDER)
    assert (
        again["accuracy"] - table["accuracy"]
    ).abs().max() <= 0.04  # the same prompts; one tie may fall otherwise


def test_the_card_quotes_the_table(table: pd.DataFrame) -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert targets(table) in text
    for task, own in by_length(table).groupby("task"):
        row = re.search(rf"^\| {task} \| ([\d.| ]+) \|$", text, flags=re.MULTILINE)
        assert row is not None
        expected = [
            100 * own[own["length"].between(a, b)]["accuracy"].mean() for a, b in BANDS
        ]
        assert [float(c) for c in row[1].split("|")] == pytest.approx(
            expected, abs=0.051
        )
