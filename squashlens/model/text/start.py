"""Find out how a prompt begins: which tokens the checkpoint's own tokenizer puts before a text, such as one BOS.

TransformerLens decides this with a table of model classes, and opens the tokenizer with ``add_bos_token=True``. The
table disagrees with the tokenizers of OLMo 2, Phi-3, Granite and GPT-2. So the tokenizer is opened here again with the
checkpoint's settings, and a text is tokenized to see what comes first. Results state the rule, and where the table
differs.
"""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from squashlens._typing import Bridge
from squashlens.remarks import remark


@dataclass(frozen=True)
class Start:
    """The ids before every text, the id of the BOS token if there is one, and the source of both."""

    ids: tuple[int, ...]
    bos: int | None
    rule: str


@dataclass
class _Known:
    """A tokenizer, its option `add_bos_token` as it was opened, and what it puts before texts with each option."""

    tokenizer: Any
    opened_with: Any
    starts: dict[Any, Start]


# `bridge.tokenizer` can be replaced, and is then read again.
_known: "weakref.WeakKeyDictionary[Any, _Known]" = weakref.WeakKeyDictionary()


def start_of(model: Bridge, own: Any = None) -> Start:
    """The ids that the checkpoint's tokenizer, `own` if it was just read, puts before a text; found once for each.

    If `model.tokenizer.add_bos_token` was changed, that decides.
    """
    current = model.tokenizer
    option = getattr(current, "add_bos_token", None)
    if model not in _known or _known[model].tokenizer is not current:
        _known[model] = _Known(current, option, {option: _read(model, current, own)})
    known = _known[model]
    if option not in known.starts:
        usual = known.starts[known.opened_with]
        ids = _ids_before_text(current) or ()
        rule = f"model.tokenizer.add_bos_token = {option}: {list(ids)} before a text"
        known.starts[option] = Start(ids, usual.bos, rule)
    return known.starts[option]


def adds_bos(tokenizer: Any) -> bool:
    """Whether a tokenizer puts one BOS, and nothing else, before a text."""
    bos = getattr(tokenizer, "bos_token_id", None)
    return bos is not None and _ids_before_text(tokenizer) == (bos,)


def _read(model: Bridge, current: Any, own: Any) -> Start:
    table = int(bool(model.cfg.default_prepend_bos))
    named = f"TransformerLens's table for {type(model.original_model).__name__}"
    config_bos = getattr(
        getattr(model.original_model, "config", None), "bos_token_id", None
    )
    if current is None:
        ids = (config_bos,) if table and isinstance(config_bos, int) else ()
        return Start(ids, config_bos, f"no tokenizer; {named}: {table} BOS")
    own = _of_the_same_tokens(own or _with_checkpoint_settings(model, current), current)
    tokenizer = own or current
    ids = _ids_before_text(tokenizer)
    bos = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else config_bos
    whose = (
        "the checkpoint's tokenizer"
        if own
        else "the bridge's tokenizer (its checkpoint cannot be read)"
    )
    if ids is None:
        ids = (bos,) if table and bos is not None else ()
        return Start(ids, bos, f"{whose} failed on every text; {named}: {table} BOS")
    rule = f"{whose}: {list(ids)} before a text"
    return Start(
        ids, bos, rule if len(ids) == table else f"{rule}; {named} differs: {table} BOS"
    )


def _with_checkpoint_settings(model: Bridge, current: Any) -> Any:
    """The tokenizer with the checkpoint's settings; None if it is not on this machine."""
    from transformers import AutoTokenizer

    commit = getattr(
        getattr(model.original_model, "config", None), "_commit_hash", None
    )
    try:
        return AutoTokenizer.from_pretrained(
            current.name_or_path,
            revision=commit,
            trust_remote_code=False,
            local_files_only=True,
        )
    except (
        Exception
    ):  # the rule in the result says that the bridge's tokenizer was used
        return None


def _of_the_same_tokens(own: Any, current: Any) -> Any:
    """The checkpoint's tokenizer, unless the bridge has another one."""
    if own is None or own is current:
        return own
    known = current.get_vocab()
    return (
        own
        if all(known.get(token) == place for token, place in own.get_vocab().items())
        else None
    )


def _ids_before_text(tokenizer: Any) -> tuple[int, ...] | None:
    """The ids that a tokenizer puts before a text; None if it failed on every text that was tried.

    Texts that contain special tokens are skipped, since BOS, EOS and the unknown token are often the same token.
    """
    special = set(tokenizer.all_special_ids)
    for text in _texts(tokenizer):
        try:
            bare = list(tokenizer(text, add_special_tokens=False)["input_ids"])
            whole = list(tokenizer(text)["input_ids"])
        except (
            Exception
        ):  # a word-level tokenizer without an unknown token raises its library's error
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


def warn_of_start(model: Bridge, rows: list[list[int]]) -> None:
    """Warn if ids do not begin as this model's tokenizer begins a text. One BOS that it does not add is common."""
    start, own = list(start_of(model).ids), start_of(model).bos
    usual = [start] if start or own is None else [start, [own]]
    odd = [
        row
        for row in rows
        if not any(
            row[: len(u)] == u and row[len(u) : len(u) + 1] != [own] for u in usual
        )
    ]
    if not odd:
        return
    whose = (
        "this model, which has no tokenizer,"
        if model.tokenizer is None
        else "this model's tokenizer"
    )
    twice = own is not None and odd[0][: len(start) + 1] == [*start, own]
    remark(
        f"A prompt begins with the ids {odd[0][: len(start) + 1]}, and {whose} begins a text with "
        f"{start or 'none'} (BOS: {own}). It is measured as it is."
        + (
            " Leave the BOS out of the text, or use `squashlens.prompts.tokenize(model, text, bos='none')`."
            * twice
        )
    )
