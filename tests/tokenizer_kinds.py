"""Small tokenizers of every kind, trained where they are needed: how each writes spaces, digits and rare characters.

always     Llama 2, Mistral, TinyLlama: ▁ before every text, and the decoder drops one leading space; byte fallback
normalized the same by a normalizer, as in older files
first      ▁ before the first part of a text only; byte fallback
never      Gemma: no space is inserted or dropped; byte fallback
merging    GPT-2: bytes instead of characters, a space belongs to what follows, runs of digits merge
threes     Llama 3: the same, with up to three digits a token
single     Gemma's digits: every digit by itself, a space is a token ▁ before it
prefixed   Llama 2's digits: the same, and a ▁ in front of every text
words      the bundled model: words, marks and digits; the decoder writes a space between any two tokens
letters    a character a token
pieces     WordPiece: the decoder writes a space before all that does not continue a word

Training has no randomness.
"""

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

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

# Those that can write every text.
EXACT = ("always", "normalized", "first", "never", "merging", "threes")
KINDS = (*EXACT, "words", "letters", "pieces")
# Those whose merges of 1 are 11 and 111 and no others.
SPLITTERS = ("single", "prefixed", "threes", "merging")
BYTES = ("merging", "threes")
UNKNOWN = "<unk>"
SPECIAL = ["<pad>", "<eos>", "<bos>"]  # ids 0, 1, 2, as in tests.cases
TEXT = [
    "The capital of France is Paris, and one more: the sum of 12 and 345 is = 357.",
    "Is it true? Yes (or no): copy 1 1 1 and and and, Paris Paris paris. ) ? : = ,",
    "(and,and:and=and(one:one,one=one",
    "0 1 2 3 4 5 6 7 8 9 a b c d e f g h i j k l m n o p q r s t u v w x y z",
] * 8
REPEATS = ["111"] * 20 + ["one", " one", " count", " 1", ","] * 8 + ["0123456789 :?="]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Parts(NamedTuple):
    """What stands before the merges of a tokenizer, and behind them."""

    normalizer: Any
    pre_tokenizer: Any
    decoder: Any


SPACE = normalizers.Replace(" ", "▁")
PREFIXED = normalizers.Sequence([normalizers.Prepend("▁"), SPACE])
WORDS = pre_tokenizers.Split("▁", "merged_with_next")
DIGITS = pre_tokenizers.Digits(individual_digits=True)
FIRST = pre_tokenizers.Metaspace(prepend_scheme="first")
ALWAYS = pre_tokenizers.Metaspace(prepend_scheme="always")
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
THREES = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
AS_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
READ = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
KEPT = decoders.Sequence(READ)
STRIPPED = decoders.Sequence([*READ, decoders.Strip(" ", 1, 0)])
FROM_BYTES = decoders.ByteLevel()
MERGING = {
    "always": Parts(None, ALWAYS, STRIPPED),
    "normalized": Parts(PREFIXED, WORDS, STRIPPED),
    "first": Parts(None, FIRST, STRIPPED),
    "never": Parts(SPACE, WORDS, KEPT),
    "merging": Parts(None, GPT2, FROM_BYTES),
    "threes": Parts(None, pre_tokenizers.Sequence([THREES, AS_BYTES]), FROM_BYTES),
    "single": Parts(SPACE, DIGITS, KEPT),
    "prefixed": Parts(
        None, pre_tokenizers.Sequence([FIRST, DIGITS]), decoders.Metaspace()
    ),
}


def _merging(
    kind: str, texts: list[str], special: list[str], **sizes: int
) -> Tokenizer:
    """Byte pairs, of bytes or of characters."""
    core = Tokenizer(models.BPE())
    parts = MERGING[kind]
    if parts.normalizer is not None:
        core.normalizer = parts.normalizer
    core.pre_tokenizer = parts.pre_tokenizer
    core.decoder = parts.decoder
    trainer = trainers.BpeTrainer(
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if kind in BYTES else [],
        show_progress=False,
        **sizes,
    )
    core.train_from_iterator(texts, trainer)
    return core


def _falling_back(core: Tokenizer) -> Tokenizer:
    """With a token for each byte, for characters that are not known."""
    state = json.loads(core.to_str())
    vocabulary = state["model"]["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    state["model"] |= {"byte_fallback": True, "unk_token": UNKNOWN, "fuse_unk": True}
    return Tokenizer.from_str(json.dumps(state))


def _words() -> Tokenizer:
    marks = pre_tokenizers.Split(Regex(r"[\d\p{P}\p{S}]"), "isolated")
    core = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), marks]
    )
    trainer = trainers.WordLevelTrainer(
        special_tokens=[*SPECIAL, UNKNOWN], show_progress=False
    )
    core.train_from_iterator(TEXT, trainer)
    return core


def _letters() -> Tokenizer:
    known = sorted({*"".join(TEXT), *"é€…日本🙂\n"})
    special = [*SPECIAL, UNKNOWN]
    vocabulary = {token: i for i, token in enumerate([*special, *known])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    core.add_special_tokens(special)
    return core


def _pieces() -> Tokenizer:
    core = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=[*SPECIAL, UNKNOWN], show_progress=False
    )
    core.train_from_iterator(TEXT, trainer)
    return core


def _opened(core: Tokenizer, **names: str) -> PreTrainedTokenizerFast:
    pad, eos, bos = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token=pad, eos_token=eos, bos_token=bos, **names
    )


def _with_bos(core: Tokenizer) -> None:
    """Put one BOS before a text."""
    bos = SPECIAL[2]
    core.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, core.token_to_id(bos))]
    )


@cache
def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer of words and sentences that puts one BOS before a text; shared, so leave it as it was."""
    others = {"words": _words, "letters": _letters, "pieces": _pieces}
    if kind in others:
        core = others[kind]()
    else:
        core = _merging(kind, TEXT, [*SPECIAL, UNKNOWN], vocab_size=420)
        if kind not in BYTES:
            core = _falling_back(core)
    _with_bos(core)
    return _opened(core, unk_token=UNKNOWN)


@cache
def splitter(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer of repeated digits, without a BOS; shared, so leave it as it was."""
    return _opened(_merging(kind, REPEATS, SPECIAL, vocab_size=300, min_frequency=8))


def save_random_with(kind: str, family: str, folder: Path) -> Path:
    """A family's tiny random model with a trained tokenizer and a vocabulary of its size; Qwen 2 without a BOS."""
    config: Any = copy.deepcopy(CONFIGS[family])
    config.vocab_size = len(splitter(kind))
    tokenizer = copy.deepcopy(splitter(kind))
    if family != "qwen2":
        _with_bos(tokenizer.backend_tokenizer)
    tokenizer.save_pretrained(folder)
    return save_random(config, folder)
