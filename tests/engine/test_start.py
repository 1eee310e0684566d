"""How prompts begin: the checkpoint's tokenizer decides, whatever TransformerLens's table says of the class."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, GraniteConfig, Phi3Config, PreTrainedTokenizerFast

import squashlens as sl
from squashlens.engine.text.start import start_of
from tests.cases import CONFIGS, MORE, NO_HEAD_DIM, few, save_random

SPECIAL = ("<pad>", "<eos>", "<bos>", "<other>")  # ids 0 to 3, digits from 4 on
FAMILIES: dict[str, Any] = {
    "olmo2": MORE["olmo2"],
    "phi3": Phi3Config(**NO_HEAD_DIM),
    "granite": GraniteConfig(**NO_HEAD_DIM),
    "gpt2": CONFIGS["gpt2"],
    "llama": CONFIGS["llama"],
}


def save_tokenizer(folder: Path, template: str | None, bos: str | None = "<bos>", **settings: Any) -> None:
    """A tokenizer of single characters that frames a text as its template says."""
    words = [*SPECIAL, *"0123456789abc"]
    special = {"eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<pad>"}
    core = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], unk_token=special["unk_token"]))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    if template is not None:
        used = [(word, i) for i, word in enumerate(SPECIAL) if word in template]
        core.post_processor = processors.TemplateProcessing(single=template, special_tokens=used)
    fast = PreTrainedTokenizerFast(tokenizer_object=core, **special, **({} if bos is None else {"bos_token": bos}))
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
        "setting": ([], {"template": None, "tokenizer_class": "GPT2Tokenizer", "add_bos_token": False}),
    }
    chosen = cases if family == "olmo2" else {name: cases[name] for name in ("nothing", "bos", "bos is eos")}
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
        table = int(model.cfg.default_prepend_bos)
        assert facts["bos_rule"].startswith(f"the checkpoint's tokenizer: {start} before a text")
        assert (f"differs: {table} BOS" in facts["bos_rule"]) == (len(start) != table)


def test_ids_of_another_start_are_measured_with_a_warning(tmp_path: Path) -> None:
    folder = save_random(FAMILIES["olmo2"], tmp_path / "two")
    save_tokenizer(folder, "<other> <bos> $A")
    two = load(folder)
    for other in ([5, 6], [2, 5], [3, 5], [3, 2, 2]):
        with pytest.warns(match=r"begins a text with \[3, 2\]"):
            sl.path_bound(two, other)
    folder = save_random(FAMILIES["olmo2"], tmp_path / "none")
    save_tokenizer(folder, None)
    none = load(folder)
    assert sl.results.provenance(sl.path_bound(none, torch.tensor([5, 6])))["bos_count"] == 0
    assert sl.results.provenance(sl.path_bound(none, torch.tensor([2, 5, 6])))["bos_count"] == 1
    assert sl.prompts.tokenize(none, "1", bos="one").tolist() == [[2, 5]]


def test_without_a_tokenizer_the_table_is_stated(bridge_of: Callable[..., Any]) -> None:
    for family, table in (("olmo2", 1), ("qwen2", 0)):
        model = bridge_of(family)
        assert start_of(model).ids == (2,) * table
        facts = sl.results.provenance(sl.path_bound(model, torch.tensor([2] * table + [5, 6])))
        assert facts["bos_rule"].startswith("no tokenizer; TransformerLens's table for ")
        assert facts["bos_rule"].endswith(f": {table} BOS")


def test_bridges_and_tokenizers_from_elsewhere(tmp_path: Path) -> None:
    """A bridge that TransformerLens opened, a folder that is gone, a tokenizer put in place of the first."""
    from transformer_lens.model_bridge import TransformerBridge

    folder = save_random(FAMILIES["olmo2"], tmp_path / "model")
    save_tokenizer(folder, None)
    bridge = TransformerBridge.boot_transformers(str(folder), device="cpu").eval()
    assert bridge.tokenizer("1")["input_ids"] == [2, 5]  # its own setting
    assert sl.prompts.tokenize(bridge, "1").tolist() == [[5]]
    (folder / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    other = TransformerBridge.boot_transformers(str(folder), device="cpu", tokenizer=bridge.tokenizer).eval()
    assert sl.prompts.tokenize(other, "1").tolist() == [[2, 5]]
    assert "its checkpoint cannot be read" in start_of(other).rule
