"""Find out how a prompt begins: which tokens the checkpoint's own tokenizer puts before a text, such as one BOS.

TransformerLens decides this with a table of model classes, and opens the tokenizer with ``add_bos_token=True``. The
table disagrees with the tokenizers of OLMo 2, Phi-3, Granite and GPT-2. So the tokenizer is opened here again with the
checkpoint's settings, and a text is tokenized to see what comes first. Results state the rule.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from squashlens._typing import Bridge
from squashlens.model.snapshot import kept_of
from squashlens.remarks import remark


@dataclass(frozen=True)
class Start:
    """The ids before every text, the id of the BOS token if there is one, and the source of both.

    Also the tokenizer, and its option `add_bos_token` as it was opened.
    """

    ids: tuple[int, ...]
    bos: int | None
    rule: str
    tokenizer: Any = None
    option: Any = None


def start_of(model: Bridge, checkpoints: Any = None) -> Start:
    """The ids that the checkpoint's tokenizer puts before a text, found once for each tokenizer of the bridge.

    `checkpoints` is the checkpoint's tokenizer if it was just read; otherwise it is opened here. If
    `model.tokenizer.add_bos_token` was changed since, that decides.
    """
    tokenizer = model.tokenizer
    kept = kept_of(model)
    option = getattr(tokenizer, "add_bos_token", None)
    # `bridge.tokenizer` can be replaced, and is then read again.
    if kept.start is None or kept.start.tokenizer is not tokenizer:
        start = _read(model, tokenizer, checkpoints)
        kept.start = replace(start, tokenizer=tokenizer, option=option)
    if option == kept.start.option:
        return kept.start
    ids = _ids_before_text(tokenizer)
    rule = f"model.tokenizer.add_bos_token = {option}: {list(ids)} before a text"
    return Start(ids, kept.start.bos, rule)


def adds_bos(tokenizer: Any) -> bool:
    """Whether a tokenizer puts one BOS, and nothing else, before a text."""
    bos = getattr(tokenizer, "bos_token_id", None)
    return bos is not None and _ids_before_text(tokenizer) == (bos,)


def _read(model: Bridge, tokenizer: Any, checkpoints: Any) -> Start:
    """What comes before a text: by the checkpoint's tokenizer, or by the bridge's if that cannot be read or differs."""
    config = getattr(model.original_model, "config", None)
    bos: Any = getattr(config, "bos_token_id", None)
    if tokenizer is None:
        is_added = model.cfg.default_prepend_bos and isinstance(bos, int)
        ids: tuple[int, ...] = (bos,) if is_added else ()
        return Start(ids, bos, "no tokenizer; TransformerLens's table of model classes")
    whose = "the checkpoint's tokenizer"
    if checkpoints is None:
        checkpoints = _with_checkpoint_settings(tokenizer, config)
    if checkpoints is None or not _has_the_same_tokens(checkpoints, tokenizer):
        checkpoints = tokenizer
        whose = "the bridge's tokenizer (its checkpoint cannot be read)"
    if checkpoints.bos_token_id is not None:
        bos = checkpoints.bos_token_id
    ids = _ids_before_text(checkpoints)
    return Start(ids, bos, f"{whose}: {list(ids)} before a text")


def _has_the_same_tokens(checkpoints: Any, tokenizer: Any) -> bool:
    """Whether the bridge has the checkpoint's tokenizer, and not another one."""
    if checkpoints is tokenizer:  # a vocabulary as a dict takes much memory
        return True
    return checkpoints.get_vocab().items() <= tokenizer.get_vocab().items()


def _with_checkpoint_settings(tokenizer: Any, config: Any) -> Any:
    """The tokenizer with the checkpoint's settings; None if it is not on this machine."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            tokenizer.name_or_path,
            revision=getattr(config, "_commit_hash", None),
            trust_remote_code=False,
            local_files_only=True,
        )
    except Exception:
        return None  # the rule in the result says that the bridge's tokenizer was used


def _ids_before_text(tokenizer: Any) -> tuple[int, ...]:
    """The ids that a tokenizer puts before a text; none if it failed on every text that was tried.

    Texts that contain special tokens are skipped, since BOS, EOS and the unknown token are often the same token.
    """
    special = set(tokenizer.all_special_ids)
    for text in _texts_to_try(tokenizer):
        try:
            bare = list(tokenizer(text, add_special_tokens=False)["input_ids"])
            whole = list(tokenizer(text)["input_ids"])
        except Exception:  # noqa: S112
            # A word-level tokenizer without an unknown token raises its library's error.
            continue
        if not bare or special & set(bare):
            continue
        # What precedes the ids of the text itself.
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return tuple(whole[:start])
    return ()


def _texts_to_try(tokenizer: Any) -> Iterator[str]:
    """Short texts, of which a tokenizer knows some: also its own words."""
    yield from ("1", "a")
    for token in range(min(len(tokenizer), 500)):
        yield tokenizer.decode([token], skip_special_tokens=True).strip()


def warn_of_start(model: Bridge, rows: list[list[int]]) -> None:
    """Warn if ids do not begin as this model's tokenizer begins a text. One BOS that it does not add is common."""
    start = start_of(model)
    begin = list(start.ids)
    usual_beginnings = [begin]
    if not begin and start.bos is not None:
        usual_beginnings.append([start.bos])
    for row in rows:
        if not _begins_so(row, usual_beginnings, start.bos):
            _warn(row[: len(begin) + 1], start)
            return


def _begins_so(row: list[int], beginnings: list[list[int]], bos: int | None) -> bool:
    """Whether ids begin with one of these beginnings, and no further BOS."""
    for begin in beginnings:
        following = row[len(begin) : len(begin) + 1]  # one id, or none
        if row[: len(begin)] == begin and following != [bos]:
            return True
    return False


def _warn(first: list[int], start: Start) -> None:
    """Warn of a prompt whose first ids, as many as a start has and one more, are others than `start`."""
    begin = list(start.ids)
    text = (
        f"A prompt begins with the ids {first}, and this model's tokenizer begins a text with {begin or 'none'} "
        f"(BOS: {start.bos}). It is measured as it is."
    )
    if start.bos is not None and first == [*begin, start.bos]:
        text += " Leave the BOS out of the text, or use `squashlens.prompts.tokenize(model, text, bos='none')`."
    remark(text)
