"""Find words that a word-level tokenizer does not know, before a model is loaded.

`tokenize` raises an error for an unknown word, but needs the model. The command line knows its texts earlier, and reads
only the tokenizer's file to check them.
"""

import difflib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from squashlens import zoo
from squashlens.errors import InputError


def refuse_words_of(name: str, texts: Iterable[str]) -> None:
    """Raise an error for texts with words that the tokenizer of `name` does not know.

    Only word-level tokenizers of bundled models and local folders are read; other tokenizers split unknown words.
    Other problems are left to `load`.
    """
    path = Path(os.path.expanduser(zoo.folder(name) if name in zoo.bundled() else name)) / "tokenizer.json"
    if not os.path.isfile(path):
        return
    from tokenizers import Tokenizer

    try:
        core: Any = Tokenizer.from_file(str(path))
    except Exception:  # `load` reports what is wrong with the file
        return
    added = [token.content for token in core.get_added_tokens_decoder().values()]
    for text in texts:
        refuse_unknown_words(core, text, added)


def refuse_unknown_words(core: Any, text: str, special: Iterable[str]) -> None:
    """Raise an error for words that a word-level tokenizer does not know, or would replace by its unknown token."""
    if core.pre_tokenizer is None or type(core.model).__name__ != "WordLevel":
        return
    for token in special:  # special tokens are read before the text is split into words
        text = text.replace(token, " ")
    unknown = [piece for piece, _ in core.pre_tokenizer.pre_tokenize_str(text) if core.token_to_id(piece) is None]
    if not unknown:
        return
    near = difflib.get_close_matches(unknown[0], core.get_vocab(), n=3, cutoff=0.5)
    hint = f"Similar words: {', '.join(near)}." if near else "`model.tokenizer.get_vocab()` lists the words."
    plural = f" (and {len(set(unknown)) - 1} more)" if len(set(unknown)) > 1 else ""
    raise InputError(f"The word {unknown[0]!r}{plural} is not in this model's vocabulary.", hint)
