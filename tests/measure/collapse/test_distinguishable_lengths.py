"""Separation of the lengths of a sequence: against plain transformers that run the same prompts in pieces."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache

import squashlens as sl
from tests.cases import CONFIGS, VARIABLE, loaded

COUNT = "How many ones are in the following sequence?"


def plain_runs(plain: Any, ids: torch.Tensor) -> np.ndarray:
    """y of every position in three groupings, by transformers alone: (run, position, d)."""
    runs = []
    for size in (ids.shape[1], 7, 64):
        cache, parts = DynamicCache(config=plain.config), []
        with torch.no_grad():
            for piece in ids.split(size, dim=1):
                out = plain(
                    piece,
                    past_key_values=cache,
                    use_cache=True,
                    output_hidden_states=True,
                )
                parts.append(out.hidden_states[-1][0])
        runs.append(torch.cat(parts).double().numpy())
    return np.stack(runs)


def test_it_equals_plain_transformers_in_bfloat16(plain_tiny: Any) -> None:
    model = sl.load("tiny-gemma", dtype="bfloat16", device="cpu")
    sequence = sl.prompts.repeated(model, "1", 40, prefix=COUNT)
    found = sl.distinguishable_lengths(model, sequence, n_random_models=0)
    kind = type(plain_tiny)
    plain = kind.from_pretrained(
        sl.example_models.folder("tiny-gemma"),
        dtype=torch.bfloat16,
        attn_implementation="sdpa",
    )
    v = plain_runs(plain, torch.tensor([sequence.trunk]))[:, len(sequence.prefix) :]
    noise = np.linalg.norm(v[1:] - v[0], axis=-1).max(axis=0)
    step = np.linalg.norm(np.diff(v[0], axis=0), axis=-1)
    # Rounding in two programs has the same size, not the same bits; a step is a property of the model.
    assert 1 / 2 < np.median(found["noise_y"]) / np.median(noise) < 2
    np.testing.assert_allclose(
        (found["step_y"] * found["noise_y"])[:-1], step, rtol=0.2
    )
    assert 2 < np.median(found["step_y"][:-1]) < 1000


def test_float32_tells_all_lengths_apart_and_one_more_mantissa_bit_does_not_decide(
    tiny: Any,
) -> None:
    found = sl.distinguishable_lengths(
        tiny,
        sl.prompts.repeated(tiny, "1", 24, prefix=COUNT, suffix="="),
        lengths=range(4, 25, 4),
    )
    assert found["recovery_y"] == 1
    assert found["margin_y"] > 1000
    assert (
        found["recovery"].values[0] == found["chance"]
    )  # the embedding of the last token is the same
    assert found["next_recovery"] == 1
    assert found["length"].values[
        found["nearest_y"].values == found["length"].values
    ].tolist() == [*range(4, 25, 4)]


@pytest.mark.parametrize("why", ["hook", "encoding"])
def test_a_prompt_that_cannot_be_cut_is_run_whole(why: str, tmp_path: Path) -> None:
    """Position 2 of a piece is another token than position 2 of the prompt, and a long pass has other frequencies."""
    _, model = loaded((VARIABLE if why == "encoding" else CONFIGS)["llama"], tmp_path)
    sequence = sl.prompts.build(model, [7, 8] * 12, prefix=[2])
    hooks = [sl.hooks.mask_tokens([2])] if why == "hook" else []
    with sl.applied(model, *hooks):
        found = sl.distinguishable_lengths(
            model, sequence, lengths=[1, 6, 24], n_random_models=0
        )
    assert sl.results.provenance(found)["groupings"][0] == "whole"
    assert not any(
        "pieces" in words for words in sl.results.provenance(found)["groupings"]
    )
    assert found["recovery_y"] == 1
