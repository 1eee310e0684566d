"""Measurements of text with tokenizers that write spaces and characters in different ways, from prompts of any end."""

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import squashlens as sl
from squashlens.model.text.context import decoded
from tests.cases import CONFIGS, random_model
from tests.tokenizer_kinds import tokenizer_of

Models = Callable[[str, dict[str, str]], tuple[Any, Any]]


@pytest.fixture(scope="module")
def chained(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A Llama with a kind of tokenizer whose next token depends on the last one alone; and its plain self."""

    @functools.cache
    def of(kind: str, chain: tuple[tuple[str, str], ...]) -> tuple[Any, Any]:
        tokenizer, config = tokenizer_of(kind), copy.deepcopy(CONFIGS["llama"])
        config.vocab_size, config.hidden_size, config.max_position_embeddings = (
            len(tokenizer),
            64,
            256,
        )
        config.bos_token_id, config.eos_token_id, config.pad_token_id = 2, 1, 0
        plain = random_model(config, seed=1)
        with torch.no_grad():
            embedding: Any = plain.get_input_embeddings().weight
            head: Any = plain.get_output_embeddings().weight  # pyright: ignore[reportOptionalMemberAccess]
            embedding.copy_(torch.nn.functional.normalize(embedding, dim=-1))
            head.mul_(0.01)
            for last, then in chain:
                first, second = (
                    tokenizer.convert_tokens_to_ids(entry) for entry in (last, then)
                )
                head[second] += 5 * embedding[first]
            for name, weight in plain.named_parameters():
                if "o_proj" in name or "down_proj" in name:
                    weight.mul_(0.01)
        folder = tmp_path_factory.mktemp(kind)
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return sl.load(folder, device="cpu"), AutoModelForCausalLM.from_pretrained(
            folder
        ).eval()

    return lambda kind, chain: of(kind, tuple(chain.items()))


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("kind", "goes_on", "ends"),
    [
        ("always", "and", "▁and"),
        ("first", "and", "▁and"),
        ("never", "and", "▁and"),
        ("merging", "and", "Ġand"),
    ],
)
def test_an_answer_ends_where_a_word_begins(
    kind: str, goes_on: str, ends: str, chained: Models
) -> None:
    """After 1 comes " and", which ends the answer, or "and", which carries it on; decoded alone both may be "and"."""
    for then, share in ((ends, 1), (goes_on, 0)):
        model, _ = chained(kind, {"=": "1", "1": then})
        sequence = sl.prompts.words(
            model, 3, ["0", "2"], seed=0, prefix="copy", suffix="="
        )
        seen: list[tuple[str, ...]] = []
        found = sl.compare_interventions(
            model,
            sequence,
            {},
            answer=lambda items, seen=seen: seen.append(items) or "1",
            lengths=[3],
        )
        assert found["accuracy"].item() == share
        assert {*seen[0]} <= {"0", "2"}


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["always", "merging", "threes", "never", "first"])
def test_answers_to_prompts_of_any_end(kind: str, chained: Models) -> None:
    """Log-odds against plain forward passes over ids whose text is that of the prompt and the answer."""
    model, plain = chained(kind, {"=": "1"})
    tokenizer = model.tokenizer
    for end in (
        ":",
        "?",
        "=",
        ")",
        "é",
        "€",
        "…",
        "日本",
        "العربية",
        "🙂",
        " ",
        "\n",
        "12",
    ):
        prompts = [
            f"The sum of {words} is{end}" for words in ("12 and 345", "one and 1")
        ]
        for answers in ((" Paris", " one"), ("one", "and"), ("日", "é")):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = sl.knockout_effect(
                    model, prompts[0], target=answers, positions=[1]
                )
            assert [found[name].item() for name in ("target", "against")] == [*answers]
            ids = tokenizer(prompts[0])["input_ids"]
            lead = [log_p(plain, tokenizer, ids, answer) for answer in answers]
            assert found["target_score"].item() == pytest.approx(
                lead[0] - lead[1], abs=1e-4
            ), (end, answers)


def log_p(plain: Any, tokenizer: Any, ids: list[int], answer: str) -> float:
    """log p of an answer after a prompt: of the shortest ids of known texts that have this text there."""
    every = [
        tokenizer(f"{lead}{answer}", add_special_tokens=False)["input_ids"]
        for lead in ("", "\n", "1", "a", ":")
    ]
    tails = [tuple(row[at:]) for row in every for at in range(len(row))]
    joint = tokenizer(decoded(tokenizer, ids[1:]) + answer)["input_ids"]
    tails = [tuple(joint[len(ids) :])] if joint[: len(ids)] == ids else tails
    text = decoded(tokenizer, ids) + answer
    own = min(
        (tail for tail in tails if decoded(tokenizer, [*ids, *tail]) == text), key=len
    )
    logits = plain(torch.tensor([[*ids, *own]])).logits[0].double().log_softmax(dim=-1)
    return sum(logits[len(ids) - 1 + k, token].item() for k, token in enumerate(own))


@pytest.mark.parametrize("kind", ["always", "words"])
def test_labels_have_the_space_of_their_token(kind: str, chained: Models) -> None:
    model, _ = chained(kind, {"=": "1"})
    found = sl.top_tokens(model, "and one,", k=len(model.tokenizer))
    entries = model.tokenizer.convert_ids_to_tokens(found["token_id"].values.tolist())
    assert len(entries) > 40
    for label, entry in zip(found["token"].values, entries, strict=True):
        assert label.startswith(" ") == entry.startswith(("▁", "<0x20>")), entry
