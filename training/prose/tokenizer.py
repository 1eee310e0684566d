"""The vocabulary of tiny-prose: byte-level BPE, so that any text can be encoded and is decoded unchanged.

`python -m training.prose.tokenizer --corpus FOLDER` learns it from the training text and encodes that text.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
    trainers,
)
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerFast

from training.prose.corpus import TRAINING, read

PAD, EOS, BOS = "<pad>", "<eos>", "<bos>"  # ids 0, 1, 2, as in Gemma
VOCABULARY = 2048
CONTEXT = 512  # tokens, the longest sequence in training
TOKENIZER, TOKENS = "tokenizer", "training.npy"
# Words keep the space before them; every digit stands alone, as in Gemma; a run of other marks is one piece.
_PIECES = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+"


def train_tokenizer(
    texts: Iterable[str], vocabulary: int = VOCABULARY
) -> PreTrainedTokenizerFast:
    """Learn the merges from `texts`. Every prompt starts with `<bos>`, as Gemma's do."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[AddedToken(token, special=True) for token in (PAD, EOS, BOS)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    core.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=f"{BOS} $A",
        pair=f"{BOS} $A $B",
        special_tokens=[(BOS, core.token_to_id(BOS))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=EOS,
        bos_token=BOS,
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )


def encode(text: str, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """A document's tokens: `<bos>`, the text, `<eos>`."""
    ids: list[int] = tokenizer(text)["input_ids"]  # pyright: ignore[reportAssignmentType]
    eos: int = tokenizer.eos_token_id  # pyright: ignore[reportAssignmentType]
    return [*ids, eos]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.prose.tokenizer", description=__doc__
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        default=Path("runs/prose"),
        help="folder of the text (%(default)s)",
    )
    folder = parser.parse_args().corpus
    texts = [document.text for document in read(folder / TRAINING)]
    tokenizer = train_tokenizer(texts)
    tokenizer.save_pretrained(folder / TOKENIZER)
    ids = [
        np.array(encode(text, tokenizer), np.uint16)
        for text in tqdm(texts, desc="encode", unit="document")
    ]
    np.save(folder / TOKENS, np.concatenate(ids))


if __name__ == "__main__":
    main()
