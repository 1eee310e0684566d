"""How repeats fall into tokens, against closed forms and plain lists; what that does to D, against plain models."""

import functools
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import squashlens as sl
from squashlens.measure.collapse.tokenization import FORMS, repeat_tokenization
from tests.references import last_streams
from tests.tokenizer_kinds import SPLITTERS, save_random_with, splitter

N = 13
ALWAYS, NEVER = (lambda n: True), (lambda n: False)
LATER, FIRST = (lambda n: n > 1), (lambda n: n == 1)

# tokenizer, repeat, form → tokens, pair, grows, uniform as functions of the number of repeats
CLOSED: dict[tuple[str, str, str], tuple[Callable[[int], Any], ...]] = {
    ("single", "1", "joined"): (lambda n: n, ALWAYS, ALWAYS, ALWAYS),
    ("single", "1", "spaced"): (lambda n: 2 * n - 1, NEVER, ALWAYS, ALWAYS),
    ("single", "1", "commas"): (lambda n: 2 * n - 1, NEVER, ALWAYS, ALWAYS),
    ("single", "1", "commas spaced"): (lambda n: 3 * n - 2, NEVER, ALWAYS, ALWAYS),
    ("single", "one", "spaced"): (lambda n: n, LATER, ALWAYS, FIRST),
    ("prefixed", "1", "joined"): (lambda n: n + 1, ALWAYS, ALWAYS, ALWAYS),
    ("prefixed", "1", "spaced"): (lambda n: 2 * n, NEVER, ALWAYS, ALWAYS),
    ("prefixed", "one", "joined"): (lambda n: n, LATER, ALWAYS, FIRST),
    ("prefixed", "one", "spaced"): (lambda n: n, ALWAYS, ALWAYS, ALWAYS),
    ("threes", "1", "joined"): (
        lambda n: -(-n // 3),
        NEVER,
        lambda n: n % 3 == 0,
        FIRST,
    ),
    ("threes", "1", "spaced"): (lambda n: 2 * n - 1, NEVER, ALWAYS, ALWAYS),
    ("threes", "111", "joined"): (lambda n: n, ALWAYS, ALWAYS, ALWAYS),
    ("threes", "one", "commas spaced"): (lambda n: 2 * n - 1, NEVER, ALWAYS, FIRST),
    ("merging", "1", "joined"): (lambda n: max(1, n // 2), NEVER, NEVER, FIRST),
    ("merging", "1", "spaced"): (lambda n: n, LATER, ALWAYS, FIRST),
    ("merging", "11", "joined"): (lambda n: n, ALWAYS, ALWAYS, ALWAYS),
    ("merging", "one", "joined"): (lambda n: n, ALWAYS, ALWAYS, ALWAYS),
}
MODELS = (
    ("single", "gemma"),
    ("threes", "gemma3"),
    ("prefixed", "llama"),
    ("merging", "gpt2"),
    ("merging", "qwen2"),
    ("merging", "mistral"),
)


@pytest.fixture(scope="module")
def model_of(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, str], tuple[Any, Any, Any]]:
    """A tiny random model with a trained tokenizer: as a proven bridge, and both as Hugging Face opens them.

    Qwen2 is opened with a pattern of its own, which takes digits one by one, whatever its folder says.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    @functools.cache
    def opened(kind: str, family: str) -> tuple[Any, Any, Any]:
        folder = save_random_with(
            kind, family, tmp_path_factory.mktemp(f"{kind}-{family}")
        )
        plain = AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager"
        ).eval()
        return (
            sl.load(folder, device="cpu"),
            plain,
            AutoTokenizer.from_pretrained(folder),
        )

    return opened


@pytest.mark.parametrize(("kind", "repeat", "form"), CLOSED)
def test_closed_forms(kind: str, repeat: str, form: str) -> None:
    ds = repeat_tokenization(
        splitter(kind), N, repeat=repeat, separator={form: FORMS[form]}
    ).sel(form=form)
    for name, law in zip(
        ("tokens", "pair", "grows", "uniform"), CLOSED[kind, repeat, form], strict=True
    ):
        assert ds[name].values.tolist() == [law(n) for n in range(1, N + 1)], name


@settings(deadline=None, max_examples=80)
@given(
    kind=st.sampled_from(SPLITTERS),
    repeat=st.sampled_from(["1", "11", "111", "2", "one", "on", "12"]),
    between=st.sampled_from(["", " ", ",", ", ", "0", "one", " 1 ", "1"]),
    prompt=st.sampled_from(["", "count", "count ", "11", "one: "]),
    n=st.integers(1, 9),
)
def test_against_plain_lists(
    kind: str, repeat: str, between: str, prompt: str, n: int
) -> None:
    assume(
        not between or len(re.findall(f"(?={repeat})", repeat + between + repeat)) == 2
    )
    tokenizer = splitter(kind)
    ds = repeat_tokenization(
        tokenizer, n, repeat=repeat, separator={"it": between}, prefix=prompt
    ).sel(form="it")
    texts = [between.join([repeat] * k) for k in range(1, n + 2)]
    ids = [
        tokenizer(prompt + text, add_special_tokens=False)["input_ids"]
        for text in texts
    ]
    before = tokenizer(prompt, add_special_tokens=False)["input_ids"] if prompt else []
    for k, (now, then) in enumerate(pairwise(ids)):
        here = ds.isel(repeats=k)
        shared = 0
        while shared < len(before) and before[shared] == now[shared]:
            shared += 1
        content = now[shared:]
        assert here["text"].item() == texts[k]
        assert here["tokens"].item() == len(content)
        assert here["token_id"].values.tolist() == content + [-1] * (
            ds.sizes["place"] - len(content)
        )
        assert here["grows"].item() == (then[: len(now)] == now)
        assert here["pair"].item() == (then == now + now[-1:])
        assert here["pieces"].item() == "·".join(here["piece"].values[: len(content)])
        assert here["uniform"].item() == uniform_by_offsets(
            tokenizer, prompt, repeat, between, k + 1
        )
        spelt = "".join(here["piece"].values).replace("␣", " ")
        assert spelt.strip() in (prompt + texts[k])
        assert spelt.endswith(texts[k])
    if not between:
        settled = ds["uniform"].values
        assert (
            ds["pair"].values[:-1] >= (settled[:-1] & settled[1:])
        ).all()  # one token each, nothing between


def uniform_by_offsets(
    tokenizer: Any, prompt: str, repeat: str, between: str, n: int
) -> bool:
    """Whether each repeat's characters are those of one token, spaces aside, and always the same one."""
    text = prompt + between.join([repeat] * n)
    coded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    spans = []
    for token, (start, stop) in zip(
        coded["input_ids"], coded["offset_mapping"], strict=True
    ):
        if tokenizer.convert_ids_to_tokens(token).strip(
            "▁Ġ"
        ):  # a space by itself claims the character behind it
            spans.append((token, stop - len(text[start:stop].strip()), stop))
    found = set()
    for k in range(n):
        first = len(prompt) + k * len(repeat + between)
        found.add(
            tuple(
                (i, a - first, b - first)
                for i, a, b in spans
                if a < first + len(repeat) and b > first
            )
        )
    return len(found) == 1 and [span[1:] for span in found.pop()] == [(0, len(repeat))]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "prompt", [pytest.param("", marks=pytest.mark.slow), "count: "]
)
@pytest.mark.parametrize(
    ("kind", "family"),
    [
        pytest.param(
            *both, marks=pytest.mark.slow if both == ("merging", "mistral") else ()
        )
        for both in MODELS
    ],
)
def test_distances_equal_those_of_plain_models(
    kind: str, family: str, prompt: str, model_of: Any
) -> None:
    """A forward pass for each text, as somebody without squashlens would run it."""
    model, plain, tokenizer = model_of(kind, family)
    ds = repeat_tokenization(model, 7, prefix=prompt, scale="relative")
    lead = [] if family == "qwen2" else [2]
    norms = {"linf": np.inf, "l1": 1, "l2": 2}
    other = {
        n: repeat_tokenization(model, 3, prefix=prompt, norm=n) for n in ("l1", "l2")
    }
    for form, between in FORMS.items():
        for n in range(1, 8):
            here, longer = (
                lead
                + tokenizer(prompt + between.join(["1"] * k), add_special_tokens=False)[
                    "input_ids"
                ]
                for k in (n, n + 1)
            )
            v, following, star = (
                last_streams(plain, ids).double()
                for ids in (here, longer, here + here[-1:])
            )
            rms = v.square().mean(-1).sqrt().numpy()
            for name, to in (("naive", following), ("distance", star)):
                found = ds.sel(form=form, repeats=n)
                expected = (v - to).abs().amax(-1).numpy() / rms
                values = np.append(found[name], found[f"{name}_y"])
                np.testing.assert_allclose(
                    values, expected, atol=2e-5 * max(1.0, expected.max())
                )
                for norm, ds_of in other.items():
                    if n <= 3:
                        gap = np.linalg.norm((v - to).numpy(), ord=norms[norm], axis=-1)
                        values = ds_of[name].sel(form=form, repeats=n)
                        np.testing.assert_allclose(
                            values, gap[:-1], atol=2e-5 * max(1.0, gap.max())
                        )
