"""Find out how a prompt begins: which tokens the checkpoint's own tokenizer puts before a text, such as one BOS.

TransformerLens decides this with a table of model classes, and opens the tokenizer with ``add_bos_token=True``. The
table disagrees with the tokenizers of OLMo 2, Phi-3, Granite and GPT-2. So the tokenizer is opened here again with the
checkpoint's settings, and a text is tokenized to see what comes first. Results state the rule, and where the table
differs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from squashlens._typing import Bridge
from squashlens.model.layout import kept_of
from squashlens.remarks import remark


@dataclass(frozen=True)
class Start:
    """The ids before every text, the id of the BOS token if there is one, and the source of both."""

    ids: tuple[int, ...]
    bos: int | None
    rule: str


@dataclass(frozen=True)
class Known:
    """A tokenizer, its option `add_bos_token` as it was opened, and what it puts before a text then."""

    tokenizer: Any
    option: Any
    start: Start


def start_of(model: Bridge, own: Any = None) -> Start:
    """The ids that the checkpoint's tokenizer, `own` if it was just read, puts before a text; found once for each.

    If `model.tokenizer.add_bos_token` was changed, that decides.
    """
    current, kept = model.tokenizer, kept_of(model)
    option = getattr(current, "add_bos_token", None)
    # `bridge.tokenizer` can be replaced, and is then read again.
    if kept.start is None or kept.start.tokenizer is not current:
        kept.start = Known(current, option, _read(model, current, own))
    start = kept.start.start
    if option == kept.start.option:
        return start
    ids = _ids_before_text(current) or ()
    rule = f"model.tokenizer.add_bos_token = {option}: {list(ids)} before a text"
    return Start(ids, start.bos, rule)


def adds_bos(tokenizer: Any) -> bool:
    """Whether a tokenizer puts one BOS, and nothing else, before a text."""
    bos = getattr(tokenizer, "bos_token_id", None)
    return bos is not None and _ids_before_text(tokenizer) == (bos,)


def _read(model: Bridge, current: Any, own: Any) -> Start:
    """What the checkpoint's tokenizer puts before a text; where there is none, TransformerLens's table decides."""
    table = int(bool(model.cfg.default_prepend_bos))
    named = f"TransformerLens's table for {type(model.original_model).__name__}"
    config = getattr(model.original_model, "config", None)
    bos = getattr(config, "bos_token_id", None)
    whose, ids = "no tokenizer", None
    if current is not None:
        own = own or _with_checkpoint_settings(current, config)
        whose = "the checkpoint's tokenizer"
        if own is None or not _has_the_same_tokens(own, current):
            own = current
            whose = "the bridge's tokenizer (its checkpoint cannot be read)"
        ids = _ids_before_text(own)
        bos = bos if own.bos_token_id is None else own.bos_token_id
    if ids is None:
        failed = " failed on every text" if current is not None else ""
        ids = (bos,) if table and isinstance(bos, int) else ()
        return Start(ids, bos, f"{whose}{failed}; {named}: {table} BOS")
    rule = f"{whose}: {list(ids)} before a text"
    if len(ids) != table:
        rule = f"{rule}; {named} differs: {table} BOS"
    return Start(ids, bos, rule)


def _with_checkpoint_settings(current: Any, config: Any) -> Any:
    """The tokenizer with the checkpoint's settings; None if it is not on this machine."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            current.name_or_path,
            revision=getattr(config, "_commit_hash", None),
            trust_remote_code=False,
            local_files_only=True,
        )
    except Exception:
        return None  # the rule in the result says that the bridge's tokenizer was used


def _has_the_same_tokens(own: Any, current: Any) -> bool:
    """Whether the bridge has the checkpoint's tokenizer, and not another one."""
    return own is current or own.get_vocab().items() <= current.get_vocab().items()


def _ids_before_text(tokenizer: Any) -> tuple[int, ...] | None:
    """The ids that a tokenizer puts before a text; None if it failed on every text that was tried.

    Texts that contain special tokens are skipped, since BOS, EOS and the unknown token are often the same token.
    """
    special = set(tokenizer.all_special_ids)
    for text in _texts(tokenizer):
        try:
            bare = list(tokenizer(text, add_special_tokens=False)["input_ids"])
            whole = list(tokenizer(text)["input_ids"])
        except Exception:  # noqa: S112
            # A word-level tokenizer without an unknown token raises its library's error.
            continue
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
    start, bos = [*start_of(model).ids], start_of(model).bos
    usual = [start] if start or bos is None else [start, [bos]]

    def is_usual(row: list[int]) -> bool:
        begins = (
            row[: len(u)] == u and row[len(u) : len(u) + 1] != [bos] for u in usual
        )
        return any(begins)

    odd = next((row for row in rows if not is_usual(row)), None)
    if odd is None:
        return
    whose = "this model's tokenizer"
    if model.tokenizer is None:
        whose = "this model, which has no tokenizer,"
    first = odd[: len(start) + 1]
    text = (
        f"A prompt begins with the ids {first}, and {whose} begins a text with {start or 'none'} (BOS: {bos}). It is "
        "measured as it is."
    )
    if bos is not None and first == [*start, bos]:
        text += " Leave the BOS out of the text, or use `squashlens.prompts.tokenize(model, text, bos='none')`."
    remark(text)
