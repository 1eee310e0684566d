"""Language models inside multimodal checkpoints, compared with the whole models that they are a part of."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMultimodalLM

import squashlens as sl
from squashlens.errors import ModelAccessError, UnsoundModelError
from tests.cases import MULTIMODAL, save_random

TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a random multimodal model, with the bundled tokenizer."""

    @cache
    def folder(name: str) -> Path:
        made = save_random(MULTIMODAL[name], tmp_path_factory.mktemp(name))
        for file in TOKENIZER:
            shutil.copy(Path(sl.example_models.folder("tiny-gemma")) / file, made)
        return made

    return folder


@pytest.mark.parametrize("family", MULTIMODAL)
def test_the_language_model_gives_the_whole_models_logits(
    family: str, folders: Callable[[str], Path]
) -> None:
    model = sl.load(folders(family), device="cpu")
    whole: Any = AutoModelForMultimodalLM.from_pretrained(
        folders(family), attn_implementation="eager"
    ).eval()
    generator = torch.Generator().manual_seed(0)
    for length in range(1, 21):
        ids = torch.randint(3, 99, (1, length), generator=generator)
        with torch.no_grad():
            truth = whole(input_ids=ids, use_cache=False).logits
            torch.testing.assert_close(
                model(ids, use_cache=False), truth, rtol=1e-5, atol=1e-5
            )
        assert truth.std() > 0.1


def test_the_text_class_for_a_multimodal_folder_is_refused(
    folders: Callable[[str], Path], tmp_path: Path
) -> None:
    """transformers leaves the weights random that it does not find under the names of the text class."""
    shutil.copytree(folders("gemma3"), tmp_path / "text")
    config = json.loads((tmp_path / "text/config.json").read_text())
    for given in (config, config["text_config"]):
        (tmp_path / "text/config.json").write_text(
            json.dumps(given | {"architectures": ["Gemma3ForCausalLM"]})
        )
        with pytest.raises(ModelAccessError) as refusal:
            sl.load(tmp_path / "text")
        assert "_pretrained" not in str(refusal.value)


@pytest.mark.parametrize(
    ("family", "kind"), [("gemma4", "embedding"), ("qwen3_5", "attention")]
)
def test_a_knockout_that_leaves_something_of_the_token_is_refused(
    family: str, kind: Any, folders: Callable[[str], Path]
) -> None:
    """Gemma 4 looks ids up in every layer, and linear attention of Qwen 3.5 reads tokens that no attention reads."""
    model = sl.load(folders(family), device="cpu")
    with pytest.raises(UnsoundModelError):
        sl.knockout_effect(model, [2, 5, 6, 9], kind=kind)
