"""Turn text or ids into a checked (prompt, position) tensor that begins as the checkpoint's tokenizer begins.

Every public function that takes prompts or growing sequences passes `checked_prompts`, which judges the ids, whatever
form they were given in. A missing or doubled BOS changes the numbers of models such as Gemma, and gives a warning.
Padding changes positions and sums: what an attention mask leaves out is removed, and other padding raises an error.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from typing_extensions import TypeAliasType

from squashlens._typing import Bos, Bridge, short_repr
from squashlens.checks.arguments import is_tokenized
from squashlens.errors import InputError, ModelAccessError, one_line
from squashlens.model.anatomy import device_of, longest_prompt, n_tokens
from squashlens.model.digests import digest
from squashlens.model.proof import without_passes
from squashlens.model.text.start import start_of, warn_of_start
from squashlens.remarks import remark
from squashlens.sequences import GrowingSequence

Id = int | np.integer
Tokenized = Mapping[str, Any]  # what a tokenizer of transformers returns
Prompts = TypeAliasType(
    "Prompts",
    str
    | Sequence[str | Id]
    | Sequence[Sequence[Id]]
    | Sequence[Tensor | np.ndarray | Tokenized]
    | np.ndarray
    | Tensor
    | Tokenized,
)

ALLOWED = (
    "Give text, a list of texts, what a tokenizer returns, token ids as a list, nested list, NumPy array or tensor of "
    "integers, or several such lists."
)


def each_of(prompts: Any) -> list[str] | list[list[int]]:
    """The prompts as a list, all of them texts or all of them lists of ids; a single prompt gives a list of one.

    >>> each_of("110"), each_of(["1", "2"]), each_of([2, 5]), each_of([[2, 5], (2, 5)]), each_of(np.array([[2], [5]]))
    (['110'], ['1', '2'], [[2, 5]], [[2, 5], [2, 5]], [[2], [5]])
    """
    if isinstance(prompts, str):
        return [prompts]
    if is_tokenized(prompts):
        return _without_padding(prompts)
    is_list = isinstance(prompts, list | tuple)
    if is_list and prompts and all(map(is_tokenized, prompts)):
        rows: list[list[int]] = []
        for tokenized in prompts:
            rows += _without_padding(tokenized)
        return rows
    items = _plain(prompts)
    if not isinstance(items, list):
        raise InputError(
            f"The prompts are of type {type(prompts).__name__}, which has no order of tokens.",
            ALLOWED,
        )
    kinds = {type(item) for item in items}
    if kinds <= {str}:  # no prompts at all are let through: ids are judged later
        return items
    if kinds == {list}:
        return [_ids(item) for item in items]
    if kinds & {str, list}:
        mixture = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"The prompts are a mixture of {mixture}.", ALLOWED)
    return [_ids(items)]


def _without_padding(tokenized: Tokenized) -> list[list[int]]:
    """The ids of each prompt that a tokenizer returned, without those that its attention mask leaves out."""
    rows = cast(list[list[int]], each_of(tokenized["input_ids"]))
    if tokenized.get("attention_mask") is None:
        return rows
    masks = _plain(tokenized["attention_mask"])
    if not isinstance(masks[0], list):  # of a single prompt
        masks = [masks]
    without_padding: list[list[int]] = []
    for row, mask in zip(rows, masks, strict=True):
        positions = np.flatnonzero(mask).tolist()
        has_gaps = (np.diff(positions) > 1).any()
        if has_gaps:
            raise InputError(
                "attention_mask leaves out tokens between others, which is no padding.",
                "Give the ids without these tokens, or hide them with `squashlens.hooks.mask_tokens`.",
            )
        without_padding.append([row[position] for position in positions])
    return without_padding


def _plain(value: Any) -> Any:
    """Tuples, tensors, and arrays of NumPy, pandas and xarray as lists of Python's texts and numbers, at all levels.

    An item that is one prompt in a row, (1, position), as `tokenize` returns it, becomes that prompt.
    """
    if isinstance(value, list | tuple):
        return [_plain(_single_row(item)) for item in value]
    if isinstance(value, Tensor):
        return value.tolist()
    return np.asanyarray(value).tolist() if hasattr(value, "__array__") else value


def _single_row(value: Any) -> Any:
    """One prompt in a row, as `tokenize` returns it, without the row."""
    is_row = isinstance(value, Tensor | np.ndarray) and value.shape[:-1] == (1,)
    return value[0] if is_row else value


def _ids(ids: list[Any]) -> list[int]:
    """The ids of one prompt. Raises for anything but integers."""
    for token in ids:
        if type(token) is not int:
            raise InputError(
                f"Token ids must be integers, got {short_repr(token)} ({type(token).__name__}).",
                ALLOWED,
            )
    return ids


@without_passes
def tokenize(
    model: Bridge, prompt: Prompts, *, bos: Bos = "family"
) -> Int[Tensor, "prompt position"]:
    """Tokenize one or several prompts of equal length, and check the ids.

    Args:
        prompt: text, a list of texts, or token ids of shape (position) or (prompt, position) as a list, nested list,
            NumPy array or tensor of integers; or what a tokenizer of transformers returns, of which tokens that the
            attention mask leaves out are removed.
        bos: what a text begins with. ``"family"``: what the checkpoint's own tokenizer puts before it (one BOS for
            Gemma and Llama, nothing for Qwen, GPT-2 and OLMo 2). ``"none"``: nothing. Ids are taken as they are.
            Results state the rule as `bos_rule`.

    Returns:
        Token ids (prompt, position), on the model's device.

    Raises:
        InputError: a prompt is empty, padded, longer than the context, or of another length than the others; ids are
            outside the vocabulary; the tokenizer does not know a word.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> sl.prompts.tokenize(model, "How many ones are in the following sequence? 110 =").shape
    torch.Size([1, 14])
    """
    return checked_prompts(model, _of_one_length(_rows(model, prompt, bos)), wanted=bos)


def checked_prompts(
    model: Bridge, ids: Int[Tensor, "prompt position"], *, wanted: Bos = "family"
) -> Int[Tensor, "prompt position"]:
    """The ids on the model's device, after `checked_ids`, and checks of padding and of the first tokens.

    Args:
        wanted: what a text was to begin with; ``"none"`` is asked for and gives no warning.
    """
    checked = checked_ids(model, ids)
    rows = ids.tolist()
    _refuse_padding(model, rows)
    if wanted != "none":
        warn_of_start(model, rows)
    _warn_of_end(model, ids[:, -1].tolist())
    return checked


def checked_ids(
    model: Bridge, ids: Int[Tensor, "prompt position"]
) -> Int[Tensor, "prompt position"]:
    """The ids on the model's device, after a check that they are in the vocabulary and fit into the context."""
    if ids.numel() == 0:
        raise InputError("The prompt is empty.", "Pass at least one token.")
    limit = longest_prompt(model)
    if limit is not None and ids.shape[-1] > limit:
        raise InputError(
            f"The prompt has {ids.shape[-1]} tokens, the model's context {limit}.",
            "Shorten the prompt.",
        )
    _require_embedded(model, int(ids.min()), int(ids.max()))
    return ids.to(device_of(model))


def _require_embedded(model: Bridge, least: int, largest: int) -> None:
    """Raise an error if ids of this range have no embedding."""
    last = n_tokens(model) - 1
    if least < 0 or largest > last:
        raise InputError(
            f"Token ids run from {least} to {largest}, the vocabulary from 0 to {last}.",
            "Tokenize with this model's tokenizer. Leave out padding, and tokens for which the model has no embedding.",
        )


def rows_of(model: Bridge, prompts: Prompts) -> list[list[int]]:
    """The ids of each prompt, which may differ in length; each is checked as by `tokenize`."""
    rows = _rows(model, prompts, "family")
    for row in rows:
        checked_ids(model, _of_one_length([row]))
    return rows


def _rows(model: Bridge, prompts: Any, bos: Bos) -> list[list[int]]:
    """The ids of each prompt: texts are encoded, after what `bos` says they begin with; ids are taken as they are."""
    items = each_of(prompts)
    if not items or not isinstance(items[0], str):
        if bos != "family":
            raise InputError(
                f"bos={bos!r} is for text, and ids were given.",
                "Leave it out: ids are taken as they are.",
            )
        return cast(list[list[int]], items)
    require_tokenizer(model)
    before_text = list(start_of(model).ids) if bos == "family" else []
    return [before_text + encode(model, cast(str, text)) for text in items]


def _of_one_length(rows: list[list[int]]) -> Tensor:
    """The ids as one tensor. Raises for empty prompts, and for prompts of several lengths."""
    if not rows or not all(rows):
        raise InputError("The prompt is empty.", "Pass at least one token.")
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise InputError(
            f"The prompts have {lengths[0]} to {lengths[-1]} tokens; padding would change what is measured.",
            "Measure prompts of unequal length one by one, as `bound_vs_jacobian`, `jacobian_norms`, `path_bound` and "
            "`substitution_effect` do.",
        )
    return torch.tensor(rows, device="cpu")  # whatever the default device is


def require_tokenizer(model: Bridge) -> Any:
    """The model's tokenizer; raises an error if the model has none."""
    if model.tokenizer is None:
        raise InputError(
            "This model has no tokenizer.",
            "Pass token ids instead of text, or load a folder that also has the tokenizer's files.",
        )
    return model.tokenizer


def tokenizer_digest(model: Bridge) -> str:
    """A digest of the whole tokenizer, eight hexadecimal digits, since answers that are stored as text depend on it."""
    if model.tokenizer is None:
        return "none"
    core = getattr(model.tokenizer, "backend_tokenizer", None)  # None for a slow one
    if core is not None:
        return digest(core.to_str())
    return digest(sorted(model.tokenizer.get_vocab().items()))


def encode(model: Bridge, text: str) -> list[int]:
    """The ids of a text, without special tokens; raises an error for words that the tokenizer does not know."""
    tokenizer = require_tokenizer(model)
    core = getattr(tokenizer, "backend_tokenizer", None)
    unknown_id = getattr(tokenizer, "unk_token_id", None)
    if core is not None:
        refuse_unknown_words(core, text, tokenizer.all_special_tokens)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if unknown_id is not None and unknown_id in ids:
        raise InputError(
            f"The tokenizer does not know part of {short_repr(text)} and replaces it by {tokenizer.unk_token!r}.",
            "Rephrase the prompt, or pass ids if you want this token.",
        )
    if not ids:
        raise InputError(f"{short_repr(text)} has no tokens.", "Pass some text.")
    _require_embedded(model, min(ids), max(ids))
    return ids


def as_chat(model: Bridge, text: str) -> str:
    """The text as a user's turn in the tokenizer's chat template, up to the start of the answer."""
    tokenizer = require_tokenizer(model)
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            "This model's tokenizer has no chat template.", "Use template='none'."
        )
    turn = [{"role": "user", "content": text}]
    try:
        return str(
            tokenizer.apply_chat_template(
                turn, tokenize=False, add_generation_prompt=True
            )
        )
    except Exception as error:  # the many errors of Jinja and of templates
        raise ModelAccessError(
            f"The chat template of this model cannot be used: {type(error).__name__}: {one_line(error)}.",
            "Use template='none', or correct the template in its tokenizer_config.json.",
        ) from error


def _warn_of_end(model: Bridge, last: list[int]) -> None:
    """Warn if one of the last tokens is a space alone, in a vocabulary whose words begin with their space."""
    entries = set(vocabulary_of(model, last).values())
    for space in entries & {" ", "▁", "Ġ"}:
        word = model.tokenizer.convert_tokens_to_ids(f"{space}the")
        if word not in (None, model.tokenizer.unk_token_id):
            remark(
                "A prompt ends with a space, which is a token of its own: words begin with theirs in this vocabulary, "
                "so that none is expected after it. It is measured as it is; leave the space out if it is not meant."
            )


def _refuse_padding(model: Bridge, rows: list[list[int]]) -> None:
    """Raise an error for prompts that begin or end with the pad token, unless this token is used otherwise too."""
    holder = model.tokenizer  # of the ids of special tokens
    if holder is None:
        holder = getattr(model.original_model, "config", None)
    pad = getattr(holder, "pad_token_id", None)
    if pad is None or pad in _other_special(model, holder):
        return
    for number, row in enumerate(rows):
        if pad in (row[0], row[-1]):
            raise InputError(
                f"Prompt {number} begins or ends with the pad token (id {pad}), which would be measured as text.",
                "Give what the tokenizer returns, with its attention_mask, or the ids without padding.",
            )


def _other_special(model: Bridge, holder: Any) -> set[Any]:
    """The ids of special tokens but the pad token: those before a text, BOS, EOS and the unknown token.

    `holder` is the tokenizer or the configuration.
    """
    start = start_of(model)
    special: set[Any] = {*start.ids, start.bos}
    for name in ("bos", "eos", "unk"):
        value = getattr(holder, f"{name}_token_id", None)
        ids = value if isinstance(value, list | tuple) else [value]
        special.update(ids)
    return special


def vocabulary_of(model: Bridge, ids: Collection[int]) -> dict[int, str]:
    """The entries of the model's tokenizer for some ids; without those that have none, such as ids of a bare model."""
    if model.tokenizer is None:
        return {}
    inside = [token for token in sorted(set(ids)) if 0 <= token < n_tokens(model)]
    entry_of: dict[int, str] = {}
    entries = model.tokenizer.convert_ids_to_tokens(inside)
    for token, entry in zip(inside, entries, strict=True):
        if entry is not None:
            entry_of[token] = entry
    return entry_of


def require_same_vocabulary(model: Bridge, sequence: GrowingSequence) -> None:
    """Raise an error for a growing sequence whose ids are other tokens in this model than where it was made."""
    if model.tokenizer is None:
        return
    used = sequence.used & sequence.texts.keys()
    in_this_model = vocabulary_of(model, used)
    for token in sorted(used):
        if in_this_model.get(token) != sequence.texts[token]:
            raise InputError(
                f"The sequence {sequence.name!r} was made with another tokenizer: its token {token} is "
                f"{sequence.texts[token]!r} there, and {in_this_model.get(token, 'no token')!r} in this model.",
                "Make the sequence with this model, as in `squashlens.prompts.repeated(model, '1', 64)`.",
            )


def refuse_unknown_words(core: Any, text: str, special: Iterable[str]) -> None:
    """Raise an error for words that a word-level tokenizer does not know, or would replace by its unknown token.

    `core` is the fast tokenizer of the package tokenizers, and `special` the texts of its special tokens.
    """
    if core.pre_tokenizer is None or type(core.model).__name__ != "WordLevel":
        return
    for token in special:  # special tokens are read before the text is split into words
        text = text.replace(token, " ")
    for word, _ in core.pre_tokenizer.pre_tokenize_str(text):
        if core.token_to_id(word) is None:
            raise InputError(
                f"The word {word!r} is not in this model's vocabulary.",
                "`model.tokenizer.get_vocab()` lists the words.",
            )
