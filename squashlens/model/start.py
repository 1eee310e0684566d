"""How a prompt begins: the tokens that the checkpoint's own tokenizer puts in front of a text, such as one BOS.

TransformerLens decides this by a table of model classes and opens the tokenizer with ``add_bos_token=True``. The table
and the tokenizers of OLMo 2, Phi-3, Granite and GPT-2 disagree. So the tokenizer is opened here once more, as the
checkpoint has it, and asked what it puts in front of a text. Results say so, and where the table differs.
"""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from squashlens._typing import Bridge


@dataclass(frozen=True)
class Start:
    """The ids in front of every text, the id of the BOS if there is one, and where this is known from."""

    ids: tuple[int, ...]
    bos: int | None
    rule: str


# For each model the tokenizer it was read for and the answer: `bridge.tokenizer` can be replaced.
_known: "weakref.WeakKeyDictionary[Any, tuple[Any, Start]]" = weakref.WeakKeyDictionary()


def start_of(model: Bridge, revision: str | None = None) -> Start:
    """How the checkpoint's tokenizer begins a text; read once for each tokenizer of a model."""
    held = model.tokenizer
    if model not in _known or _known[model][0] is not held:
        _known[model] = held, _read(model, held, revision)
    return _known[model][1]


def _read(model: Bridge, held: Any, revision: str | None) -> Start:
    table = int(bool(model.cfg.default_prepend_bos))
    named = f"TransformerLens's table for {type(model.original_model).__name__}"
    config_bos = getattr(getattr(model.original_model, "config", None), "bos_token_id", None)
    if held is None:
        ids = (config_bos,) if table and isinstance(config_bos, int) else ()
        return Start(ids, config_bos, f"no tokenizer; {named}: {table} BOS")
    own = _as_in_checkpoint(held, revision)
    asked = own or held
    ids = _in_front(asked)
    bos = asked.bos_token_id if asked.bos_token_id is not None else config_bos
    whose = "the checkpoint's tokenizer" if own else "the bridge's tokenizer (its checkpoint cannot be read)"
    if ids is None:
        ids = (bos,) if table and bos is not None else ()
        return Start(ids, bos, f"{whose} could not be asked; {named}: {table} BOS")
    rule = f"{whose}: {list(ids)} in front of a text"
    return Start(ids, bos, rule if len(ids) == table else f"{rule}; {named} differs: {table} BOS")


def _as_in_checkpoint(held: Any, revision: str | None) -> Any:
    """The tokenizer opened without TransformerLens's settings; None if it is not there, or not the same tokenizer."""
    from transformers import AutoTokenizer

    try:
        own: Any = AutoTokenizer.from_pretrained(
            held.name_or_path, revision=revision, trust_remote_code=False, local_files_only=True
        )
    except Exception:  # whatever the reason, it is stated in the result that the bridge's was asked
        return None
    vocabulary, of_held = own.get_vocab(), held.get_vocab()
    return own if all(of_held.get(token) == place for token, place in vocabulary.items()) else None


def _in_front(tokenizer: Any) -> tuple[int, ...] | None:
    """What stands before the tokens of a text; None for a tokenizer that takes no text tried.

    Texts whose own tokens are special ones are passed over: BOS, EOS and the unknown token are often the same.
    """
    special = set(tokenizer.all_special_ids)
    for text in _texts(tokenizer):
        try:
            bare = list(tokenizer(text, add_special_tokens=False)["input_ids"])
            whole = list(tokenizer(text)["input_ids"])
        except Exception:  # a tokenizer of words without an unknown token raises a bare one
            bare, whole = [], []
        if not bare or special & set(bare):
            continue
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return tuple(whole[:start])
    return None


def _texts(tokenizer: Any) -> Iterator[str]:
    yield from ("1", "a")
    for token in range(min(len(tokenizer), 500)):
        text = tokenizer.decode([token], skip_special_tokens=True).strip()
        if text:
            yield text
