"""How texts with repeats are tokenized, and how comparing texts instead of tokens changes measurements of collapse.

Theorem 4.2 repeats a *token*. Writing one more 1 repeats a *character*, and the effect depends on the tokenizer: 111 →
1111 may repeat the last token, add another token (111·1), or change earlier tokens (11·11).
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from os.path import commonprefix
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import torch
import xarray as xr

from squashlens._typing import Bridge, Distance, Scale, positive
from squashlens.errors import InputError
from squashlens.measure.collapse.metric import Metric, with_passes
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.variables import variables_of, with_y
from squashlens.model.text.context import decoded, display_tokens
from squashlens.model.text.start import start_of
from squashlens.model.text.tokens import encode, require_tokenizer, tokenize
from squashlens.model.verify import require_sound
from squashlens.records.labels import Variable, dataset_of
from squashlens.records.provenance import versions
from squashlens.run.captures.pairs import Growing, Streams
from squashlens.run.run import Run
from squashlens.sequences import Branch, GrowingSequence, Ids

FORMS: Mapping[str, str] = MappingProxyType(
    {"joined": "", "spaced": " ", "commas": ",", "commas spaced": ", "}
)
BETWEEN = "·"  # separates tokens where several are displayed in a row
SPACE = "␣"


class RepeatedText(NamedTuple):
    """A text of some repeats: its characters, its token ids with the prefix, and the ids without it."""

    repeats: int
    written: str
    ids: Ids
    content: Ids


@measurement("repeat_tokenization")
def repeat_tokenization(
    model: Any,
    n: int = 12,
    *,
    repeat: str = "1",
    separator: Mapping[str, str] = FORMS,
    prefix: str = "",
    norm: Distance = "linf",
    scale: Scale = "absolute",
) -> xr.Dataset:
    """How text that repeats a digit or word is tokenized, and what that does to the distance D.

    The text is written in several forms, with 1 to n repeats. In a model, two distances are measured as well. Let t(n)
    be the tokens of n repeats in a form, after BOS and the prefix, and let a be the last token of t(n)::

        naive     ‖ last(t(n)) − last(t(n + 1)) ‖      distance of the two texts
        distance  ‖ last(t(n)) − last([t(n), a]) ‖     distance D of the pair of Theorem 4.2

    Where `pair` holds, t(n + 1) equals [t(n), a], and the two distances are equal. Otherwise the texts
    differ in more than a repeated token, and their distance is not a measurement of collapse.

    Args:
        model: the model to measure; or only a Hugging Face tokenizer, for which no distance is measured.
        n: largest number of repeats, 12 by default. The text with n + 1 repeats is tokenized too, for comparison.
        repeat: text that is repeated, a digit or a word; ``"1"`` by default.
        separator: forms by name, each with the text between two repeats; by default nothing, a space, a comma, and a
            comma with a space.
        prefix: text before the repeats, used exactly as given, with its spaces; empty by default. Its tokens are not
            counted, except a token that it shares with the first repeat.
        norm, scale: as in `collapse`.

    Returns:
        Dataset. Over (form, repeats), with 1 … n repeats: `text`; `tokens`, the number of its tokens; `pieces`, the
        tokens as text, with spaces as ␣; `uniform`, whether each repeat is
        the same single token (separators may be others); `grows`, whether the ids of the text with one more repeat
        start with all ids of this text, so that no token is merged anew; `pair`, whether they are the ids of this
        text with the *last token* repeated, that is v and v* of Theorem 4.2. Over (form, repeats, place): `piece` and
        `token_id`, the tokens one by one (``""`` and −1 after the last). The coordinate `between` is the separator.
        With a model, over (form, layer, repeats): `naive` and `distance`, in the model's units, or dimensionless if
        relative. Each also has a variable with `_y`, for y.

    Raises:
        InputError: something that has no tokenizer, text that the tokenizer cannot encode, a separator that contains
            the repeated text or forms it together with a repeat, or texts longer than the model's context.

    Source: Barbero et al. 2024, Theorem 4.2.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> sl.repeat_tokenization(model.tokenizer, n=3)["pieces"].sel(form="commas").values.tolist()
    ['1', '1·,·1', '1·,·1·,·1']
    >>> ds = sl.repeat_tokenization(model, n=4)
    >>> ds["pair"].any("repeats").to_series().to_dict()
    {'joined': True, 'spaced': True, 'commas': False, 'commas spaced': False}
    >>> artefact = abs(ds["naive"] - ds["distance"]).sel(layer=6).max("repeats")
    >>> (artefact > 0).to_series().to_dict()
    {'joined': False, 'spaced': False, 'commas': True, 'commas spaced': True}
    """
    metric = Metric(norm, scale)
    forms = dict(separator)
    # Only a bridge has an `original_model`.
    is_tokenizer = getattr(model, "original_model", None) is None
    reader = reader_of(model) if is_tokenizer else require_sound(model)
    texts = write_texts(reader, n, repeat, forms, prefix)
    variables = table_of(reader, texts, repeat)
    coords: dict[str, Any] = {
        "form": np.array(list(forms), dtype=object),
        "repeats": np.arange(1, n + 1),
        "between": ("form", np.array(list(forms.values()), dtype=object)),
    }
    facts: dict[str, Any] = {
        "tokenizer": type(reader.tokenizer).__name__,
        "vocabulary_size": len(reader.tokenizer.get_vocab()),
    }
    if is_tokenizer:
        facts["versions"] = versions()
        facts["call"] = this_call()
        return dataset_of("tokenization of repeats", coords, variables, facts)
    run = Run.open(reader, **this_call())
    bos = start_of(reader).ids
    prompts_by_form = [_compared(bos, of_form) for of_form in texts]
    all_prompts = list(chain.from_iterable(prompts_by_form))
    for ids in all_prompts:
        tokenize(reader, torch.tensor(ids))  # raises beyond the model's context
    longest = torch.tensor(max(all_prompts, key=len))
    run = run.with_prompts(longest)
    streams = [_streams_of_form(run, prompts) for prompts in prompts_by_form]
    naive: list[torch.Tensor] = []
    distance: list[torch.Tensor] = []
    for form in streams:
        # (layer, prompt, d) in the order of `_compared`
        v, longer, v_star = form.values.chunk(3, dim=1)
        naive.append(metric.gap(v, longer))
        distance.append(metric.gap(v, v_star))
    dims = "form layer repeats"
    longer_text = f"{norm} distance of the texts with n and n + 1 repeats"
    table = {
        "naive": (dims, longer_text, metric.units),
        "distance": (dims, f"{norm} distance of v and v*", metric.units),
    }
    distances = {"naive": torch.stack(naive), "distance": torch.stack(distance)}
    variables |= with_y(variables_of(table, distances))
    coords["layer"] = np.arange(len(streams[0].values) - 1)  # the last entry is y
    run = with_passes(run, *streams, **facts)
    return run.dataset("tokenization and collapse", coords, variables)


def _compared(bos: Ids, texts: Sequence[RepeatedText]) -> list[Ids]:
    """The prompts of one form: those with 1 … n repeats, those with one more, and v* of each of the first.

    `texts` has the texts with 1 … n + 1 repeats, and `bos` what precedes each.
    """
    prompts = [bos + text.ids for text in texts]
    v = prompts[:-1]
    longer = prompts[1:]
    v_star = [ids + ids[-1:] for ids in v]
    return v + longer + v_star


def _streams_of_form(run: Run, prompts: list[Ids]) -> Streams:
    """The streams of all prompts of one form; prompts that are prefixes of the longest one share its pass."""
    trunk = max(prompts, key=len)
    # `Growing` runs prompts on the trunk of a sequence: here the longest prompt, as its content.
    alphabet = tuple(dict.fromkeys(trunk))
    sequence = GrowingSequence("texts of one form", content=trunk, alphabet=alphabet)
    growing = Growing(run, sequence, (len(trunk),), torch.tensor([trunk]))
    return growing.streams([Branch(0, ids) for ids in prompts])


def reader_of(given: Any) -> Bridge:
    """The given model if it has a tokenizer; for a tokenizer, an object that stands for a model in reading token ids.

    Its attributes are `tokenizer`, and `cfg.d_vocab`, the size of the vocabulary.
    """
    if hasattr(given, "tokenizer"):
        require_tokenizer(given)
        return given
    methods = ("__call__", "get_vocab", "convert_ids_to_tokens")
    if not all(hasattr(given, method) for method in methods):
        raise InputError(
            f"model= is of type {type(given).__name__}, neither a model with a tokenizer nor a Hugging Face tokenizer.",
            "Load a model, give `AutoTokenizer.from_pretrained(…)`, or `PreTrainedTokenizerFast(tokenizer_object=…)`.",
        )
    size = SimpleNamespace(d_vocab=len(cast(Any, given)))
    return cast(Bridge, SimpleNamespace(tokenizer=given, cfg=size))


def write_texts(
    reader: Bridge, n: int, repeat: str, separator: Mapping[str, str], prefix: str
) -> list[list[RepeatedText]]:
    """The texts of 1 … n + 1 repeats in each form, (form, repeats).

    `separator` has for each form the text between two repeats, and `prefix` is before the first. Raises for a form that
    cannot be tokenized, or whose separator makes further repeats.
    """
    positive(n, "n", "a number of repeats")
    if not repeat.strip():
        raise InputError(
            f"repeat={repeat!r} is not non-empty text.",
            "Give a digit or a word, such as '1' or 'one'.",
        )
    prefix_ids = tuple(encode(reader, prefix)) if prefix.strip() else ()
    texts: list[list[RepeatedText]] = []
    for form, between in separator.items():
        two = f"{repeat}{between}{repeat}"
        occurrences = re.findall(f"(?={re.escape(repeat)})", two)  # overlapping ones
        if between and len(occurrences) > 2:
            raise InputError(
                f"The form {form!r} of separator= writes two repeats as {two!r}, which has more than two {repeat!r}.",
                f"Use a separator that does not form {repeat!r}.",
            )
        try:
            if between.strip():
                # A tokenizer without a byte fallback would silently drop it.
                encode(reader, between)
            texts_of_form: list[RepeatedText] = []
            for k in range(1, n + 2):
                written = between.join([repeat] * k)
                text = _text(reader, k, written, prefix, prefix_ids)
                texts_of_form.append(text)
            texts.append(texts_of_form)
        except InputError as error:
            raise InputError(
                f"The form {form!r} of separator= cannot be tokenized: {error.cause}",
                f"{error.remedy} Or leave the form out of separator=.",
            ) from error
    return texts


def _text(
    reader: Bridge, repeats: int, written: str, prefix: str, prefix_ids: Ids
) -> RepeatedText:
    """A text `written` after its prefix. Its own tokens start where the ids differ from those of the prefix alone.

    So a token that the prefix's last characters share with the first repeat is one of its own.
    """
    ids = tuple(encode(reader, prefix + written))
    shared = commonprefix([prefix_ids, ids])  # noqa: RUF071 - ids, not paths
    content = ids[len(shared) :]
    if not content:
        raise InputError(
            f"{written!r} adds no token to the prefix.",
            "Give a repeat= that the tokenizer does not drop.",
        )
    return RepeatedText(repeats, written, ids, content)


BY_FORM = "form repeats"
BY_PLACE = "form repeats place"
TABLE = {
    "text": (BY_FORM, "the text", "text"),
    "tokens": (BY_FORM, "number of tokens of the text", "1"),
    "pieces": (BY_FORM, "the tokens of the text as text", "text"),
    "uniform": (BY_FORM, "whether every repeat is the same single token", "1"),
    "grows": (
        BY_FORM,
        "whether one more repeat leaves the earlier tokens unchanged",
        "1",
    ),
    "pair": (BY_FORM, "whether one more repeat only repeats the last token", "1"),
    "piece": (BY_PLACE, "token as text", "text"),
    "token_id": (BY_PLACE, "token", "id"),
}


def table_of(
    reader: Bridge, texts: Sequence[Sequence[RepeatedText]], repeat: str
) -> dict[str, Variable]:
    """All variables that follow from the token ids, over (form, repeats) and (form, repeats, place).

    `texts` has one text more in each form than the result, since each text is compared with the next one.
    """
    rows: list[dict[str, Any]] = []
    for texts_of_form in texts:
        for text, longer in pairwise(texts_of_form):
            rows.append(_properties(reader, text, longer, repeat))
    columns = pd.DataFrame(rows)
    # Lists of tokens become a column for each place, filled after the last token.
    pieces = pd.DataFrame(columns.pop("piece").tolist())
    token_ids = pd.DataFrame(columns.pop("token_id").tolist())
    places = {
        "piece": pieces.fillna(""),
        "token_id": token_ids.fillna(-1).astype(int),
    }
    by_form: dict[str, np.ndarray] = {}
    for name, values in {**columns, **places}.items():
        array = values.to_numpy()
        by_form[name] = array.reshape(len(texts), -1, *array.shape[1:])
    return variables_of(TABLE, by_form)


def _properties(
    reader: Bridge, text: RepeatedText, longer: RepeatedText, repeat: str
) -> dict[str, Any]:
    """The variables of `table_of` for one text, of which `longer` has one more repeat."""
    pieces = pieces_of(reader, text)
    return {
        "text": text.written,
        "tokens": len(text.content),
        "piece": pieces,
        "token_id": text.content,
        "pieces": BETWEEN.join(pieces),
        "uniform": _is_uniform(reader, text, repeat),
        "grows": longer.ids[: len(text.ids)] == text.ids,
        "pair": longer.ids == text.ids + text.ids[-1:],  # the last token again
    }


def pieces_of(reader: Bridge, text: RepeatedText) -> list[str]:
    """The tokens of a text as text, with visible spaces."""
    (pieces,) = display_tokens(reader, torch.tensor([text.content]))
    return [piece.replace(" ", SPACE) for piece in pieces]


def _is_uniform(reader: Bridge, text: RepeatedText, repeat: str) -> bool:
    """Whether each repeat is the same token: it occurs as often, and no token contains a part of the prefix.

    After a prefix that ends in 11, “111 111” may be 111·11·␣·111: two tokens 111, one of which overlaps the prefix.
    """
    # With a part of the prefix in a token, the tokens are more text than was written.
    written = _stripped(reader, encode(reader, text.written))
    if _stripped(reader, text.content) != written:
        return False
    once = _stripped(reader, encode(reader, repeat))
    for token, count in Counter(text.content).items():
        if count == text.repeats and _stripped(reader, [token]) == once:
            return True
    return False


def _stripped(reader: Bridge, ids: Iterable[int]) -> str:
    """Token ids as text without leading and trailing spaces."""
    return decoded(reader.tokenizer, list(ids)).strip()
