"""Words that a tokenizer of whole words does not have, told before anything heavy is imported.

A prompt with a slip in it is refused when it is tokenized, and for that a model must be loaded. The command line knows
its texts before, and reads the tokenizer's file by itself: of what `tokens` refuses, this finds unknown words.
"""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from squashlens import zoo
from squashlens.errors import InputError


def refuse_words_of(name: str, texts: Iterable[str]) -> None:
    """Refuse texts with words that the tokenizer of `name` does not have; anything else is left to `load`.

    Only a tokenizer of whole words is asked, of a bundled model or a local folder: others split what they do not know.
    """
    try:
        path = Path(zoo.folder(name) if name in zoo.bundled() else name).expanduser() / "tokenizer.json"
        if not path.is_file():
            return
    except (OSError, RuntimeError):  # a name that is too long, a folder that may not be read, no such user
        return
    from tokenizers import Tokenizer

    try:
        core: Any = Tokenizer.from_file(str(path))
    except Exception:  # whatever is wrong with the file, `load` says it
        return
    added = [token.content for token in core.get_added_tokens_decoder().values()]
    for text in texts:
        refuse_unknown_words(core, text, added, core.get_vocab())


def refuse_unknown_words(core: Any, text: str, special: Iterable[str], known: Mapping[str, int]) -> None:
    """Refuse words of `text` that a tokenizer of whole words lacks; without an unknown token it would raise a bare
    error of its library, with one it would put that there."""
    if core.pre_tokenizer is None or type(core.model).__name__ != "WordLevel":
        return
    for token in special:  # read as one token each, before words are looked for
        text = text.replace(token, " ")
    unknown = [piece for piece, _ in core.pre_tokenizer.pre_tokenize_str(text) if piece not in known]
    if not unknown:
        return
    near = difflib.get_close_matches(unknown[0], known, n=3, cutoff=0.5)
    hint = f"Near it: {', '.join(near)}." if near else "`model.tokenizer.get_vocab()` lists the words."
    plural = f" (and {len(set(unknown)) - 1} more)" if len(set(unknown)) > 1 else ""
    raise InputError(f"The word {unknown[0]!r}{plural} is not in this model's vocabulary.", hint)
