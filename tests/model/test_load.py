"""What `load` refuses, and with which words."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertLMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

import squashlens as sl
from squashlens.errors import (
    CapacityError,
    InputError,
    ModelAccessError,
    UnsoundModelError,
)
from squashlens.model import memory
from squashlens.model.verify import status
from tests.cases import CONFIGS, EXPERTS, save_random
from tests.references import block_jacobian, raw

REFUSED: list[tuple[Any, dict[str, Any], type[Exception]]] = [
    ("tiny-gema", {}, ModelAccessError),
    ("Tiny-Gemma", {}, ModelAccessError),
    (" ", {}, ModelAccessError),
    ("google/gemma-2b", {}, ModelAccessError),
    (Path("missing"), {}, ModelAccessError),
    (Path(__file__).parent, {}, ModelAccessError),
    (
        "tiny-gemma",
        {"revision": "main"},
        InputError,
    ),
    (
        sl.example_models.folder("tiny-gemma"),
        {"revision": "main"},
        InputError,
    ),
    ("tiny-gemma", {"dtype": torch.int8}, InputError),
]


@pytest.mark.parametrize(("name", "options", "error"), REFUSED)
def test_what_cannot_be_loaded_is_refused(
    name: Any, options: Any, error: type[Exception]
) -> None:
    with pytest.raises(error) as refusal:
        raw(sl.load)(name, **options)
    assert "\n" not in str(refusal.value)


def test_encoders_are_refused(tmp_path: Path) -> None:
    small: Any = {
        "vocab_size": 20,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    BertLMHeadModel(BertConfig(**small, intermediate_size=8)).save_pretrained(
        tmp_path / "bert"
    )
    t5 = T5Config(vocab_size=20, d_model=8, d_ff=8, d_kv=4, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(t5).save_pretrained(tmp_path / "t5")
    for name, error in (("bert", UnsoundModelError), ("t5", ModelAccessError)):
        with pytest.raises(error):
            sl.load(tmp_path / name)


def test_what_does_not_fit_is_refused_with_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_random(CONFIGS["gemma"], tmp_path)
    monkeypatch.setattr(memory, "available", lambda device: 10_000)
    with pytest.raises(CapacityError):
        sl.load(folder, device="cpu")


def test_a_dtype_goes_by_its_name_too() -> None:
    for name in ("float64", "fp64"):
        model = sl.load("tiny-gemma", dtype=name, verify=False)
        assert {p.dtype for p in model.parameters()} == {torch.float64}


def test_model_states_that_are_refused(tmp_path: Path) -> None:
    folder = save_random(CONFIGS["llama"], tmp_path)
    ids = torch.tensor([2, 5, 6])
    trained = sl.load(folder)
    trained.original_model.model.layers[1].train()
    with pytest.raises(InputError):
        sl.path_bound(trained, ids)
    mixed = sl.load(folder)
    mixed.blocks[1].mlp.to(torch.bfloat16)
    with pytest.raises(InputError):
        sl.path_bound(mixed, ids)
    expected = sl.path_bound(sl.load(folder), ids)
    np.testing.assert_allclose(  # the remedy, after two roundings
        sl.path_bound(mixed.to(torch.float32), ids), expected, rtol=0.1
    )
    processed = sl.load(folder)
    processed.enable_compatibility_mode()
    with pytest.raises(InputError):
        sl.path_bound(processed, ids)
    with pytest.raises(InputError):
        sl.path_bound("tiny-gemma", ids)  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
@pytest.mark.parametrize("family", EXPERTS)
def test_mixtures_of_experts_in_float64(family: str, tmp_path: Path) -> None:
    """Their grouped products have no float64, so experts are run one by one; the Jacobian is the plain model's."""
    folder = save_random(EXPERTS[family], tmp_path)
    model = sl.load(folder, device="cpu", dtype="float64")
    assert status(model) == "verified"
    ids = torch.tensor([2, 5, 6, 9, 9])
    plain = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float64,
        attn_implementation="eager",
        experts_implementation="eager",
    ).eval()
    truth = torch.linalg.matrix_norm(
        block_jacobian(plain, ids[None], 0, "y", [-1])[0].transpose(0, 1), ord=2
    )
    found = torch.from_numpy(sl.jacobian_norms(model, ids).values)
    assert torch.allclose(
        found, truth, rtol=1e-5
    )  # both run routers and norms in float32
    bound = torch.from_numpy(sl.certified_bound(model, ids).values)
    assert (bound >= truth).all()
