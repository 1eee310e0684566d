"""Small tokenizers of every kind, trained on a few sentences: how each writes spaces, and characters of several bytes.

always     Llama 2, Mistral, TinyLlama: ▁ before every text, and the decoder drops one leading space; byte fallback
normalized the same by a normalizer, as in older files
first      ▁ before the first part of a text only; byte fallback
never      Gemma: no space is inserted or dropped; byte fallback
bytes      GPT-2: bytes instead of characters, a space belongs to what follows
threes     Llama 3: the same, with up to three digits a token
words      the bundled model: words, marks and digits; the decoder writes a space between any two tokens
letters    a character a token
pieces     WordPiece: the decoder writes a space before all that does not continue a word
"""

import json
from functools import cache

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

from tests.splitters import LLAMA3

KINDS = (
    "always",
    "normalized",
    "first",
    "never",
    "bytes",
    "threes",
    "words",
    "letters",
    "pieces",
)
EXACT = KINDS[:6]  # those that can write every text
UNKNOWN = "<unk>"
SPECIAL = ["<pad>", "<eos>", "<bos>", UNKNOWN]
TEXT = [
    "The capital of France is Paris, and one more: the sum of 12 and 345 is = 357.",
    "Is it true? Yes (or no): copy 1 1 1 and and and, Paris Paris paris. ) ? : = ,",
    "(and,and:and=and(one:one,one=one",
    "0 1 2 3 4 5 6 7 8 9 a b c d e f g h i j k l m n o p q r s t u v w x y z",
] * 8


@cache
def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    """A trained tokenizer that puts one BOS before a text; shared, so leave it as it was."""
    core = {"words": _words, "letters": _letters, "pieces": _pieces}.get(
        kind, lambda: _merging(kind)
    )()
    pad, eos, bos, unk = SPECIAL
    bos_id = core.token_to_id(bos)
    core.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, bos_id)]
    )
    names = {"pad_token": pad, "eos_token": eos, "bos_token": bos, "unk_token": unk}
    return PreTrainedTokenizerFast(tokenizer_object=core, **names)


def _merging(kind: str) -> Tokenizer:
    """Byte pairs, of bytes or of characters with bytes for those that are not known."""
    by_bytes = kind in ("bytes", "threes")
    core = Tokenizer(models.BPE())
    if by_bytes:
        whole = pre_tokenizers.ByteLevel(
            add_prefix_space=False, use_regex=kind == "bytes"
        )
        cut = (
            [pre_tokenizers.Split(Regex(LLAMA3), "isolated")]
            if kind == "threes"
            else []
        )
        core.pre_tokenizer, core.decoder = (
            pre_tokenizers.Sequence([*cut, whole]),
            decoders.ByteLevel(),
        )
    else:
        read = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        core.decoder = decoders.Sequence(
            [*read, *([] if kind == "never" else [decoders.Strip(" ", 1, 0)])]
        )
        if kind in ("never", "normalized"):
            space = normalizers.Replace(" ", "▁")
            core.normalizer = normalizers.Sequence(
                [*([] if kind == "never" else [normalizers.Prepend("▁")]), space]
            )
            core.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
        else:
            core.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind)
    alphabet = pre_tokenizers.ByteLevel.alphabet() if by_bytes else []
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    core.train_from_iterator(TEXT, trainer)
    if by_bytes:
        return core
    state = json.loads(core.to_str())
    vocab = state["model"]["vocab"]
    vocab |= {f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)}
    state["model"] |= {"byte_fallback": True, "unk_token": UNKNOWN, "fuse_unk": True}
    return Tokenizer.from_str(json.dumps(state))


def _words() -> Tokenizer:
    marks = pre_tokenizers.Split(Regex(r"[\d\p{P}\p{S}]"), "isolated")
    core = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), marks]
    )
    core.train_from_iterator(
        TEXT, trainers.WordLevelTrainer(special_tokens=SPECIAL, show_progress=False)
    )
    return core


def _letters() -> Tokenizer:
    known = sorted({*"".join(TEXT), *"é€…日本🙂\n"})
    core = Tokenizer(
        models.WordLevel(
            {c: i for i, c in enumerate([*SPECIAL, *known])}, unk_token=UNKNOWN
        )
    )
    core.pre_tokenizer, core.decoder = (
        pre_tokenizers.Split("", "isolated"),
        decoders.Fuse(),
    )
    core.add_special_tokens(SPECIAL)
    return core


def _pieces() -> Tokenizer:
    core = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    core.pre_tokenizer, core.decoder = (
        pre_tokenizers.BertPreTokenizer(),
        decoders.WordPiece(cleanup=False),
    )
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=SPECIAL, show_progress=False
    )
    core.train_from_iterator(TEXT, trainer)
    return core
