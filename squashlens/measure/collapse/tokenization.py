"""How texts with repeats are tokenized, and how comparing texts instead of tokens changes measurements of collapse.

Theorem 4.2 repeats a *token*. Writing one more 1 repeats a *character*, and the effect depends on the tokenizer: 111 →
1111 may repeat the last token, add another token (111·1), or change earlier tokens (11·11).
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import xarray as xr

from squashlens._typing import Bridge, Distance, Scale, positive
from squashlens.errors import InputError
from squashlens.measure.collapse.metric import Metric, with_passes, with_y
from squashlens.measure.registration import measurement
from squashlens.model.text.context import decoded, display_tokens
from squashlens.model.text.start import start_of
from squashlens.model.text.tokens import encode, require_tokenizer, tokenize
from squashlens.model.verify import require_sound
from squashlens.records.labels import Variable, dataset_of
from squashlens.records.provenance import versions
from squashlens.run.captures.pairs import Growing
from squashlens.run.run import Run
from squashlens.sequences import Branch, GrowingSequence, Ids

FORMS: Mapping[str, str] = MappingProxyType(
    {"joined": "", "spaced": " ", "commas": ",", "commas spaced": ", "}
)


class Text(NamedTuple):
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
    scale: Scale = "relative",
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
        norm: as in `collapse`.
        scale: as in `collapse`; ``"relative"`` by default.

    Returns:
        Dataset. Over (form, repeats), with 1 … n repeats: `text`; `tokens`, the number of its tokens; `pieces`, the
        tokens as text, with spaces as ␣; `distinct`, the number of distinct tokens; `uniform`, whether each repeat is
        the same single token (separators may be others); `grows`, whether the ids of the text with one more repeat
        start with all ids of this text, so that no token is merged anew; `pair`, whether they are the ids of this
        text with the *last token* repeated, that is v and v* of Theorem 4.2. Over (form, repeats, place): `piece` and
        `token_id`, the tokens one by one (``""`` and −1 after the last). The coordinate `between` is the separator.
        With a model, over (form, layer, repeats): `naive` and `distance`, dimensionless, or in the model's units if
        absolute. Each also has a variable with `_y`, for y.

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
    asked = {"n": n, "repeat": repeat, "separator": dict(separator), "prefix": prefix}
    alone = getattr(model, "original_model", None) is None
    held = held_by(model) if alone else require_sound(model)
    texts = write_texts(held, n, repeat, separator, prefix)
    coords: dict[str, Any] = {
        "form": np.array(list(separator), dtype=object),
        "repeats": np.arange(1, n + 1),
        "between": ("form", np.array(list(separator.values()), dtype=object)),
    }
    about = {
        "tokenizer": type(held.tokenizer).__name__,
        "vocabulary_size": len(held.tokenizer.get_vocab()),
    }
    found = table_of(held, texts, repeat)
    if alone:
        facts = {
            **about,
            "versions": versions(),
            "call": {"function": "repeat_tokenization", **asked},
        }
        return dataset_of("tokenization of repeats", coords, found, facts)
    run = Run.open(held, "repeat_tokenization")
    lead = start_of(held).ids
    # In each form: the prompts with 1 … n repeats, the same with one more repeat, and v* of each of the first.
    whole = [[(*lead, *text.ids) for text in row] for row in texts.values()]
    compared = [
        [*row[:-1], *row[1:], *((*ids, ids[-1]) for ids in row[:-1])] for row in whole
    ]
    every = [ids for row in compared for ids in row]
    for ids in every:
        tokenize(held, torch.tensor(ids))
    run = run.with_prompts(
        torch.tensor(max(every, key=len)),
        **asked,
        **metric.said,
    )
    streams = [
        _growing(run, row).streams([Branch(0, ids) for ids in row]) for row in compared
    ]
    thirds = [found.values.chunk(3, dim=1) for found in streams]
    naive = torch.stack([metric.gap(text, longer) for text, longer, _ in thirds])
    true = torch.stack([metric.gap(text, doubled) for text, _, doubled in thirds])
    dims = ("form", "layer", "repeats")
    found |= with_y(
        "naive",
        naive,
        f"{norm} distance of the texts with n and n + 1 repeats",
        metric.units,
        dims,
    )
    found |= with_y(
        "distance", true, f"{norm} distance of v and v*", metric.units, dims
    )
    coords["layer"] = np.arange(len(streams[0].values) - 1)
    return with_passes(run, *streams, **about).dataset(
        "tokenization and collapse", coords, found
    )


def _growing(run: Run, row: list[Ids]) -> Growing:
    """The run of all prompts of one form; prompts that are prefixes of the longest one share its pass."""
    trunk = max(row, key=len)
    sequence = GrowingSequence(
        "texts of one form", content=trunk, alphabet=tuple(dict.fromkeys(trunk))
    )
    return Growing(run, sequence, (len(trunk),), torch.tensor([trunk]), "auto")


BETWEEN = "·"  # separates tokens where several are displayed in a row
SPACE = "␣"


def held_by(given: Any) -> Bridge:
    """An object with the attribute `tokenizer`, which reading token ids needs: the model, or one with the tokenizer."""
    if hasattr(given, "tokenizer"):
        require_tokenizer(given)
        return given
    if not (
        callable(given)
        and hasattr(given, "get_vocab")
        and hasattr(given, "convert_ids_to_tokens")
    ):
        raise InputError(
            f"model= is of type {type(given).__name__}, neither a model with a tokenizer nor a Hugging Face tokenizer.",
            "Load a model, give `AutoTokenizer.from_pretrained(…)`, or `PreTrainedTokenizerFast(tokenizer_object=…)`.",
        )
    size = SimpleNamespace(d_vocab=len(cast(Any, given)))
    return cast(Bridge, SimpleNamespace(tokenizer=given, cfg=size))


def write_texts(
    held: Bridge, n: int, repeat: str, separator: Mapping[str, str], prefix: str
) -> dict[str, list[Text]]:
    """The texts of 1 … n + 1 repeats in each form."""
    positive(n, "n", "a number of repeats")
    if not repeat.strip():
        raise InputError(
            f"repeat={repeat!r} is not non-empty text.",
            "Give a digit or a word, such as '1' or 'one'.",
        )
    if not separator:
        raise InputError(
            "separator= has no forms.",
            "Give names with texts, such as separator={'joined': '', 'spaced': ' '}.",
        )
    before = tuple(encode(held, prefix)) if prefix.strip() else ()
    found: dict[str, list[Text]] = {}
    for form, between in separator.items():
        both = f"{repeat}{between}{repeat}"
        if (
            between
            and sum(both.startswith(repeat, place) for place in range(len(both))) > 2
        ):
            raise InputError(
                f"The form {form!r} of separator= writes two repeats as {both!r}, which has more than two {repeat!r}.",
                f"Use a separator that does not form {repeat!r}.",
            )
        try:
            if between.strip():
                encode(
                    held, between
                )  # a tokenizer without a byte fallback would silently drop it
            found[form] = [
                _text(held, k, between.join([repeat] * k), prefix, before)
                for k in range(1, n + 2)
            ]
        except InputError as error:
            raise InputError(
                f"The form {form!r} of separator= cannot be tokenized: {error.cause}",
                f"{error.remedy} Or leave the form out of separator=.",
            ) from error
    return found


def _text(held: Bridge, repeats: int, written: str, prefix: str, before: Ids) -> Text:
    """A text after its prefix. Its own tokens start where the ids differ from those of the prefix alone."""
    ids = tuple(encode(held, prefix + written))
    start = next(
        (k for k, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b),
        min(len(before), len(ids)),
    )
    if start == len(ids):
        raise InputError(
            f"{written!r} adds no token to the prefix.",
            "Give a repeat= that the tokenizer does not drop.",
        )
    return Text(repeats, written, ids, ids[start:])


def table_of(
    held: Bridge, texts: dict[str, list[Text]], repeat: str
) -> dict[str, Variable]:
    """All variables that follow from the token ids, over (form, repeats) and (form, repeats, place)."""
    steps = [list(pairwise(row)) for row in texts.values()]
    every = {token for row in steps for text, _ in row for token in text.content}
    pieces = display_tokens(held, torch.tensor([[*every]]))[0]
    text_of = {
        token: piece.replace(" ", SPACE)
        for token, piece in zip(every, pieces, strict=True)
    }
    width = max(len(text.content) for row in steps for text, _ in row)
    once = _bare(held, encode(held, repeat))
    repeats = {token for token in every if _bare(held, [token]) == once}

    def over(
        dtype: Any, text: str, units: str, value: Callable[[Text, Text], Any]
    ) -> Variable:
        values = np.array(
            [[value(text, longer) for text, longer in row] for row in steps], dtype
        )
        return ("form", "repeats", "place")[: values.ndim], values, text, units

    def filled(values: Iterable[Any], beyond: Any) -> list[Any]:
        return [*values, *[beyond] * width][:width]

    return {
        "text": over(object, "the text", "text", lambda t, _: t.written),
        "tokens": over(
            int, "number of tokens of the text", "1", lambda t, _: len(t.content)
        ),
        "pieces": over(
            object,
            "the tokens of the text as text",
            "text",
            lambda t, _: BETWEEN.join(text_of[k] for k in t.content),
        ),
        "distinct": over(
            int, "number of distinct tokens", "1", lambda t, _: len(set(t.content))
        ),
        "uniform": over(
            bool,
            "whether every repeat is the same single token",
            "1",
            lambda t, _: any(_repeats(held, t, token) for token in repeats),
        ),
        "grows": over(
            bool,
            "whether one more repeat leaves the earlier tokens unchanged",
            "1",
            lambda t, longer: longer.ids[: len(t.ids)] == t.ids,
        ),
        "pair": over(
            bool,
            "whether one more repeat only repeats the last token",
            "1",
            lambda t, longer: longer.ids == (*t.ids, t.ids[-1]),
        ),
        "piece": over(
            object,
            "token as text",
            "text",
            lambda t, _: filled(map(text_of.get, t.content), ""),
        ),
        "token_id": over(int, "token", "id", lambda t, _: filled(t.content, -1)),
    }


def _repeats(held: Bridge, text: Text, token: int) -> bool:
    """Whether each repeat is the given token: it occurs as often, and no token contains a part of the prefix.

    After a prefix that ends in 11, “111 111” may be 111·11·␣·111: two tokens 111, one of which overlaps the prefix.
    """
    as_many = text.content.count(token) == text.repeats
    return as_many and _bare(held, text.content) == _bare(
        held, encode(held, text.written)
    )


def _bare(held: Bridge, ids: Iterable[int]) -> str:
    """Token ids as text without leading and trailing spaces."""
    return decoded(held.tokenizer, [*ids]).strip()
