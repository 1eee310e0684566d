"""The packaged Gemma 3 270M and SmolLM2 135M, against llama.cpp (`record_llama_cpp.py`, `tests/smollm/record.py`)."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import squashlens as sl

TESTS = Path(__file__).parents[1]
MARKS = {"gemma": [pytest.mark.gemma, pytest.mark.slow], "smollm": [pytest.mark.smollm]}
RECORDS = {
    name: json.loads((TESTS / name / "llama_cpp.json").read_text(encoding="utf-8"))
    for name in MARKS
}


def each(kind: str) -> Any:
    """A parameter for each model and each text of a part of its record."""
    texts = [(name, text) for name, record in RECORDS.items() for text in record[kind]]
    cases = [
        pytest.param(name, text, marks=MARKS[name], id=f"{name} {text!r}"[:30])
        for name, text in texts
    ]
    return pytest.mark.parametrize(("name", "text"), cases)


def far(model: Any, name: str, text: str, kind: str) -> float:
    """The largest difference of recorded log-probabilities."""
    record = RECORDS[name]
    ours = model(torch.tensor([record["tokens"][text]]))[0].double().log_softmax(-1)
    differences = [
        ours[entry["position"], entry["tokens"]]
        - torch.tensor(entry["log_probabilities"])
        for entry in record[kind][text]
    ]
    return float(torch.stack(differences).abs().max())


@each("tokens")
def test_tokens_are_those_of_llama_cpp(
    name: str, text: str, request: pytest.FixtureRequest
) -> None:
    tokens = sl.prompts.tokenize(request.getfixturevalue(name), text)
    assert tokens.tolist() == [RECORDS[name]["tokens"][text]]


@each("float32")
def test_logits_are_those_of_llama_cpp(
    name: str, text: str, request: pytest.FixtureRequest
) -> None:
    """Of the same weights in float32. In Gemma llama.cpp looks up GELU in a table of half precision."""
    close = {"gemma": 1e-2, "smollm": 2e-4}[name]
    assert far(request.getfixturevalue(name), name, text, "float32") < close


@each("quantized")
def test_llama_cpp_rounds_what_it_multiplies(
    name: str, text: str, request: pytest.FixtureRequest
) -> None:
    """Of the file as it is, llama.cpp also rounds activations to eight bits, which squashlens does not."""
    assert 0.02 < far(request.getfixturevalue(name), name, text, "quantized") < 1
