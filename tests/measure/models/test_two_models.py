"""What another model loses, against plain transformers with PyTorch hooks, closed forms and planted damage."""

import copy
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

import squashlens as sl
from squashlens.errors import InputError
from tests.cases import random_model, with_broken_attention
from tests.references import layers_of

PROMPTS = [
    f"What is the last digit in this sequence? {a}{b} ="
    for a in "0123"
    for b in "0123456789"
]
ANSWERS = [*"0123456789"] * 4
FEW = slice(0, 10)
WIDE: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 64,
}
FAMILIES = {
    "gemma2": {**WIDE, "sliding_window": 5},
    "qwen3": WIDE,
    "gpt2": {
        "vocab_size": 99,
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 2,
        "n_positions": 64,
    },
    "gpt_neox": {
        name: WIDE[name]
        for name in WIDE
        if name not in ("num_key_value_heads", "head_dim")
    },
}


@pytest.fixture(scope="module", params=["tiny-gemma", *FAMILIES])
def folder(
    request: pytest.FixtureRequest, tiny: Any, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A model with the tokenizer of the bundled one."""
    if request.param == "tiny-gemma":
        return sl.example_models.folder("tiny-gemma")
    path = tmp_path_factory.mktemp(request.param)
    random_model(
        CONFIG_MAPPING[request.param](**FAMILIES[request.param])
    ).save_pretrained(path)
    tiny.tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def models(folder: Path) -> tuple[Any, Any]:
    """A model, and another whose blocks 1 and 2 are rounded to four bits."""
    reference = sl.load(folder, device="cpu")
    return reference, sl.quantize_weights(reference, "Q4_0", blocks=(1, 2))


def plain_pair(folder: Path) -> tuple[Any, Any]:
    """The same two models as plain transformers, with the rounding written out."""
    reference = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager"
    ).eval()
    other = copy.deepcopy(reference)
    for block in (1, 2):
        for name, module in layers_of(other)[block].named_modules():
            weight = getattr(module, "weight", None)
            if weight is None or weight.ndim < 2:
                continue
            rows = weight.data.T if type(module).__name__ == "Conv1D" else weight.data
            rounded = torch.from_numpy(four_bits(rows.numpy()))
            assert not torch.equal(rounded, rows), name
            weight.data = (
                rounded.T.contiguous() if type(module).__name__ == "Conv1D" else rounded
            )
    return reference, other


def four_bits(rows: np.ndarray) -> np.ndarray:
    """Q4_0 written out: blocks of 32, the scale is the number of largest size ÷ −8 in float16, codes are 0 to 15."""
    blocks = rows.reshape(-1, 32).astype(np.float32)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    scale = largest / -8
    inverse = np.where(scale == 0, 0, 1 / np.where(scale == 0, 1, scale))
    codes = np.clip(np.trunc(blocks * inverse + 8.5), 0, 15)
    return ((codes - 8) * scale.astype(np.float16).astype(np.float32)).reshape(
        rows.shape
    )


def logits(
    plain: Any,
    ids: Any,
    put: dict[int, Any] | None = None,
    keep: list[Any] | None = None,
) -> torch.Tensor:
    """The last token's logits; streams that enter blocks are put in, or kept."""
    handles = []
    for number, layer in enumerate(layers_of(plain)):

        def hook(_module: Any, args: Any, number: int = number) -> Any:
            if keep is not None:
                keep.append(args[0].clone())
            if put and number in put:
                return (put[number], *args[1:])
            return None

        handles.append(layer.register_forward_pre_hook(hook))
    with torch.no_grad():
        last = plain(ids).logits[0, -1].double()
    for handle in handles:
        handle.remove()
    return last


def lead(values: torch.Tensor, tokens: list[int], right: int) -> float:
    others = [values[token] for place, token in enumerate(tokens) if place != right]
    return float(values[tokens[right]] - max(others))


@pytest.mark.few(3)
def test_leads_and_divergences_are_those_of_plain_transformers(
    folder: Path, models: Any
) -> None:
    found = sl.compare_models(models[0], models[1], PROMPTS[FEW], ANSWERS[FEW])
    plain = plain_pair(folder)
    tokens = [sl.prompts.one_token(models[0], digit) for digit in "0123456789"]
    for number, prompt in enumerate(PROMPTS[FEW]):
        ids = sl.prompts.tokenize(models[0], prompt)
        both = [logits(model, ids) for model in plain]
        wanted = [lead(values, tokens, number) for values in both]
        np.testing.assert_allclose(found["lead"][:, number], wanted, atol=2e-4)
        p, q = (values.log_softmax(-1) for values in both)
        np.testing.assert_allclose(
            found["kl"][number], (p.exp() * (p - q)).sum(), rtol=1e-3, atol=1e-9
        )
        assert found["same_top"][number] == (p.argmax() == q.argmax())
        np.testing.assert_allclose(
            found["probability"][0, number], p.exp()[tokens[number]], rtol=1e-4
        )
    assert float(found["kl"].max()) > 1e-7


@pytest.mark.few(3)
def test_damages_are_those_of_streams_put_into_plain_transformers(
    folder: Path, models: Any
) -> None:
    found = sl.damage_by_block(
        models[0], models[1], PROMPTS[FEW], ANSWERS[FEW], streams="both"
    )
    lost = found["lead"].sel(model="reference") - found["lead"].sel(model="other")
    size = float(abs(found["lead"]).max())
    np.testing.assert_allclose(
        found["damage"].sum("part"), np.stack([lost, lost]), atol=1e-5 * size
    )
    reference, other = plain_pair(folder)
    tokens = [sl.prompts.one_token(models[0], digit) for digit in "0123456789"]
    for number in (0, 3):
        ids = sl.prompts.tokenize(models[0], PROMPTS[number])
        streams: list[Any] = []
        logits(reference, ids, keep=streams)
        chain = [
            lead(logits(other, ids, {block: streams[block]}), tokens, number)
            for block in range(3)
        ]
        damages = found["damage"].sel(streams="reference")[number]
        np.testing.assert_allclose(damages[1:3], np.diff(chain), atol=1e-4)
        swapped = copy.deepcopy(other)
        layers_of(swapped)[1] = layers_of(reference)[1]
        np.testing.assert_allclose(
            found["lead_alone"][number, 1],
            lead(logits(swapped, ids), tokens, number),
            atol=1e-4,
        )
    assert float(abs(found["damage"].sel(part="block 1")).max()) > 1e-4
    assert float(abs(found["damage"].sel(part=["embedding", "block 0"])).max()) < 1e-4


@pytest.mark.few(2)
def test_equal_models_lose_nothing(models: tuple[Any, Any]) -> None:
    reference, _ = models
    found = sl.compare_models(reference, reference, PROMPTS[FEW], ANSWERS[FEW])
    counts = found["count"].sel(group="all")
    assert int(counts.sel(outcome_kind=["lost", "gained"]).sum()) == 0
    assert float(abs(found["kl"]).max()) < 1e-12
    assert float(found["same_top"].min()) == 1
    damages = sl.damage_by_block(reference, reference, PROMPTS[FEW], ANSWERS[FEW])
    assert float(abs(damages["damage"]).max()) < 1e-4


@pytest.fixture(scope="module")
def broken(tiny: Any) -> Any:
    """The bundled model with noise in the attention of block 2 alone."""
    return with_broken_attention(tiny, 2)


def test_the_block_that_was_broken_is_kept(tiny: Any, broken: Any) -> None:
    asked = PROMPTS[::2], ANSWERS[::2]
    compared = sl.compare_models(tiny, broken, *asked, group=["a", "b"] * 10)
    lost = int(compared["count"].sel(group="all", outcome_kind="lost"))
    assert lost > 5
    assert int(compared["count"].sel(group="all").sum()) == 20
    assert float(compared["change_high"].sel(group="all")) < 0
    names: dict[Any, str] = {
        "blocks": "block 2",
        "sublayers": "attention of block 2",
    }
    for units, name in names.items():
        found = sl.blocks_to_keep(
            tiny, broken, *asked, n_keep=1, units=units, n_random=4
        )
        assert found["units_kept"].sel(kept="selected") == name
        assert found["units_kept"].sel(kept="selected by KL") == name
        assert found["above_null"] == "yes"
        np.testing.assert_allclose(
            found["lead"].sel(kept="selected"),
            found["lead"].sel(kept="all blocks"),
            atol=1e-4,
        )
        assert (
            float(found["mean_kl"].sel(kept="selected"))
            < 1e-6
            < float(found["mean_kl"].sel(kept="none"))
        )


def test_many_units_are_named_and_only_all_of_them_are_all(tiny: Any) -> None:
    other = sl.quantize_weights(tiny, "Q4_0")
    found = sl.blocks_to_keep(
        tiny, other, PROMPTS[FEW], ANSWERS[FEW], n_keep=9, units="sublayers", n_random=0
    )
    names = str(found["units_kept"].sel(kept="selected").values).split(", ")
    assert len(names) == 9
    assert found["units_kept"].sel(kept="all blocks") == "all blocks"


def test_nothing_is_kept_above_chance_where_nothing_is_lost(tiny: Any) -> None:
    other = sl.quantize_weights(tiny, "Q8_0")
    found = sl.blocks_to_keep(
        tiny, other, PROMPTS[FEW], ANSWERS[FEW], n_keep=1, n_random=2
    )
    assert found["above_null"] == "no"
    assert float(found["mean_kl_low"].min()) >= 0


def test_all_random_sets_are_drawn_where_there_are_few(tiny: Any, broken: Any) -> None:
    with pytest.warns(UserWarning, match="other sets"):
        found = sl.blocks_to_keep(tiny, broken, PROMPTS[FEW], ANSWERS[FEW], n_keep=1)
    names = [name for name in found["kept"].values if name.startswith("random")]
    assert len(names) == tiny.cfg.n_layers - 1


def test_a_label_is_one_however_its_number_is_written(tiny: Any, broken: Any) -> None:
    labels = [1, 1.0, "1", 2, 2.0]
    items = [
        {"prompt": prompt, "answer": answer, "cluster": label, "group": label}
        for prompt, answer, label in zip(PROMPTS, ANSWERS, labels, strict=False)
    ]
    found = sl.compare_models(tiny, broken, items)
    assert found["cluster"].values.tolist() == [0, 0, 0, 1, 1]
    assert found["group"].values.tolist() == ["all", "1", "2"]


@pytest.mark.parametrize(("to", "steps"), [("q8_0", 127), ("q4_0", 8)])
def test_keys_and_values_are_rounded_as_a_cache_holds_them(
    tiny: Any, to: Any, steps: int
) -> None:
    """Block by block: no number moves by more than one step of its block's largest, and rotated keys are rounded."""
    seen: dict[str, Any] = {}
    sites = ("blocks.2.attn.hook_rot_k", "blocks.2.attn.hook_v")
    for name, hooks in (
        ("plain", []),
        ("rounded", [sl.hooks.quantize_keys_values(to, blocks=(2,))]),
    ):
        with sl.applied(tiny, *hooks):
            _, cache = tiny.run_with_cache(
                tiny.to_tokens(PROMPTS[0]), names_filter=lambda n: n in sites
            )
        seen[name] = {site: cache[site].reshape(-1, 32) for site in sites}
    for site in sites:
        change = (seen["rounded"][site] - seen["plain"][site]).abs()
        largest = seen["plain"][site].abs().amax(dim=1, keepdim=True)
        assert (change <= 1.01 * largest / steps).all()
        assert (change > 0.1 * largest / steps).float().mean() > 0.5


@pytest.mark.few(1)
def test_what_cannot_be_compared_is_refused(tiny: Any, models: tuple[Any, Any]) -> None:
    reference, other = models
    prose = sl.load("tiny-prose", device="cpu")
    few = PROMPTS[:4], ANSWERS[:4]
    refusals: list[Any] = [
        lambda: sl.compare_models(tiny, prose, *few),
        lambda: sl.compare_models(
            reference, other, PROMPTS[:4], [*"012x"], choices=[*"012"]
        ),
        lambda: sl.compare_models(reference, other, *few, group=["a"]),
        lambda: sl.compare_models(reference, other, *few, group=["all", *"aaaaaaaaa"]),
        lambda: sl.compare_models(
            reference, other, *few, choices=["0", "01", "1", "2", "3"]
        ),
        lambda: sl.blocks_to_keep(reference, other, *few, n_keep=99),
        lambda: sl.blocks_to_keep(reference, other, *few, seed=-1),
        lambda: sl.hooks.quantize_keys_values("q8_0", ()),
        lambda: sl.compare_models(reference, cast(Any, None), *few),
        lambda: sl.compare_models(
            reference, other, PROMPTS[:1] * 2 + PROMPTS[1:2], [*"001"], group=[*"aba"]
        ),
        lambda: sl.quantize_weights(reference, "Q4_0", blocks=(99,)),
        lambda: sl.quantize_weights(reference, "Q4_K"),  # pyright: ignore[reportArgumentType]
    ]
    for refused in refusals:
        with pytest.raises(InputError):
            refused()
    with sl.applied(other, sl.hooks.mask_tokens([2])), pytest.raises(InputError):
        sl.damage_by_block(reference, other, *few)
    with sl.applied(other, sl.hooks.mask_tokens([2])):
        found = sl.compare_models(reference, other, *few)
    assert sl.results.provenance(found)["other"]["ambient_hooks"] != []
