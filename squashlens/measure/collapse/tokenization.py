"""How texts with repeats are tokenized, and how comparing texts instead of tokens changes measurements of collapse.

Theorem 4.2 repeats a *token*. Writing one more 1 repeats a *character*, and the effect depends on the tokenizer: 111 →
1111 may repeat the last token, add another token (111·1), or change earlier tokens (11·11).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import xarray as xr

from squashlens._typing import Bridge, Distance, Scale
from squashlens.engine.capturing.pairs import PairRun
from squashlens.engine.proving.proof import require_sound
from squashlens.engine.text.tokens import start_ids, tokenize
from squashlens.measure.collapse._texts import Text, coords_of, facts_of, held_by, table_of, written_texts
from squashlens.measure.collapse.metric import Metric, with_y
from squashlens.measure.collapse.pairs import with_passes
from squashlens.measure.measurement import measurement
from squashlens.measure.session import Session
from squashlens.records.results import signed, versions
from squashlens.sequences import Branch, GrowingSequence, Ids, Pair

FORMS: Mapping[str, str] = MappingProxyType({"joined": "", "spaced": " ", "commas": ",", "commas spaced": ", "})


@measurement("tokenization", "splits")
def tokenization(
    model: Any,
    n: int = 12,
    *,
    repeat: str = "1",
    separator: Mapping[str, str] = FORMS,
    prefix: str = "",
    norm: Distance = "linf",
    scale: Scale = "relative",
    progress: bool = True,
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
        scale: unit of the distance: ``"relative"`` (the default), the root mean square of the representation of t(n),
            or ``"absolute"``, the model's units.
        progress: whether to show a progress bar; yes by default.

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
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> sl.tokenization(model.tokenizer, n=3)["pieces"].sel(form="commas").values.tolist()
    ['1', '1·,·1', '1·,·1·,·1']
    >>> ds = sl.tokenization(model, n=4, progress=False)
    >>> ds["pair"].any("repeats").to_series().to_dict()
    {'joined': True, 'spaced': True, 'commas': False, 'commas spaced': False}
    >>> artefact = abs(ds["naive"] - ds["distance"]).sel(layer=6).max("repeats")
    >>> (artefact > 0).to_series().to_dict()
    {'joined': False, 'spaced': False, 'commas': True, 'commas spaced': True}
    """
    metric = Metric(norm, scale)
    if getattr(model, "original_model", None) is None:
        return splits(model, n, repeat=repeat, separator=separator, prefix=prefix)
    sound = require_sound(model)
    texts = written_texts(sound, n, repeat, separator, prefix)
    lead = start_ids(sound, "family")
    compared = [_compared(lead, row) for row in texts.values()]
    every = [ids for row in compared for ids in row]
    for ids in every:
        tokenize(sound, torch.tensor(ids))
    session = Session.without_prompt(
        sound, torch.tensor(max(every, key=len)), "family", "tokenization", n=n, repeat=repeat,
        separator=dict(separator), prefix=prefix, norm=norm, scale=scale,
    )  # fmt: skip
    streams = [_run(sound, row, progress).streams([Branch(0, ids) for ids in row]) for row in compared]
    thirds = [found.values.chunk(3, dim=1) for found in streams]
    naive = torch.stack([metric.gap(text, longer) for text, longer, _ in thirds])
    true = torch.stack([metric.gap(text, doubled) for text, _, doubled in thirds])
    dims = ("form", "layer", "repeats")
    found = table_of(sound, texts, repeat)
    found |= with_y("naive", naive, f"{norm} distance of the texts with n and n + 1 repeats", metric.units, dims)
    found |= with_y("distance", true, f"{norm} distance of v and v*", metric.units, dims)
    coords = coords_of(n, separator) | {"layer": np.arange(len(streams[0].values) - 1)}
    return with_passes(session, *streams, **facts_of(sound)).dataset("tokenization and collapse", coords, found)


def splits(
    tokenizer: Any, n: int = 12, *, repeat: str = "1", separator: Mapping[str, str] = FORMS, prefix: str = ""
) -> xr.Dataset:
    """The part of `tokenization` that needs only a tokenizer, or a model that has one."""
    held = held_by(tokenizer)
    texts = written_texts(held, n, repeat, separator, prefix)
    call = {"function": "tokenization", "n": n, "repeat": repeat, "separator": dict(separator), "prefix": prefix}
    facts = {**facts_of(held), "versions": versions(), "call": call}
    return signed("tokenization of repeats", coords_of(n, separator), table_of(held, texts, repeat), facts)


def _compared(lead: Ids, row: list[Text]) -> list[Ids]:
    """The prompts with 1 … n repeats, the same with one more repeat, and v* of each prompt with 1 … n repeats."""
    whole = [(*lead, *text.ids) for text in row]
    pairs = [Pair(ids, (*ids, ids[-1])) for ids in whole[:-1]]
    return [*whole[:-1], *whole[1:], *(pair.v_star for pair in pairs)]


def _run(model: Bridge, row: list[Ids], progress: bool) -> PairRun:
    """The run of all prompts of one form; prompts that are prefixes of the longest one share its pass."""
    trunk = max(row, key=len)
    sequence = GrowingSequence("texts of one form", content=trunk, alphabet=tuple(dict.fromkeys(trunk)))
    return PairRun(model, sequence, (len(trunk),), torch.tensor([trunk]), "auto", None, progress)
