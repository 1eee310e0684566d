"""Position encodings that depend on the length of the pass, against plain models that run every prompt by itself."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import squashlens as sl
from squashlens.errors import InputError
from squashlens.run.generate import Prompt, generate
from tests.cases import LIMIT, VARIABLE, save_random
from tests.references import distances_equal, run_of

CONTENT = [7, 8, 9, 9, 7, 8] * 4


def both_of(name: str, folder: Path) -> tuple[Any, Any]:
    """The bridge and the plain model of a configuration, loaded apart."""
    save_random(VARIABLE[name], folder)
    return sl.load(folder), AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()


ACROSS = "separate, since .* depends on the length of the pass beyond"
CASES: list[tuple[str, list[int], tuple[int, ...], str]] = [
    (
        "dynamic",
        CONTENT * 3,
        (4, 29, 30, 31, 50, 70),
        f"{ACROSS} 32 tokens",
    ),  # each longer pass has its own
    *(
        (name, content, (1, 5, 13, 14, 15, 24), f"{ACROSS} 16 tokens")
        for name in ("phi3", "llama")
        for content in (CONTENT, [7] * 24)
    ),
    ("phi3", [7] * 24, (2, 9, 13), "shared"),
    ("phi3", [7] * 24, (15, 20), "shared"),
    ("phi3", [7] * 24, (2, 9, 14), ACROSS),
    ("phi3", [7] * 24, (14, 20), ACROSS),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "content", "lengths", "route"), CASES)
def test_collapse_on_both_sides_of_the_switch(
    name: str, content: list[int], lengths: tuple[int, ...], route: str, tmp_path: Path
) -> None:
    """v* may already be long where v is not. The plain model runs prompts from the shortest on, as it keeps the
    frequencies of a longer one."""
    model, plain = both_of(name, tmp_path)
    sequence = sl.prompts.build(model, content, prefix=[2, 5])
    ds = sl.collapse(model, sequence, lengths=list(lengths))
    assert re.match(route, sl.results.provenance(ds)["passes"])
    for length in lengths:
        distances_equal(ds.sel(length=length), plain, sequence.pair(length))
    if route != "shared":
        with pytest.raises(InputError):
            sl.collapse(model, sequence, lengths=list(lengths), passes="shared")


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["phi3", "llama"])
def test_answers_are_those_of_whole_passes(name: str, tmp_path: Path) -> None:
    """Decoding across the switch; cached keys would not be rotated again."""
    model, plain = both_of(name, tmp_path)
    ids = list(range(3, 3 + LIMIT - 4))
    said = next(generate(run_of(model), [Prompt(tuple(ids), 12)]))[0]
    while len(ids) < LIMIT + 8:
        ids.append(
            int(plain(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax())
        )
    assert said.ids == tuple(ids[LIMIT - 4 :])[: len(said.ids)]
    assert len(said.ids) >= 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "from_", "content"),
    [("llama", 17, [7] * 24), ("gpt2", 22, CONTENT), ("llama", 28, CONTENT)],
)
def test_a_hidden_dependence_is_found(
    family: str, from_: int, content: list[int], bridge_of: Any
) -> None:
    """Embeddings that are scaled from some length of the pass on, which no configuration says."""
    model = bridge_of(family)
    embed = model.embed.original_component
    sequence = sl.prompts.build(
        model, content, prefix=[2, 5, 11]
    )  # v* has 5 to 28 tokens

    def scaled(ids: Any) -> Any:
        return type(embed).forward(embed, ids) * (
            1.5 if ids.shape[-1] >= from_ else 1.0
        )

    embed.__dict__["forward"] = scaled
    try:
        ds = sl.collapse(model, sequence)
        alone = sl.collapse(model, sequence, passes="separate")
    finally:
        del embed.__dict__["forward"]
    assert sl.results.provenance(ds)["passes"].startswith(
        "separate, since its numbers depend on what it shares a pass with"
    )
    np.testing.assert_array_equal(ds["distance"], alone["distance"])
