"""Small BPE tokenizers, trained where they are needed, that treat digits and spaces as known families do.

    single    Gemma: every digit by itself, a space is a token ▁ before it
    prefixed  Llama 2, Mistral 7B: the same, and a ▁ in front of every text
    threes    Llama 3: up to three digits at once from the left, a space between digits is a token
    merging   GPT-2: runs of digits merge as the corpus had them, a space belongs to what follows

Training has no randomness; the corpora are such that the merges of 1 are 11 and 111 and no others.
"""

import copy
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from tests.cases import CONFIGS, save_random

KINDS = ("single", "prefixed", "threes", "merging")
SPECIAL = ["<pad>", "<eos>", "<bos>"]  # ids 0, 1, 2, as in tests.cases
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DIGITS = pre_tokenizers.Digits(individual_digits=True)
CORPUS = ["111"] * 20 + ["one", " one", " count", " 1", ","] * 8 + ["0123456789 :?="]


@cache
def splitter(kind: str) -> PreTrainedTokenizerFast:
    """A trained tokenizer; shared, so leave it as it was."""
    core = Tokenizer(models.BPE())
    alphabet = []
    if kind in ("threes", "merging"):
        whole = pre_tokenizers.ByteLevel(
            add_prefix_space=False, use_regex=kind == "merging"
        )
        cut = (
            []
            if kind == "merging"
            else [pre_tokenizers.Split(Regex(LLAMA3), "isolated")]
        )
        core.pre_tokenizer, core.decoder = (
            pre_tokenizers.Sequence([*cut, whole]),
            decoders.ByteLevel(),
        )
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    elif kind == "prefixed":
        core.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Metaspace(prepend_scheme="first"), DIGITS]
        )
        core.decoder = decoders.Metaspace()
    else:
        core.normalizer = normalizers.Replace(" ", "▁")
        core.pre_tokenizer = DIGITS
        core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    trainer = trainers.BpeTrainer(
        special_tokens=SPECIAL,
        initial_alphabet=alphabet,
        min_frequency=8,
        show_progress=False,
        vocab_size=300,
    )
    core.train_from_iterator(CORPUS, trainer)
    pad, eos, bos = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token=pad, eos_token=eos, bos_token=bos
    )


def save_random_with(kind: str, family: str, folder: Path) -> Path:
    """A family's tiny random model with a trained tokenizer and a vocabulary of its size; Qwen 2 without a BOS."""
    config: Any = copy.deepcopy(CONFIGS[family])
    config.vocab_size = len(splitter(kind))
    tokenizer = copy.deepcopy(splitter(kind))
    if family != "qwen2":
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{SPECIAL[2]} $A", special_tokens=[(SPECIAL[2], 2)]
        )
    tokenizer.save_pretrained(folder)
    return save_random(config, folder)
