"""What the model is taught, how it is laid out, and that an interrupted run goes on as if nothing had been."""

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GemmaForCausalLM

from squashlens.example_models.curriculum import TASKS, spell
from training.gemma import train as training
from training.gemma.curriculum import draw
from training.gemma.tokenizer import build_tokenizer


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_commas_after_every_third_digit_never_last(digits: list[int]) -> None:
    text = spell(digits, commas=True)
    assert text.replace(",", "") == spell(digits, commas=False)
    assert [len(group) for group in text.split(",")][:-1] == [3] * (
        (len(digits) - 1) // 3
    )
    assert not text.endswith(",")


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(
    seed=st.integers(0, 1000), commas=st.booleans(), task=st.sampled_from(sorted(TASKS))
)
def test_a_packed_row_equals_a_pass_for_every_cut(
    seed: int, commas: bool, task: str
) -> None:
    torch.manual_seed(seed)
    model, tokenizer = GemmaForCausalLM(training.config()).eval(), build_tokenizer()
    examples = [
        draw(TASKS[task], 9 + i, commas, Random(seed + i), cuts=4) for i in range(2)
    ]
    packed = training.pack(examples, tokenizer)
    with torch.no_grad():
        together = packed.logits(model)
        for row, example in enumerate(examples):
            answered = (packed.targets[row] != -100).nonzero()[:, 0].tolist()
            for cut in example.cuts:
                prompt = tokenizer(example.prompt(cut))["input_ids"]
                answer = tokenizer(example.answer(cut), add_special_tokens=False)[
                    "input_ids"
                ]
                alone = model(torch.tensor([[*prompt, *answer]])).logits[
                    0, len(prompt) - 1 :
                ]
                places, answered = answered[: len(alone)], answered[len(alone) :]
                assert packed.targets[row, places].tolist() == [*answer, 1]
                torch.testing.assert_close(
                    together[row, places], alone, rtol=1e-4, atol=1e-4
                )
            assert answered == []
