"""Accuracy against plain Hugging Face generation, on the bundled model and on random ones that speak its language."""

import copy
import functools
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import squashlens as sl
from squashlens.errors import InputError
from tests.cases import CONFIGS, MORE, few, random_model
from tests.measurements import counted

COUNT = "How many ones are in the following sequence?"
FORM: dict[str, Any] = {"prefix": COUNT, "suffix": "="}


@pytest.fixture(scope="module")
def worded(
    tiny: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Any, Any]]:
    """A family's random model with the bundled model's tokenizer: as a bridge and as Hugging Face opens it."""
    marks = [
        number for number in range(99) if not tiny.tokenizer.decode([number]).isalnum()
    ]

    @functools.cache
    def of(family: str) -> tuple[Any, Any]:
        config = copy.deepcopy((CONFIGS | MORE)[family])
        config.vocab_size = 99
        random = random_model(config, seed=1)
        with torch.no_grad():  # marks are said as often as words are
            random.get_output_embeddings().weight[marks] *= 1.5
        folder = tmp_path_factory.mktemp(family)
        random.save_pretrained(folder)
        for file in sl.example_models.folder("tiny-gemma").glob("tokenizer*.json"):
            shutil.copy(file, folder)
        plain = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager"
        ).eval()
        return sl.load(folder, device="cpu"), plain

    return of


def said(plain: Any, ids: tuple[int, ...], tokens: int) -> list[int]:
    """What the plain model goes on with, greedily."""
    given = torch.tensor([ids])
    found = plain.generate(
        given,
        attention_mask=torch.ones_like(given),
        do_sample=False,
        max_new_tokens=tokens,
    )
    return found[0, len(ids) :].tolist()


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
            answer = said(plain_tiny, sequence.pair(length).v, 6)
            text = tiny.tokenizer.decode(answer, skip_special_tokens=True).replace(
                " ", ""
            )
            right[row, column] = text == str(sequence.content[:length].count(4))
    assert tiny.tokenizer.decode([4]) == "1"
    np.testing.assert_array_equal(found, right.mean(axis=0))
    assert found["length"].values.tolist() == lengths
    assert found[0] == 1
    assert found[-1] == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("family", few(["gemma", "llama", "mistral", "gpt2", "qwen3"]))
def test_what_the_model_says_is_right(family: str, worded: Any) -> None:
    """Runs of tokens a random model says are right where a mark follows, wrong where a word or digit carries them on,
    and wrong with another last token."""
    model, plain = worded(family)
    decode = model.tokenizer.decode
    texts: dict[str, dict[Any, str]] = {"over": {}, "carried on": {}, "other": {}}
    for seed in range(16):
        sequence = sl.prompts.words(model, 6, range(3, 99), seed=seed, suffix="=")
        tokens = said(plain, sequence.pair(6).v, 4)
        words = [decode([token]) for token in tokens]
        for k in range(1, len(tokens)):
            if min(tokens[:k]) < 3:
                break  # a special token, which no text has
            # Every word, digit and mark of this vocabulary is one token.
            kind = "carried on" if words[k].isalnum() else "over"
            texts[kind].setdefault(sequence, " ".join(words[:k]))
            texts["other"][sequence] = " ".join(
                [*words[: k - 1], "zeros" if words[k - 1] != "zeros" else "ones"]
            )
    content = {tuple(decode([token]) for token in s.content): s for s in texts["other"]}
    for kind, share in (("over", 1), ("carried on", 0), ("other", 0)):
        asked = texts[kind]
        assert len(asked) >= 2, kind
        found = sl.accuracy_by_length(
            model,
            list(asked),
            lambda said, asked=asked: asked[content[said]],
            lengths=[6],
            n_baseline=0,
        )
        assert found.item() == share, kind


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


def test_every_prompt_is_checked(worded: Any) -> None:
    """Answers, too, must fit into the context."""
    model, _ = worded("gpt2")
    full = sl.prompts.repeated(
        model, "1", 60, prefix="How", suffix="="
    )  # 63 tokens of 64, and one more for v*
    sl.accuracy_by_length(model, [full], lambda _: "1", lengths=[60])
    with pytest.raises(InputError):
        sl.accuracy_by_length(model, [full], lambda _: "12", lengths=[60])
