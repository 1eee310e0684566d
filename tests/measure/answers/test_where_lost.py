"""Where an answer is read, and what a sublayer does for it, against plain transformers with PyTorch hooks."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from scipy.stats import norm
from transformers import AutoModelForCausalLM, OlmoConfig

import squashlens as sl
from squashlens.model.loading.random_weights import with_random_weights
from squashlens.records.provenance import without_provenance
from squashlens.theory.statistics.ranks import mean_interval
from tests.cases import CONFIGS, MORE, NO_HEAD_DIM, save_random
from tests.references import final_norm, frozen_model, last_streams, layers_of, passing

PROMPTS = [
    "What is the last digit ? 107 =",
    "How many ones ? 1 =",
    "110 =",
    "What ? 29 =",
    "The first digit of 4 =",
]
ANSWERS, CHOICES = ["12", "7", "30", "7", "12"], ["7", "12", "30"]
DIGITS = [
    f"What is the last digit in this sequence? 01{digit} =" for digit in "0123456789"
]


@pytest.fixture(scope="module")
def speaking(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[Any, Any]]:
    """A family's random model with the tokenizer of the bundled one, as a bridge and as Hugging Face opens it."""
    held: dict[str, tuple[Any, Any]] = {}

    def made(family: str) -> tuple[Any, Any]:
        if family not in held:
            config = copy.deepcopy(
                (CONFIGS | MORE | {"olmo": OlmoConfig(**NO_HEAD_DIM)})[family]
            )
            config.vocab_size = len(sl.load("tiny-gemma").tokenizer)
            folder = save_random(config, tmp_path_factory.mktemp(family))
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(Path(sl.example_models.folder("tiny-gemma"), name), folder)
            plain = AutoModelForCausalLM.from_pretrained(
                folder, attn_implementation="eager"
            ).eval()
            held[family] = sl.load(folder, device="cpu"), plain
        return held[family]

    return made


def ids_of(model: Any, text: str) -> list[int]:
    return sl.prompts.tokenize(model, text)[0].tolist()


def read_at_layers(plain: Any, ids: list[int], answer: list[int]) -> np.ndarray:
    """The log-probability of a whole answer in the readout of each layer, from one plain pass for each token."""
    total, cap = (
        np.zeros(len(layers_of(plain)) + 1),
        getattr(plain.config, "final_logit_softcapping", None),
    )
    for k, token in enumerate(answer):
        logits = plain.get_output_embeddings()(
            final_norm(plain)(last_streams(plain, [*ids, *answer[:k]])[:-1])
        )
        logits = logits if cap is None else cap * torch.tanh(logits / cap)
        total += logits.detach().double().log_softmax(dim=-1)[:, token].numpy()
    return total


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["gemma2", "gpt2", "llama", "qwen3", "olmo2"])
def test_every_layer_is_read_as_in_plain_transformers(
    family: str, speaking: Callable[[str], tuple[Any, Any]]
) -> None:
    model, plain = speaking(family)
    digit = {text: sl.prompts.one_token(model, text) for text in "0123456789"}
    each = [
        {
            c: read_at_layers(plain, ids_of(model, p), [digit[d] for d in c])
            for c in CHOICES
        }
        for p in PROMPTS
    ]

    def standing(prompt: int, answer: str) -> list[Any]:
        own, rest = (
            each[prompt][answer],
            np.stack([v for c, v in each[prompt].items() if c != answer]),
        )
        return [
            (own > rest).mean(axis=0),
            (own > rest).all(axis=0),
            own - rest.max(axis=0),
        ]

    numbers = range(len(PROMPTS))
    others = [
        np.mean([standing(k, ANSWERS[j]) for j in numbers if j != k], axis=0)
        for k in numbers
    ]
    expected = {
        "right answer": [standing(k, ANSWERS[k]) for k in numbers],
        "other prompts' answers": others,
    }
    found = sl.answer_by_layer(
        model, PROMPTS, ANSWERS, choices=CHOICES, n_random_models=0
    )
    assert found["scored"].values.tolist() == [*expected]
    for scored, values in expected.items():
        for name, truth in zip(
            ("share_less_likely", "likeliest", "lead"),
            np.stack(values, axis=1),
            strict=True,
        ):
            given = found[name].sel(scored=scored)
            np.testing.assert_allclose(
                given, truth, atol=2e-3, err_msg=f"{scored} {name}"
            )
            np.testing.assert_allclose(
                found[f"mean_{name}"].sel(scored=scored),
                np.mean(truth, axis=0),
                atol=2e-3,
            )
    assert 0 < float(found["likeliest"].mean()) < 1


def plain_rival(plain: Any, ids: list[int], answer: list[int]) -> tuple[int, int, bool]:
    """After how many tokens of an answer a plain model would first write another one, which, and whether it does."""
    leads = []
    for k, token in enumerate(answer):
        logits = plain(torch.tensor([[*ids, *answer[:k]]])).logits[0, -1].detach()
        without = logits.clone()
        without[token] = -torch.inf
        leads.append((float(logits[token] - without.max()), k, int(without.argmax())))
    behind = [each for each in leads if each[0] < 0]
    _, k, rival = behind[0] if behind else min(leads)
    return k, rival, bool(behind)


@pytest.mark.few(2)
@pytest.mark.parametrize("family", ["gemma3", "gpt2", "llama", "neox"])
def test_rivals_and_what_is_written_are_those_of_plain_transformers(
    family: str, speaking: Callable[[str], tuple[Any, Any]]
) -> None:
    """What is written by chance is the deviation of sums with random signs, times the quantile for all parts."""
    model, plain = speaking(family)
    tokens = {c: [sl.prompts.one_token(model, digit) for digit in c] for c in CHOICES}
    parts = [part for part in parts_of(plain) if part[1] is None]
    quantile = norm.ppf(1 - 0.05 / 2 / len(parts))
    found = sl.answer_by_layer(
        model, PROMPTS, ANSWERS, choices=CHOICES, n_random_models=0
    )
    for number, (prompt, answer) in enumerate(zip(PROMPTS, ANSWERS, strict=True)):
        ids, right = ids_of(model, prompt), tokens[answer]
        k, rival, is_behind = plain_rival(plain, ids, right)
        here = found.isel(prompt=number)
        np.testing.assert_allclose(
            here["probability"].sel(scored="right answer"),
            np.exp(read_at_layers(plain, ids, right)),
            rtol=5e-3,
        )
        np.testing.assert_allclose(
            here["rival_probability"],
            np.exp(read_at_layers(plain, ids, [*right[:k], rival])),
            rtol=5e-3,
        )
        assert here["answered"].item() == (not is_behind)
        row = [*ids, *right[:k]]
        seen = dict(zip(dict(parts), passing(plain, row, *dict(parts)), strict=True))
        still = frozen_model(plain, torch.tensor([row]), ["norms"])
        start = last_streams(plain, row)[-2].clone().requires_grad_()
        logits = still.get_output_embeddings()(
            final_norm(still)(start.expand(1, len(row), -1))
        )[0, -1]
        (slope,) = torch.autograd.grad(logits[right[k]] - logits[rival], start)
        terms = torch.stack(
            [
                slope * added(plain, 6 * (place // 2), part, seen[part[0]])
                for place, part in enumerate(parts)
            ]
        ).detach()
        written, limits = here["written"].values.ravel(), here["written_by_chance"]
        size = float(terms.sum(dim=-1).abs().max())
        np.testing.assert_allclose(written, terms.sum(dim=-1), atol=2e-3 * size)
        if family in ("gemma3", "llama"):  # other norms subtract a mean first
            expected = quantile * terms.square().sum(dim=-1).sqrt()
            np.testing.assert_allclose(limits.values.ravel(), expected, rtol=5e-3)


def test_the_likeliest_of_all_tokens_is_that_of_plain_transformers(
    tiny: Any, plain_tiny: Any
) -> None:
    """Of some answers at some layers."""
    answers = [*"0123454321"]
    found = sl.answer_by_layer(
        tiny, DIGITS, answers, choices=[*"0123456789"], n_random_models=0
    )["likeliest_of_all"]
    expected = []
    for prompt, answer in zip(DIGITS, answers, strict=True):
        streams = last_streams(plain_tiny, ids_of(tiny, prompt))[:-1]
        logits = plain_tiny.get_output_embeddings()(final_norm(plain_tiny)(streams))
        right = sl.prompts.one_token(tiny, answer)
        expected.append((logits.argmax(dim=-1) == right).numpy())
    np.testing.assert_array_equal(found, expected)
    assert found.dims == ("prompt", "layer")
    assert 0 < found.isel(layer=-1).mean() < 1
    assert 0 < found.isel(layer=slice(-1)).mean() < 1


def test_intervals_of_probabilities_are_probabilities(tiny: Any) -> None:
    """Also where Student's interval of a few values ends below 0 or above 1."""
    found = sl.answer_by_layer(tiny, DIGITS[:2], ["0", "7"], choices=["0", "1", "7"])
    values = torch.tensor(found["probability"].values).movedim(1, -1)
    _, low, high = mean_interval(values)
    assert low.min() < 0
    assert high.max() > 1
    np.testing.assert_allclose(found["mean_probability_low"], low.clamp(min=0))
    np.testing.assert_allclose(found["mean_probability_high"], high.clamp(max=1))
    for name in ("share_less_likely", "likeliest"):
        assert found[f"mean_{name}_low"].min() >= 0
        assert found[f"mean_{name}_high"].max() <= 1
    assert found["mean_lead_low"].min() < 0


def test_lists_dictionaries_and_a_file_are_one(tiny: Any, tmp_path: Path) -> None:
    choices = [*"0123456789"]
    texts = sl.answer_by_layer(
        tiny,
        DIGITS,
        choices,
        choices=[choices] * 10,
        group=[*"aaaaabbbbb"],
        n_random_models=0,
    )
    items = [
        {"prompt": text, "answer": k, "choices": choices, "group": "ab"[k // 5]}
        for k, text in enumerate(DIGITS)
    ]
    file = tmp_path / "items.jsonl"
    file.write_text("\n".join(map(json.dumps, items)) + "\n", encoding="utf-8")
    for given in (items, file, str(file)):
        found = sl.answer_by_layer(tiny, given, n_random_models=0)
        xr.testing.assert_equal(without_provenance(found), without_provenance(texts))


def test_the_controls_are_null(tiny: Any) -> None:
    """A trained model leads at the last layer; other prompts' answers and random weights do not. A constant answer is
    right in one of ten, as are the other prompts' answers."""
    found = sl.answer_by_layer(tiny, DIGITS, [*"0123456789"])
    at_last = found["mean_likeliest"].isel(layer=-1).values
    assert at_last[0] == 1 and at_last[1] < 0.1 and at_last[2] <= 0.3  # noqa: PT018
    untrained = with_random_weights(tiny, 0)
    untrained.tokenizer = tiny.tokenizer
    alone = sl.answer_by_layer(untrained, DIGITS, [*"0123456789"], n_random_models=0)
    np.testing.assert_allclose(
        found["share_less_likely"][2], alone["share_less_likely"][0]
    )
    blind = sl.hooks.mask_tokens([len(ids_of(tiny, DIGITS[0])) - 2])
    with sl.applied(tiny, blind):
        constant = sl.answer_by_layer(tiny, DIGITS, [*"0123456789"], n_random_models=0)[
            "mean_likeliest"
        ].isel(layer=-1)
    np.testing.assert_allclose(constant, 0.1)


def test_choices_of_each_prompt_stand_for_places(tiny: Any) -> None:
    """The other prompts' answers are then the choices at their places."""
    choices = [["7", "1"], ["1", "2"], ["0", "1"]]
    found = sl.answer_by_layer(
        tiny, PROMPTS[:3], ["7", "2", "0"], choices=choices, n_random_models=0
    )
    second = sl.answer_by_layer(
        tiny, PROMPTS[:3], ["1", "2", "1"], choices=choices, n_random_models=0
    )
    own, other = (
        found["share_less_likely"].sel(scored="other prompts' answers"),
        found["share_less_likely"].sel(scored="right answer"),
    )
    np.testing.assert_allclose(own[1], other[1] * 0 + 1 - other[1])
    np.testing.assert_allclose(
        own[0],
        (other[0] + second["share_less_likely"].sel(scored="right answer")[0]) / 2,
    )


Part = tuple[
    Any, slice | None
]  # a module whose output counts, or columns of what enters it


def parts_of(plain: Any) -> list[Part]:
    """Of each block: the modules whose outputs are added to the stream, and the heads, which enter W_O in a row."""
    found: list[Part] = []
    for layer in layers_of(plain):
        after = [
            getattr(layer, name, None)
            for name in ("post_attention_layernorm", "post_feedforward_layernorm")
        ]
        attention = next(
            getattr(layer, name)
            for name in ("self_attn", "attention", "attn")
            if hasattr(layer, name)
        )
        found += [
            (module, None)
            for module in (after if after[1] is not None else [attention, layer.mlp])
        ]
        mixing = next(
            getattr(attention, name)
            for name in ("o_proj", "dense", "c_proj")
            if hasattr(attention, name)
        )
        found += [(mixing, slice(4 * head, 4 * head + 4)) for head in range(4)]
    return found


def plain_logits(
    plain: Any, ids: list[int], part: Part, vector: torch.Tensor, place: Any = -1
) -> torch.Tensor:
    """The logits of a plain pass in which a part puts out a vector at a place."""
    module, columns = part

    def put(_module: Any, entering: Any, leaving: Any = None) -> Any:
        values = leaving if columns is None else entering
        whole = (values[0] if isinstance(values, tuple) else values).clone()
        whole[:, place, columns or slice(None)] = vector
        return (whole, *values[1:]) if isinstance(values, tuple) else whole

    handle = (
        module.register_forward_hook
        if columns is None
        else module.register_forward_pre_hook
    )(put)
    try:
        return plain(torch.tensor([ids]), use_cache=False).logits[0].detach().double()
    finally:
        handle.remove()


def added(
    plain: Any, number: int, part: Part, seen: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """What a part adds to the last token's stream; of a head W_O z, by a norm that follows with the scale it has."""
    module, columns = part
    if columns is None:
        return seen[1][-1]
    alone = torch.zeros_like(seen[0][-1:])
    alone[:, columns] = seen[0][-1, columns]
    share, layer = (
        module(alone)[0] - module(0 * alone)[0],
        layers_of(plain)[number // 6],
    )
    if not hasattr(layer, "post_feedforward_layernorm"):
        return share
    gain = 1 + layer.post_attention_layernorm.weight
    return (
        share * gain / (seen[1][-1].square().mean() + plain.config.rms_norm_eps).sqrt()
    )


@pytest.mark.parametrize("missing", ["zero", "mean"])
@pytest.mark.few(2)
@pytest.mark.parametrize("family", ["gemma3", "neox", "gpt2", "llama", "olmo"])
def test_a_sublayer_is_left_out_as_by_plain_hooks(
    family: str,
    missing: Any,
    speaking: Callable[[str], tuple[Any, Any]],
) -> None:
    """Heads too: with grouped keys and a norm after attention (Gemma 3), beside an MLP (GPT-NeoX), no gains (OLMo)."""
    model, plain = speaking(family)
    answers, choices = ["7", "1", "3", "7", "1"], ["7", "1", "3"]
    tokens = [sl.prompts.one_token(model, text) for text in choices]
    options: Any = {
        "choices": choices,
        "missing": missing,
        "seed": 3,
        "parts": "heads",
        "n_random_vectors": 0,
    }
    found = sl.sublayer_effects(model, PROMPTS, answers, texts=PROMPTS[:2], **options)
    ids, parts = [ids_of(model, text) for text in PROMPTS], parts_of(plain)
    seen = [
        dict(zip(dict(parts), passing(plain, row, *dict(parts)), strict=True))
        for row in ids
    ]

    def outputs(prompt: int, part: Part) -> torch.Tensor:
        entered, left = seen[prompt][part[0]]
        return left if part[1] is None else entered[:, part[1]]

    without, written = np.zeros((2, len(ids), len(parts)))
    for k, row in enumerate(ids):
        right = choices.index(answers[k])
        rest = [token for place, token in enumerate(tokens) if place != right]
        own = plain(torch.tensor([row])).logits[0, -1]
        lead = own[tokens[right]] - own[rest].max()
        assert float(found["lead"][k]) == pytest.approx(lead.item(), abs=1e-3)
        assert 0 < float(found["lead_noise"][k]) < 1e-3
        still, stream = (
            frozen_model(plain, torch.tensor([row]), ["norms"]),
            last_streams(plain, row)[-2],
        )
        start = stream.clone().requires_grad_()
        logits = still.get_output_embeddings()(
            final_norm(still)(start.expand(1, len(row), -1))
        )[0, -1]
        (slope,) = torch.autograd.grad(
            logits[tokens[right]] - logits[rest[int(own[rest].argmax())]], start
        )
        for number, part in enumerate(parts):
            others = torch.stack(
                [outputs(j, part)[-1] for j in range(len(ids)) if j != k]
            ).mean(dim=0)
            vector = torch.zeros_like(others) if missing == "zero" else others
            logits = plain_logits(plain, row, part, vector)[-1]
            without[k, number] = logits[tokens[right]] - logits[rest].max()
            written[k, number] = slope @ added(plain, number, part, seen[k][part[0]])
    shape = found["written"].shape
    assert shape[2] == 6
    for name, truth in {"lead_without": without, "written": written}.items():
        given = found[name].values.reshape(shape)
        np.testing.assert_allclose(
            given, truth.reshape(shape), atol=2e-3 * np.abs(truth).max(), err_msg=name
        )
    losses = np.zeros((2, len(parts) + 1))
    for k, row in enumerate(ids[:2]):
        for number, part in enumerate([None, *parts]):
            logits = plain(torch.tensor([row])).logits[0].double()
            if part is not None:
                mean = torch.cat([outputs(j, part) for j in range(2)]).mean(dim=0)
                vector = torch.zeros_like(mean) if missing == "zero" else mean
                logits = plain_logits(plain, row, part, vector, slice(None))
            losses[k, number] = torch.nn.functional.cross_entropy(
                logits[:-1], torch.tensor(row[1:])
            ).detach()
    change = (losses[:, 1:] - losses[:, :1]).mean(axis=0)
    np.testing.assert_allclose(
        found["loss_change"],
        change.reshape(shape[1:]),
        atol=2e-3 * np.abs(change).max(),
    )


def test_halves_count_what_the_prompts_say(tiny: Any) -> None:
    """Of answers that are partly wrong."""
    answers = [*"0123454321"]
    found = sl.sublayer_effects(tiny, DIGITS, answers, choices=[*"0123456789"], seed=5)
    own, without = found["lead"] > 0, found["lead_without"] > 0
    gains = []
    for half in ("select", "confirm"):
        here = (found["of_half"] == half).values
        wrong, right = here & ~own.values, here & own.values
        counted = found.sel(half=half)
        assert (int(counted["wrong"]), int(counted["right"])) == (
            wrong.sum(),
            right.sum(),
        )
        np.testing.assert_allclose(counted["repaired"], without[wrong].mean("prompt"))
        np.testing.assert_allclose(counted["broken"], 1 - without[right].mean("prompt"))
        gains.append(without[here].sum("prompt").values - right.sum())
        np.testing.assert_allclose(counted["net"], gains[-1] / here.sum())
        by_chance = (found["lead_random"] > 0)[:, here].mean(
            ("random_vector", "prompt")
        ) - right.sum() / here.sum()
        np.testing.assert_allclose(counted["net_random"], by_chance)
    chosen = gains[0][
        int(found["selected_block"]),
        ["attention", "mlp"].index(found["selected_sublayer"].item()),
    ]
    assert chosen == gains[0].max()
    named = found.sel(
        half="confirm",
        block=found["selected_block"],
        sublayer=found["selected_sublayer"].item(),
    )
    for end in ("", "_low", "_high"):
        assert float(named[f"net{end}"]) == float(found[f"selected_net{end}"])


def test_equal_prompts_count_once(tiny: Any) -> None:
    digits = [*"0123456789"]
    once = sl.sublayer_effects(tiny, DIGITS, digits)
    with pytest.warns(UserWarning, match="once"):
        twice = sl.sublayer_effects(tiny, [*DIGITS, *DIGITS[:2]], [*digits, *"01"])
    np.testing.assert_array_equal(twice["broken_high"], once["broken_high"])


def test_clusters_are_drawn_whole_and_widen_intervals(tiny: Any) -> None:
    """Pairs of prompts; as many labels as prompts give what no labels give."""
    asked: Any = {"choices": [*"0123456789"], "seed": 5, "n_random_vectors": 2}
    answers, pairs = [*"0123454321"], [*"aabbccddee"]
    alone, own = (
        sl.sublayer_effects(tiny, DIGITS, answers, **asked, clusters=given)
        for given in (None, [*range(10)])
    )
    xr.testing.assert_equal(without_provenance(alone), without_provenance(own))
    found = sl.sublayer_effects(tiny, DIGITS, answers, **asked, clusters=pairs)
    assert found["cluster"].values.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert (found["of_half"].values[::2] == found["of_half"].values[1::2]).all()
    here = found["of_half"].values == "confirm"
    without = found["lead_without"].values > 0
    gained = torch.tensor(
        without.astype(float) - (found["lead"].values > 0)[:, None, None]
    )[here].movedim(0, -1)
    _, low, high = mean_interval(gained, torch.tensor(found["cluster"].values)[here])
    np.testing.assert_allclose(found["net_low"].sel(half="confirm"), low)
    np.testing.assert_allclose(found["net_high"].sel(half="confirm"), high)


def test_without_random_vectors_nothing_is_above_them(tiny: Any) -> None:
    found = sl.sublayer_effects(
        tiny, DIGITS, [*"0123454321"], choices=[*"0123456789"], n_random_vectors=0
    )
    assert found["net_random"].isnull().all()
    assert found["above_null"].item() in ("no", "not measured")
    assert "lead_random" not in found
