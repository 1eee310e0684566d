"""Tokens in: text or ids become a checked (prompt, position) tensor that begins as the checkpoint's tokenizer begins.

A Gemma without its BOS, or with two, is another model as far as its numbers go; both are refused unless asked
for by name. Padding is refused, since it moves positions and changes sums.
"""

import unicodedata
from collections.abc import Iterable
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor

from squashlens._typing import Bos, Bridge, one_of, shown
from squashlens.errors import InputError
from squashlens.model.anatomy import device_of
from squashlens.model.fingerprint import digest
from squashlens.model.given import Prompts, each_of
from squashlens.model.locks import exclusive
from squashlens.model.positions import longest_prompt
from squashlens.model.start import start_of
from squashlens.model.templates import rendered
from squashlens.model.vocabulary import refuse_unknown_words


@exclusive
def tokens(model: Bridge, prompts: Prompts, *, bos: Bos = "family") -> Int[Tensor, "prompt position"]:
    """Token ids of one or several equal-length prompts, checked.

    `prompts` is text, a list of texts, or ids of shape (position) or (prompt, position): a list, a nested list, a NumPy
    array or a tensor of integers. `bos` says what may lead:
    ``"family"`` what the checkpoint's own tokenizer puts in front of a text (one BOS for Gemma and Llama, nothing for
    Qwen, GPT-2 and OLMo 2), ``"one"``, ``"none"``, or ``"as-given"`` (ids only: no check). Text is given that start.
    Ids must have it already, nothing is added to them; where the tokenizer adds nothing, they may start with one BOS.
    A model without a tokenizer begins as TransformerLens's table for its class says. Results state the rule that was
    taken, as `bos_rule`.

    Refuses: empty prompts, prompts longer than the context, ids outside the vocabulary, words that the
    tokenizer does not know, prompts of unequal length, a missing or doubled BOS.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> sl.tokens(model, "How many ones are in the following sequence? 110 =").shape
    torch.Size([1, 14])
    """
    one_of(bos, Bos, "bos")
    ids = _of_one_length(_rows(model, prompts, bos))
    _check(model, ids)
    if bos != "as-given":
        _check_start(model, ids, bos)
    return ids.to(device_of(model))


def start_ids(model: Bridge, bos: Bos) -> tuple[int, ...]:
    """The ids in front of a text: those of the checkpoint's tokenizer, one BOS, or none."""
    if bos == "family":
        return start_of(model).ids
    if bos == "none":
        return ()
    start = bos_id(model)
    if start is None:
        raise InputError("bos='one' is asked of a model that has no BOS token.", "Use bos='family' or bos='none'.")
    return (start,)


def bos_id(model: Bridge) -> int | None:
    """The id of the BOS token, from the checkpoint's tokenizer or else the configuration."""
    return start_of(model).bos


def count_bos(model: Bridge, ids: Int[Tensor, "prompt position"]) -> int:
    """Leading tokens of the first prompt that no text is made of: BOS, or the others that the tokenizer begins with."""
    start = start_of(model)
    return int(_leading(ids, {*start.ids, start.bos})[0])


def _leading(ids: Int[Tensor, "prompt position"], of: Iterable[int | None]) -> Int[Tensor, " prompt"]:
    known = torch.tensor([i for i in of if i is not None], dtype=ids.dtype, device=ids.device)
    return torch.isin(ids, known).long().cumprod(dim=-1).sum(dim=-1)


def rows_of(model: Bridge, prompts: Prompts, bos: Bos) -> list[list[int]]:
    """The ids of each prompt, of any lengths: what `tokens` gives for it alone, with all that it refuses."""
    rows = _rows(model, prompts, bos)
    for row in rows:
        tokens(model, row, bos=bos if isinstance(each_of(prompts)[0], list) else "as-given")
    return rows


def _rows(model: Bridge, prompts: Any, bos: Bos) -> list[list[int]]:
    given = each_of(prompts)
    if not given or not isinstance(given[0], str):
        return cast(list[list[int]], given)
    if bos == "as-given":
        raise InputError("bos='as-given' is for token ids.", "For text say 'family', 'one' or 'none'.")
    require_tokenizer(model)
    if not all(isinstance(text, str) and text.strip() for text in given):
        raise InputError("The prompt is empty.", "Pass some text.")
    lead = start_ids(model, bos)
    return [[*lead, *encode(model, cast(str, text))] for text in given]


def _of_one_length(rows: list[list[int]]) -> Tensor:
    if not rows or not all(rows):
        raise InputError("The prompt is empty.", "Pass at least one token.")
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise InputError(
            f"The prompts have {lengths[0]} to {lengths[-1]} tokens; padding would change what is measured.",
            "Measure prompts of unequal length one by one; `sensitivity`, `jacobian_norms`, `path_bound` and "
            "`substitution_effect` do so by themselves.",
        )
    return torch.tensor(rows)


def require_tokenizer(model: Bridge) -> Any:
    """The model's tokenizer; refused where it came without."""
    if model.tokenizer is None:
        raise InputError("This model came without a tokenizer.", "Pass token ids instead of text.")
    return model.tokenizer


def tokenizer_digest(model: Bridge) -> str:
    """Eight hexadecimal digits over the whole tokenizer: answers kept as text are read by it."""
    core = getattr(model.tokenizer, "backend_tokenizer", None)
    if core is not None:
        return digest(core.to_str())
    return "none" if model.tokenizer is None else digest(sorted(model.tokenizer.get_vocab().items()))


def encode(model: Bridge, text: str) -> list[int]:
    """Text as ids, nothing added; words that the tokenizer does not know are refused."""
    tokenizer = require_tokenizer(model)
    core = getattr(tokenizer, "backend_tokenizer", None)
    known = tokenizer.get_vocab()
    unknown_id = getattr(tokenizer, "unk_token_id", None)
    if core is not None:
        refuse_unknown_words(core, text, tokenizer.all_special_tokens, known)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if unknown_id is not None and unknown_id in ids:
        raise InputError(
            f"The tokenizer does not know part of {shown(text)} and puts {tokenizer.unk_token!r} there.",
            "Rephrase the prompt, or pass the ids if that token is meant.",
        )
    if not ids:
        raise InputError(f"{shown(text)} has no tokens.", "Pass some text.")
    return ids


def as_chat(model: Bridge, text: str) -> str:
    """Text as a user's turn in the tokenizer's chat template, up to where the answer begins."""
    tokenizer = require_tokenizer(model)
    if not getattr(tokenizer, "chat_template", None):
        raise InputError("This model's tokenizer has no chat template.", "Use template='none'.")
    turn = [{"role": "user", "content": text}]
    return rendered(tokenizer, turn)


def _check(model: Bridge, ids: Int[Tensor, "prompt position"]) -> None:
    if ids.numel() == 0:
        raise InputError("The prompt is empty.", "Pass at least one token.")
    limit, vocabulary = longest_prompt(model), int(model.cfg.d_vocab)
    if limit is not None and ids.shape[-1] > limit:
        raise InputError(f"The prompt has {ids.shape[-1]} tokens, the model's context {limit}.", "Shorten the prompt.")
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
        raise InputError(
            f"Token ids run from {int(ids.min())} to {int(ids.max())}, the vocabulary from 0 to {vocabulary - 1}.",
            "Tokenise with this model's tokenizer.",
        )


def _check_start(model: Bridge, ids: Tensor, bos: Bos) -> None:
    start = start_ids(model, bos)
    own = bos_id(model)
    found = sorted(set(_leading(ids, [own]).tolist()))
    if len(found) > 1:
        raise InputError("Some prompts start with a BOS and some do not.", "Give all of them the same start.")
    remedy = "Pass text, correct the ids, or say what is meant with bos='one', 'none' or 'as-given'."
    if set(start) - {own}:  # it begins with other tokens than BOS, as GLM does
        if not all(row[: len(start)] == list(start) for row in ids.tolist()):
            raise InputError(f"The prompt does not start with the ids {list(start)}, as this tokenizer does.", remedy)
        return
    optional = bos == "family" and not start and found[0] == 1
    if found[0] != len(start) and not optional:
        raise InputError(f"The prompt starts with {found[0]} BOS tokens (id {own}) where {len(start)} belong.", remedy)


def display_tokens(model: Bridge, ids: Int[Tensor, "prompt position"]) -> list[list[str]]:
    """Each token as printable text: control characters escaped, pieces of a character in their raw form."""
    return [[_display(model.tokenizer, int(i)) for i in row] for row in ids]


def _display(tokenizer: Any, token_id: int) -> str:
    if tokenizer is None:
        return f"#{token_id}"
    text = tokenizer.decode([token_id])
    if "\ufffd" in text or not text:
        text = f"⟨{tokenizer.convert_ids_to_tokens(token_id)}⟩"
    return escape(text)


def escape(text: str) -> str:
    r"""Control, format, separator and surrogate characters as escapes; everything else as it is.

    >>> escape("a\n\x00b")
    'a\\n\\x00b'
    """
    hidden = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    return "".join(c.encode("unicode_escape").decode("ascii") if unicodedata.category(c) in hidden else c for c in text)
