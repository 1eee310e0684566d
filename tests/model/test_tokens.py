"""Tokens in: what prompts may be given as, what they may not, and how they begin: as the tokenizer says."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoTokenizer,
    BatchEncoding,
    GraniteConfig,
    Phi3Config,
    PreTrainedTokenizerFast,
)

import squashlens as sl
from squashlens import example_models
from squashlens.errors import InputError
from squashlens.model.text.start import start_of
from squashlens.model.text.tokens import each_of
from tests.cases import CONFIGS, MORE, NO_HEAD_DIM, few, save_random
from tests.references import raw

IDS = [2, 4, 4, 3, 76]


@pytest.mark.parametrize(
    "given",
    [
        IDS,
        tuple(IDS),
        [IDS],
        (tuple(IDS),),
        np.array(IDS),
        np.array([IDS], dtype=np.int16),
        torch.tensor(IDS),
        np.array(IDS, dtype=np.uint64),
        [np.int64(i) for i in IDS],
        [torch.tensor(i) for i in IDS],
        [torch.tensor(IDS)],
        [np.array(IDS)],
        torch.tensor([IDS], dtype=torch.int32),
        "110 =",
        ["110 ="],
        np.array(["110 ="]),
        np.str_("110 ="),
        pd.Series(IDS),
        pd.Series(["110 ="]),
        pd.Series(IDS, index=range(5, 0, -1)),
        xr.DataArray(IDS),
        pd.DataFrame([IDS]),
        np.array([IDS], dtype=object),
        [torch.tensor([IDS])],
    ],
    ids=repr,
)
def test_ids_in_any_form_are_the_prompt(tiny: Any, given: Any) -> None:
    assert raw(sl.prompts.tokenize)(tiny, given).tolist() == [IDS]


@pytest.mark.parametrize(
    "given",
    [
        "  ",
        ["1", ""],
        [[]],
        [IDS, []],
        [2, 9999],
        [2] + [5] * 3000,
        np.zeros((0, 3), dtype=int),
        [2, 4.0],
        [2, True],
        [2, None],
        np.array(IDS) * 1.0,
        torch.tensor([True]),
        [2, -1],
        np.ma.array([2, 4], mask=[0, 1]),
        ["110 =", 2],
        [IDS, "110 ="],
        [[IDS]],
        np.array([[[2]]]),
        np.array(7),
        {2, 4},
        b"110 =",
        None,
        [torch.tensor([IDS, IDS])],
        iter(IDS),
        {"input_ids": IDS, "attention_mask": [1, 0, 1, 1, 1]},
        {"input_ids": IDS, "attention_mask": [0] * 5},
        ["1 0", "0 1 1"],
        "How many ones in the sequense",
    ],
    ids=lambda value: type(value).__name__,  # addresses differ between workers
)
def test_what_is_no_prompt_is_refused(tiny: Any, given: Any) -> None:
    with pytest.raises(InputError):
        raw(sl.prompts.tokenize)(tiny, given)


def padded(side: str) -> BatchEncoding:
    """Two prompts as ids and attention mask, the shorter of them padded on one side."""
    tokenizer = AutoTokenizer.from_pretrained(
        example_models.folder("tiny-gemma"), padding_side=side
    )
    return tokenizer(["110 =", "0 ="], padding=True, return_tensors="pt")


@pytest.mark.parametrize("side", ["left", "right"])
def test_what_a_tokenizer_returns_is_measured_without_padding(
    tiny: Any, side: str
) -> None:
    batch = padded(side)
    rows = [{name: values[k] for name, values in batch.items()} for k in range(2)]
    lists = {name: values.tolist() for name, values in batch.items()}
    for given in (batch, rows, lists, [BatchEncoding(row) for row in rows]):
        assert each_of(given) == [IDS, [2, 3, 76]]
    several = sl.path_bound(tiny, batch)
    for number, text in enumerate(("110 =", "0 =")):
        alone = sl.path_bound(tiny, text)
        np.testing.assert_array_equal(several[number][: len(alone)], alone)
    ids = batch["input_ids"]
    for measure in (sl.path_bound, sl.capture, raw(sl.prompts.tokenize)):
        with pytest.raises(InputError):
            measure(tiny, ids)


def test_a_pad_token_that_is_used_otherwise_is_text(tmp_path: Path) -> None:
    """GPT-2 and others pad with the token that ends a text or stands for unknown words."""
    folder = save_random(FAMILIES["llama"], tmp_path / "model")
    save_tokenizer(folder, "<bos> $A")  # its pad token is the unknown token as well
    model = load(folder)
    assert sl.path_bound(model, [2, 5, 0])["token_id"].values.tolist() == [2, 5, 0]
    model.tokenizer.add_special_tokens({"unk_token": "<other>"})
    with pytest.raises(InputError):
        sl.path_bound(model, [2, 5, 0])
    model.tokenizer.add_special_tokens({"pad_token": "<eos>"})
    assert sl.path_bound(model, [2, 5, 1])["token_id"].values.tolist() == [2, 5, 1]


def test_ids_without_an_embedding_are_refused(tiny: Any) -> None:
    larger = sl.load("tiny-gemma")
    larger.tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    foreign = sl.load("tiny-gemma")
    foreign.tokenizer = sl.load("tiny-prose").tokenizer  # which has more tokens
    cases: list[Callable[[], Any]] = [
        lambda: sl.path_bound(tiny, [2, 99]),
        lambda: sl.path_bound(larger, "110 <image> ="),
        lambda: sl.prompts.repeated(larger, "1", 3, prefix="110 <image>"),
        lambda: sl.path_bound(foreign, "The cat is"),
    ]
    for call in cases:
        with pytest.raises(InputError):
            call()


def test_text_alone_gets_one_bos(tiny: Any) -> None:
    ids = sl.prompts.tokenize(tiny, "How many ones?")
    assert ids.tolist() == [
        [2, *tiny.tokenizer("How many ones?", add_special_tokens=False)["input_ids"]]
    ]
    assert (
        sl.prompts.tokenize(tiny, "How many ones?", bos="none").tolist()[0]
        == ids.tolist()[0][1:]
    )
    with pytest.raises(InputError):
        sl.prompts.tokenize(tiny, [5, 6], bos="none")


def test_ids_are_taken_as_they_are_with_a_warning(
    tiny: Any, bridge_of: Callable[..., Any]
) -> None:
    qwen = bridge_of("qwen2")  # which adds nothing; one BOS is common all the same
    usual = [(tiny, [2, 5, 6]), (qwen, [5, 6, 7]), (qwen, [2, 5, 6, 7])]
    odd = [
        (tiny, [5, 6]),
        (tiny, [2, 2, 5]),
        (tiny, [[2, 5], [5, 2]]),
        (qwen, [2, 2, 5]),
    ]
    for number, (model, ids) in enumerate((*usual, *odd)):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = sl.path_bound(model, ids)
        assert np.array_equal(found["token_id"], ids)
        assert sum("begins a text with" in str(one.message) for one in said) == (
            number >= len(usual)
        ), ids
    assert sl.results.provenance(sl.path_bound(qwen, [5, 6, 7]))["bos_count"] == 0
    assert sl.results.provenance(sl.path_bound(qwen, [2, 5, 6, 7]))["bos_count"] == 1


def test_a_second_bos_gives_a_warning_in_every_form(tiny: Any) -> None:
    text = "<bos> 110 ="
    twice = sl.prompts.repeated(tiny, "1", 3, prefix="<bos>")
    assert sl.prompts.tokenize(tiny, text, bos="none").tolist() == [IDS]
    for measure in (
        lambda: sl.path_bound(tiny, [text, text]),
        lambda: sl.path_bound(tiny, sl.capture(tiny, text)),
        lambda: sl.collapse(tiny, twice),
    ):
        with pytest.warns(match="bos='none'"):
            measure()


SPECIAL = ("<pad>", "<eos>", "<bos>", "<other>")  # ids 0 to 3, digits from 4 on
FAMILIES: dict[str, Any] = {
    "olmo2": MORE["olmo2"],
    "phi3": Phi3Config(**NO_HEAD_DIM),
    "granite": GraniteConfig(**NO_HEAD_DIM),
    "gpt2": CONFIGS["gpt2"],
    "llama": CONFIGS["llama"],
}


def save_tokenizer(
    folder: Path, template: str | None, bos: str | None = "<bos>", **settings: Any
) -> None:
    """A tokenizer of single characters that frames a text as its template says."""
    words = [*SPECIAL, *"0123456789abc"]
    special = {"eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<pad>"}
    core = Tokenizer(
        models.BPE(
            {word: i for i, word in enumerate(words)},
            [],
            unk_token=special["unk_token"],
        )
    )
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    if template is not None:
        used = [(word, i) for i, word in enumerate(SPECIAL) if word in template]
        core.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=used
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=core, **special, **({} if bos is None else {"bos_token": bos})
    )
    fast.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def load(folder: Path) -> Any:
    return sl.load(folder, device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("family", few(FAMILIES))
def test_prompts_begin_as_the_tokenizer_begins(family: str, tmp_path: Path) -> None:
    """With nothing, one BOS, one that is the EOS too (before and behind a text), two tokens, and class settings."""
    cases: dict[str, tuple[list[int], dict[str, Any]]] = {
        "nothing": ([], {"template": None}),
        "bos": ([2], {"template": "<bos> $A"}),
        "bos and eos": ([2], {"template": "<bos> $A <eos>"}),
        "bos is eos": ([1], {"template": "<eos> $A <eos>", "bos": "<eos>"}),
        "bos is eos, behind": ([], {"template": "$A <eos>", "bos": "<eos>"}),
        "two": ([3, 2], {"template": "<other> <bos> $A"}),
        "no bos": ([], {"template": None, "bos": None}),
        "setting": (
            [],
            {
                "template": None,
                "tokenizer_class": "GPT2Tokenizer",
                "add_bos_token": False,
            },
        ),
    }
    chosen = (
        cases
        if family == "olmo2"
        else {name: cases[name] for name in ("nothing", "bos", "bos is eos")}
    )
    for name, (start, how) in chosen.items():
        folder = save_random(FAMILIES[family], tmp_path / name)
        save_tokenizer(folder, **how)
        whole = AutoTokenizer.from_pretrained(folder)("12a")["input_ids"]
        model = load(folder)
        ids = sl.prompts.tokenize(model, "12a")
        assert ids.tolist() == [[*start, 5, 6, 14]]
        assert whole[: ids.shape[1]] == ids[0].tolist()
        sequence = sl.prompts.repeated(model, "1", 3, prefix="a")
        assert sequence.plain(3).ids(sequence.trunk) == (*start, 14, 5, 5, 5)
        facts = sl.results.provenance(sl.path_bound(model, "12a"))
        assert facts["bos_count"] == len(start)
        assert facts["bos_rule"] == f"the checkpoint's tokenizer: {start} before a text"


def test_a_space_at_the_end_is_measured_with_a_warning_where_words_begin_with_theirs(
    tiny: Any,
) -> None:
    prose = load("tiny-prose")
    for model, text, count in (
        (prose, "The cat is ", 1),
        (prose, "The cat is", 0),
        (tiny, "110 = ", 0),
    ):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            sl.top_tokens(model, text)
        assert sum("ends with a space" in str(one.message) for one in said) == count, (
            text
        )


def test_without_a_tokenizer_the_table_decides(bridge_of: Callable[..., Any]) -> None:
    for family, table in (("olmo2", 1), ("qwen2", 0)):
        assert start_of(bridge_of(family)).ids == (2,) * table


def test_bridges_and_tokenizers_from_elsewhere(tmp_path: Path) -> None:
    """A bridge that TransformerLens opened, a folder that is gone, a tokenizer put in place of the first."""
    from transformer_lens.model_bridge import TransformerBridge

    folder = save_random(FAMILIES["olmo2"], tmp_path / "model")
    save_tokenizer(folder, None)
    bridge = TransformerBridge.boot_transformers(str(folder), device="cpu").eval()
    assert bridge.tokenizer("1")["input_ids"] == [2, 5]  # its own setting
    assert sl.prompts.tokenize(bridge, "1").tolist() == [[5]]
    (folder / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    other = TransformerBridge.boot_transformers(
        str(folder), device="cpu", tokenizer=bridge.tokenizer
    ).eval()
    assert sl.prompts.tokenize(other, "1").tolist() == [[2, 5]]
    assert "its checkpoint cannot be read" in start_of(other).rule


def test_the_option_of_the_models_tokenizer_decides_about_bos() -> None:
    model = sl.load("tiny-gemma")
    with_bos = sl.path_bound(model, "110 =")
    model.tokenizer.add_bos_token = False
    without = sl.path_bound(model, "110 =")
    assert with_bos["token"].values.tolist() == ["<bos>", "1", "1", "0", "="]
    assert without["token"].values.tolist() == ["1", "1", "0", "="]
    assert "add_bos_token = False" in sl.results.provenance(without)["bos_rule"]
    model.tokenizer.add_bos_token = True
    assert sl.path_bound(model, "110 =").identical(with_bos)
