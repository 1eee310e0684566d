"""Accuracy against plain Hugging Face generation, on the bundled model and on random ones that speak its language."""

from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from tests.measurements import counted

COUNT = "How many ones are in the following sequence?"
FORM: dict[str, Any] = {"prefix": COUNT, "suffix": "="}


@pytest.mark.slow
@pytest.mark.parametrize("commas", [{}, {"separator": ","}], ids=["bare", "commas"])
def test_exact_match_of_plain_generation(
    commas: dict[str, Any], tiny: Any, plain_tiny: Any
) -> None:
    """The whole answer up to <eos>, as text: from always right to never."""
    drawn = [
        sl.prompts.bernoulli(tiny, 64, seed=seed, **FORM, **commas) for seed in range(4)
    ]
    lengths = [3, 20, 44, 54, 64]
    found = sl.accuracy_by_length(tiny, drawn, counted, lengths=lengths)
    right = np.zeros((4, len(lengths)))
    for row, sequence in enumerate(drawn):
        for column, length in enumerate(lengths):
            asked = torch.tensor([sequence.pair(length).v])
            answer = plain_tiny.generate(asked, do_sample=False, max_new_tokens=6)[
                0, asked.shape[1] :
            ]
            text = tiny.tokenizer.decode(answer, skip_special_tokens=True).replace(
                " ", ""
            )
            right[row, column] = text == str(sequence.content[:length].count(4))
    assert tiny.tokenizer.decode([4]) == "1"
    np.testing.assert_array_equal(found, right.mean(axis=0))
    assert found["length"].values.tolist() == lengths
    assert found[0] == 1
    assert found[-1] == 0


def test_the_start_of_an_answer_is_no_answer(tiny: Any) -> None:
    """Of twelve ones the model says 12: 1 is wrong, and so are 2, 21 and 122."""
    twelve = [sl.prompts.repeated(tiny, "1", 12, **FORM)]
    for text, right in (
        ("12", 1),
        ("1", 0),
        ("2", 0),
        ("21", 0),
        ("122", 0),
        ("1 2", 1),
    ):
        found = sl.accuracy_by_length(
            tiny, twelve, lambda _, text=text: text, lengths=[12]
        )
        assert found.item() == right, text


def test_answers_see_the_content_at_their_length(tiny: Any) -> None:
    """Content tokens alone, without separators, prompt or suffix, and the last as the ending has it."""
    seen = []

    def note(content: tuple[str, ...]) -> str:
        seen.append("".join(content))
        return "7"

    sequence = sl.prompts.build(
        tiny, "10230", separator=",", every=2, ending="9", **FORM
    )
    sl.accuracy_by_length(tiny, [sequence], note, lengths=[1, 3, 5], n_baseline=0)
    assert seen == ["9", "109", "10239"]
