"""What is said next, against plain Hugging Face decoding and against a forward pass for every token."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig

import squashlens as sl
from squashlens.run import generate as module
from squashlens.run.generate import Continuation, Prompt, generate
from tests.cases import CONFIGS, MORE, few
from tests.references import run_of

ROOM = 10


def prompts(seed: int = 0) -> list[Prompt]:
    """Of three lengths, mixed."""
    rng = np.random.default_rng(seed)
    rows = [tuple(rng.integers(3, 60, size=n).tolist()) for n in (9, 14, 9, 5, 14, 9)]
    return [
        Prompt((2, *row), ROOM, f"seed {number}") for number, row in enumerate(rows)
    ]


def all_said(model: Any, given: list[Prompt], **options: Any) -> list[Continuation]:
    found: dict[int, Continuation] = {}
    for batch in generate(run_of(model), given, **options):
        assert not set(batch) & set(found), "no prompt is answered twice"
        found |= batch
    return [found[place] for place in range(len(given))]


def by_transformers(plain: Any, prompt: Prompt, **options: Any) -> Continuation:
    ids = torch.tensor([prompt.ids])
    out = plain.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=prompt.max_new_tokens,
        **options,
    )[0, len(prompt.ids) :].tolist()
    ends = out.index(1) if 1 in out else None
    return Continuation(tuple(out[:ends]), ends is not None)


@pytest.mark.few(3)
@pytest.mark.parametrize("family", few([*CONFIGS, *MORE]))
def test_greedy_is_what_transformers_says_token_by_token(
    bridge_of: Callable[..., Any], folder_of: Callable[[str], Path], family: str
) -> None:
    plain = AutoModelForCausalLM.from_pretrained(
        folder_of(family), attn_implementation="eager"
    ).eval()
    plain.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0)
    model, given = bridge_of(family), prompts()
    ends = (
        1 if module._ends(run_of(model)) else None
    )  # NeoX's configuration here names none
    expected = [by_transformers(plain, prompt, eos_token_id=ends) for prompt in given]
    assert all_said(model, given) == expected
    assert len({said.ids for said in expected}) > 1, "not all the same"


class Ignored(DynamicCache):
    """A cache that attention does not use, as TransformerLens 4.3 does not use those of transformers 5.24."""

    def update(
        self, key_states: Any, value_states: Any, *args: Any, **options: Any
    ) -> Any:
        super().update(key_states, value_states, *args, **options)
        return key_states, value_states


def test_whole_prompts_are_run_where_a_cache_is_not_used(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_cache = all_said(sl.load(folder_of("gemma")), prompts())
    monkeypatch.setattr(module, "_cache", lambda model: Ignored())
    with pytest.warns(UserWarning, match="other logits here than in the whole prompt"):
        assert all_said(sl.load(folder_of("gemma")), prompts()) == on_a_cache


def test_the_size_of_batches_changes_nothing(
    bridge_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, given = bridge_of("gemma", torch.float64), prompts()
    for temperature in (0.0, 1.5):
        whole = all_said(model, given, temperature=temperature)
        assert all_said(model, given[3:], temperature=temperature) == whole[3:]
        with monkeypatch.context() as patch:
            patch.setattr(module, "_batch_size", lambda model, n: 1)
            assert all_said(model, given, temperature=temperature) == whole


def test_every_end_of_text_ends(bridge_of: Callable[..., Any]) -> None:
    """Instruct models end turns with another token than texts. Enough new tokens end a text as well, and are kept."""
    model = bridge_of("gemma")
    free = all_said(model, prompts())
    chosen = free[0].ids[4]
    enough = all_said(
        model,
        [replace(prompt, enough=lambda new: new[-1] == chosen) for prompt in prompts()],
    )
    own = model.original_model.generation_config
    try:
        model.original_model.generation_config = GenerationConfig(
            eos_token_id=[1, chosen]
        )
        for before, said, kept in zip(
            free, all_said(model, prompts()), enough, strict=True
        ):
            stop = before.ids.index(chosen) if chosen in before.ids else None
            assert said == (
                before if stop is None else Continuation(before.ids[:stop], True)
            )
            assert kept == (
                before if stop is None else Continuation(before.ids[: stop + 1], True)
            )
    finally:
        model.original_model.generation_config = own


def test_draws_are_from_the_softmax_at_the_temperature(
    bridge_of: Callable[..., Any],
) -> None:
    model, ids, draws = bridge_of("gemma", torch.float64), prompts()[0].ids, 3000
    given = [Prompt(ids, 1, str(number)) for number in range(draws)]
    first = [
        said.ids[0] if said.ids else 1
        for said in all_said(model, given, temperature=1.7)
    ]
    counts = np.bincount(first, minlength=60)

    def likelihood(temperature: float) -> float:
        """The p-value of these draws, outcomes that are expected less than five times taken together."""
        with torch.no_grad():
            expected = (
                draws
                * (model(torch.tensor([ids]))[0, -1].double() / temperature)
                .softmax(dim=-1)
                .numpy()
            )
        rare = expected < 5
        seen, wanted = (
            np.append(values[~rare], values[rare].sum())
            for values in (counts, expected)
        )
        kept = wanted > 0
        return float(scipy.stats.chisquare(seen[kept], wanted[kept]).pvalue)

    assert likelihood(1.7) > 0.001
    assert likelihood(1.2) < 1e-6, "it can be told from another temperature"


def test_hooks_by_position_act_on_whole_prompts(bridge_of: Callable[..., Any]) -> None:
    """On a cache, a token by itself would stand at position 0."""
    model, given = bridge_of("llama", torch.float64), prompts()

    def token_by_token(prompt: Prompt) -> Continuation:
        ids = list(prompt.ids)
        for _ in range(prompt.max_new_tokens):
            ids.append(int(model(torch.tensor([ids]), use_cache=False)[0, -1].argmax()))
            if ids[-1] == 1:
                return Continuation(tuple(ids[len(prompt.ids) : -1]), True)
        return Continuation(tuple(ids[len(prompt.ids) :]), False)

    free = all_said(model, given)
    with (
        sl.applied(model, sl.hooks.zero_residual([0, 3], blocks=(1, 2))),
        torch.no_grad(),
    ):
        expected = [token_by_token(prompt) for prompt in given]
        assert all_said(model, given) == expected
    assert expected != free, "the hook does something"


@pytest.mark.cuda
def test_cuda_says_what_the_cpu_says(folder_of: Callable[[str], Path]) -> None:
    cpu = sl.load(folder_of("gemma"), device="cpu", dtype=torch.float64)
    gpu = sl.load(folder_of("gemma"), device="cuda", dtype=torch.float64)
    for temperature in (0.0, 1.0):
        assert all_said(gpu, prompts(), temperature=temperature) == all_said(
            cpu, prompts(), temperature=temperature
        )
