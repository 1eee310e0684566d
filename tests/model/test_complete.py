"""A checkpoint that does not hold what its configuration describes is refused, whatever is wrong with it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

import squashlens as sl
from squashlens.errors import ModelAccessError
from squashlens.model import verify
from tests.cases import CONFIGS, EXPERTS, MORE, random_model, save_random

Weights = dict[str, Tensor]
Change = Callable[[Weights], Any]

# A matrix that is not square and the embeddings, by the end of their names; Gemma 2 and GPT-2 have tied heads.
PLACES = {
    "gemma2": ("layers.1.mlp.up_proj.weight", "embed_tokens.weight"),
    "gpt2": ("h.1.mlp.c_fc.weight", "wte.weight"),
    "neox": ("layers.1.mlp.dense_h_to_4h.weight", "embed_in.weight"),
}


def damaged(folder: Path, into: Path, change: Change) -> Path:
    """A copy of a checkpoint with its tensors changed in place, or replaced by those that are returned."""
    shutil.copytree(folder, into)
    weights = load_file(into / "model.safetensors")
    changed = change(weights)
    save_file(
        changed if isinstance(changed, dict) else weights,
        into / "model.safetensors",
        {"format": "pt"},
    )
    return into


def edited(folder: Path, into: Path, **settings: Any) -> Path:
    """A copy of a checkpoint with other settings in its config.json; None takes one out."""
    shutil.copytree(folder, into)
    config = json.loads((into / "config.json").read_text()) | settings
    (into / "config.json").write_text(
        json.dumps({k: v for k, v in config.items() if v is not None})
    )
    return into


def load(folder: Path, **how: Any) -> Any:
    return sl.load(folder, device="cpu", **how)


def key(weights: Weights, end: str) -> str:
    return next(name for name in weights if name.endswith(end))


def put(end: str, change: Callable[[Tensor], Tensor]) -> Change:
    def apply(weights: Weights) -> None:
        name = key(weights, end)
        weights[name] = change(weights[name]).contiguous()

    return apply


def with_row(value: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        return tensor.index_fill(0, torch.tensor([3]), value)

    return change


@pytest.mark.parametrize(
    "family",
    ["gemma2", *(pytest.param(f, marks=pytest.mark.slow) for f in ("gpt2", "neox"))],
)
def test_every_damage_is_refused_by_name(
    family: str, folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    matrix, embedding = PLACES[family]
    cases: list[Change] = [
        lambda w: w.pop(key(w, matrix)) is None,
        lambda w: w.update({"x": w.pop(key(w, matrix))}),
        put(matrix, lambda t: t.T),
        lambda w: w.update({"model.layers.7.w": torch.ones(3)}),
        lambda w: w.pop(key(w, embedding)) is None,
        put(embedding, with_row(float("nan"))),
        put(matrix, with_row(-float("inf"))),
        lambda w: w.clear(),
    ]
    for i, change in enumerate(cases):
        with pytest.raises(ModelAccessError):
            load(damaged(folder_of(family), tmp_path / str(i), change))


def test_heads_tied_and_not(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    """A head that is tied may be stored or not; stored with other numbers, nothing says which of the two is meant."""

    def second_head(by: float) -> Change:
        return lambda w: w.update(
            {"lm_head.weight": w[key(w, "embed_tokens.weight")] + by}
        )

    same = load(damaged(folder_of("gemma2"), tmp_path / "same", second_head(0.0)))
    assert verify.status(same) == "verified"
    with pytest.raises(ModelAccessError):
        load(damaged(folder_of("gemma2"), tmp_path / "other", second_head(0.1)))
    with pytest.raises(ModelAccessError):
        load(edited(folder_of("llama"), tmp_path / "tied", tie_word_embeddings=True))
    with pytest.raises(ModelAccessError):
        load(
            edited(folder_of("gemma2"), tmp_path / "untied", tie_word_embeddings=False)
        )
    with pytest.raises(ModelAccessError):
        load(
            damaged(
                folder_of("llama"),
                tmp_path / "headless",
                lambda w: w.pop("lm_head.weight") is None,
            )
        )


def frequencies(family: str) -> Tensor:
    buffers = random_model((CONFIGS | MORE)[family]).named_buffers()
    return next(buffer for name, buffer in buffers if name.endswith("inv_freq")).clone()


def masks(stem: str, mask: Tensor, value: float) -> Weights:
    named = {stem.format(i) + "bias": mask.clone() for i in range(3)}
    return named | {
        stem.format(i) + "masked_bias": torch.tensor(value) for i in range(3)
    }


@pytest.mark.slow
def test_what_old_checkpoints_store_and_no_number_depends_on(
    folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """Causal masks and rotary frequencies are made from the configuration today: stored ones may be left over."""
    square = torch.ones(1, 1, 64, 64)
    gpt2, neox, rotary = (
        "transformer.h.{}.attn.",
        "gpt_neox.layers.{}.attention.",
        "rotary_emb.inv_freq",
    )
    own = {
        f"model.layers.{i}.self_attn.{rotary}": frequencies("llama") for i in range(3)
    }
    harmless: list[tuple[str, Weights]] = [
        ("gpt2", masks(gpt2, square.tril().byte(), -1e4)),
        (
            "neox",
            masks(neox, square.tril().bool(), -1e9)
            | {neox.format(1) + rotary: frequencies("neox")},
        ),
        ("llama", own),
        ("llama", {name: f.half() for name, f in own.items()}),
        ("llama", {"model.position_ids": torch.arange(64)[None]}),
    ]
    for i, (family, extra) in enumerate(harmless):
        folder = damaged(
            folder_of(family), tmp_path / str(i), lambda w, extra=extra: w.update(extra)
        )
        plain, old = load(folder_of(family)), load(folder)
        assert torch.equal(
            plain(torch.tensor([[2, 5, 6]])), old(torch.tensor([[2, 5, 6]]))
        )


@pytest.mark.slow
def test_a_model_by_its_own_names_or_its_bases_and_in_any_floating_format(
    folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    ids = torch.tensor([[2, 5, 6]])
    for family, prefix in (("llama", "model."), ("gpt2", "transformer.")):
        base = damaged(
            folder_of(family),
            tmp_path / family,
            lambda w, p=prefix: {k.removeprefix(p): v for k, v in w.items()},
        )
        assert torch.equal(load(base)(ids), load(folder_of(family))(ids))
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        folder = damaged(
            folder_of("llama"),
            tmp_path / str(dtype),
            lambda w, d=dtype: {k: v.to(d) for k, v in w.items()},
        )
        assert verify.status(load(folder)) == "verified"
    wide = damaged(
        folder_of("llama"), tmp_path / "wide", put("up_proj.weight", with_row(1e6))
    )
    with pytest.raises(ModelAccessError):
        load(wide, dtype="float16")


def test_the_class_that_the_configuration_names(
    folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    llama = folder_of("llama")
    cases: list[dict[str, Any]] = [
        {"architectures": ["FooForCausalLM"]},
        {"model_type": "mistral"},
        {"architectures": None},
        {"auto_map": {"AutoModelForCausalLM": "mine.Llama2"}},
        {"num_hidden_layers": 2},
        {"num_hidden_layers": 4},
    ]
    for i, settings in enumerate(cases):
        with pytest.raises(ModelAccessError):
            load(edited(llama, tmp_path / str(i), **settings))
    load(
        edited(
            llama,
            tmp_path / "same",
            auto_map={"AutoModelForCausalLM": "modeling_llama.LlamaForCausalLM"},
        )
    )


@pytest.fixture(scope="module")
def shards(
    folder_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The tiny Llama in four files and an index."""
    folder = tmp_path_factory.mktemp("shards") / "llama"
    AutoModelForCausalLM.from_pretrained(folder_of("llama")).save_pretrained(
        folder, max_shard_size="8KB"
    )
    assert len(list(folder.glob("model-*.safetensors"))) == 4
    return folder


def test_shards(shards: Path, folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    ids = torch.tensor([[2, 5, 6]])
    assert torch.equal(load(shards)(ids), load(folder_of("llama"))(ids))
    _, second, *_ = sorted(path.name for path in shards.glob("model-*.safetensors"))

    where = "model.safetensors.index.json"
    cases: list[Callable[[Path], Any]] = [
        lambda f: (f / second).unlink(),
        lambda f: (f / second).write_bytes((f / second).read_bytes()[:-9]),
        lambda f: (f / where).write_text("[]"),
    ]
    for i, change in enumerate(cases):
        shutil.copytree(shards, tmp_path / str(i))
        change(tmp_path / str(i))
        with pytest.raises(ModelAccessError):
            load(tmp_path / str(i))


@pytest.mark.parametrize(
    "family",
    [
        "mixtral",
        *(
            pytest.param(f, marks=pytest.mark.slow)
            for f in EXPERTS
            if f.startswith("qwen")
        ),
    ],
)
def test_experts_that_do_not_stack(family: str, tmp_path: Path) -> None:
    """The experts of a mixture are stored one by one and stacked while loading."""
    whole = save_random(EXPERTS[family], tmp_path / "whole")
    matrix = (
        "experts.2.w1.weight" if family == "mixtral" else "experts.2.up_proj.weight"
    )
    cases: dict[str, Change] = {
        "dropped": lambda w: w.pop(key(w, matrix)) is None,
        "transposed": put(matrix, lambda t: t.T),
        "NaN": put(matrix, with_row(float("nan"))),
        "one more": lambda w: w.update(
            {
                k.replace("experts.2.", "experts.4."): w[k] + 0
                for k in list(w)
                if "experts.2." in k
            }
        ),
    }
    for name, change in cases.items():
        with pytest.raises(ModelAccessError):
            load(damaged(whole, tmp_path / name, change))


def test_weights_on_disk_are_refused(folder_of: Callable[[str], Path]) -> None:
    places = {"": "cpu", "model.layers.2": "disk"}
    with pytest.raises(ModelAccessError):
        sl.load(folder_of("llama"), device=places)
