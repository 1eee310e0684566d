"""tiny-prose is what its card says, reads any text, and is measured like any other model."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import squashlens as sl
from training.prose.abilities import abilities
from training.prose.corpus import SOURCES
from training.prose.evaluate import MEASURED, card, open_reader
from training.prose.train import HISTORY, Recipe

FOLDER = sl.example_models.folder("tiny-prose")
TEXT = "It was late when the last ferry came in, and the harbour was empty."


@pytest.fixture(scope="module")
def model() -> Any:
    return sl.load("tiny-prose")


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    return json.loads((FOLDER / MEASURED).read_text(encoding="utf-8"))


def test_the_card_has_the_stored_numbers_sources_and_licences() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert text == card(FOLDER)
    for source in SOURCES:
        assert source.package in text
        assert source.licence in text
    recipe = json.loads((FOLDER / HISTORY).read_text())["recipe"]
    assert recipe == Recipe().__dict__, (
        "train-prose has the recipe of the bundled weights"
    )


@pytest.mark.slow
def test_the_abilities_are_what_the_model_does(measured: dict[str, Any]) -> None:
    found = abilities(open_reader(FOLDER))
    assert found.keys() == measured["abilities"].keys()
    for name, value in found.items():
        # One sentence pair or answer may fall otherwise on another processor; code lengths hardly move.
        assert value == pytest.approx(
            measured["abilities"][name], rel=1e-3, abs=0.13 if value <= 1 else 0
        ), name


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(st.text(min_size=1, max_size=24).filter(lambda t: t.strip() and "<" not in t))
def test_any_text_is_tokenized_and_measured(model: Any, text: str) -> None:
    ids = sl.prompts.tokenize(model, text)
    assert model.tokenizer.decode(ids[0, 1:]) == text
    bound = sl.path_bound(model, text)
    assert bound.sizes["position"] == ids.shape[1]
    assert np.isfinite(bound).all()
    assert float(bound.sum()) > 0


def test_windows_and_soft_caps_take_effect(model: Any) -> None:
    """A token beyond the windows of three blocks is still reached by the others; a window's block gives it nothing."""
    run = sl.capture(model, " ".join([TEXT] * 6), keep="patterns")
    far = {
        block: float(pattern[0, :, -1, :-64].max())
        for block, pattern in run.patterns.items()
    }
    assert all(far[block] == 0 for block in (0, 2, 4))
    assert all(far[block] > 0 for block in (1, 3, 5))
    with torch.no_grad():
        assert float(model(TEXT).abs().max()) <= 30
