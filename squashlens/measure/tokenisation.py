"""What a written repetition is in tokens, and what comparing texts in place of tokens does to collapse.

Theorem 4.2 repeats a *token*. Whoever writes one more 1 repeats a *character*, and the tokenizer decides what that is:

    single digits      111 → 1111        1·1·1 → 1·1·1·1         the last token once more: a pair
    three at a time    111 → 1111        111 → 111·1             another token behind: no pair
    merges as it likes 111 → 1111        111 → 11·11             what went before has changed: no pair either
    single digits      1,1 → 1,1,1       1·,·1 → 1·,·1·,·1       two tokens behind: no pair

`splits` says how each form falls apart, for any tokenizer; `tokenisation` measures how far the two *texts* are apart
in a model, beside the D of the true pair.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import xarray as xr

from squashlens._typing import Bridge, Distance, Passes, Scale
from squashlens.arguments import validated
from squashlens.measure._pairs import Ruler, Runs, check_choices, with_y
from squashlens.measure._session import Session
from squashlens.measure._texts import Text, coords_of, facts_of, held_by, table_of, written_texts
from squashlens.model.branches import Branch, Ids
from squashlens.model.proof import require_sound
from squashlens.model.registry import measured
from squashlens.model.tokens import start_ids, tokens
from squashlens.results import attributes, versions
from squashlens.sequences import Pair, Sequence

FORMS: Mapping[str, str] = MappingProxyType({"joined": "", "spaced": " ", "commas": ",", "commas spaced": ", "})


@validated
def splits(
    tokenizer: Any, n: int = 12, *, repeat: str = "1", forms: Mapping[str, str] = FORMS, prompt: str = ""
) -> xr.Dataset:
    """How `repeat`, written 1 … n times in each of several forms, falls into tokens.

    Args:
        tokenizer: a Hugging Face tokenizer, or a model that has one. Nothing is added to the text.
        n: most repeats. The text of n + 1 is tokenised too, for what is said about the next.
        repeat: what is written again and again, a digit or a word.
        forms: names of forms, and what each writes between two repeats.
        prompt: text in front, exactly as given: end it with a space if one is meant. Its tokens are not counted;
            one that it shares with the first repeat is.

    Returns:
        Dataset over `form` and `repeats` (1 … n): `text`; `tokens`, how many it is; `pieces`, the tokens as text,
        spaces as ␣; `distinct`, how many different tokens; `uniform`, whether each repeat is the same one token
        (what stands between may be tokens of its own); and about the text with one repeat more: `grows`, whether
        its ids begin with all ids of this one, nothing merged anew; `pair`, whether they are this one's with the
        *last token* repeated: v and v* of Theorem 4.2. Over `place` too, the tokens one by one: `piece` and
        `token_id` (``""`` and −1 behind the last). The coordinate `between` is what a form writes.

    Refuses: what is no tokenizer, a repeat or form that is not text, text that the tokenizer cannot encode, a form
    that writes the repeat between repeats too.

    >>> import squashlens as sl
    >>> ds = sl.splits(sl.load("tiny-gemma", progress=False), n=3)
    >>> ds["pieces"].sel(form="commas").values.tolist()
    ['1', '1·,·1', '1·,·1·,·1']
    >>> ds["pair"].any("repeats").to_series().to_dict()
    {'joined': True, 'spaced': True, 'commas': False, 'commas spaced': False}
    """
    held = held_by(tokenizer)
    texts = written_texts(held, n, repeat, forms, prompt)
    call = {"function": "splits", "n": n, "repeat": repeat, "forms": dict(forms), "prompt": prompt}
    facts = {**facts_of(held), "versions": versions(), "call": call}
    arrays = {
        name: (dims, values, attributes(text, units, facts))
        for name, (dims, values, text, units) in table_of(held, texts, repeat).items()
    }
    return xr.Dataset(
        arrays, coords_of(n, forms), attributes("tokenisation of repeats", "as each variable says", facts)
    )


@measured
def tokenisation(
    model: Bridge,
    n: int = 12,
    *,
    repeat: str = "1",
    forms: Mapping[str, str] = FORMS,
    prompt: str = "",
    norm: Distance = "linf",
    scale: Scale = "relative",
    passes: Passes = "auto",
    progress: bool = True,
) -> xr.Dataset:
    """`splits`, and what they do to collapse: the distance of two texts beside that of the pair it is taken for.

    With t(n) the tokens of n repeats in a form, behind the tokenizer's BOS and the prompt, and a the last of t(n)::

        naive     ‖ last(t(n)) − last(t(n + 1)) ‖      what comparing the two texts gives
        distance  ‖ last(t(n)) − last([t(n), a]) ‖     D of Theorem 4.2's pair

    Where `pair` holds, t(n + 1) *is* [t(n), a] and the two are one number. Elsewhere the texts differ in more than a
    repeated token, and how far they are apart says nothing about collapse.

    Args:
        n, repeat, forms, prompt: as in `splits`.
        norm, scale, passes: as in `collapse`; relative distances are divided by the rms of t(n)'s representation.

    Returns:
        The Dataset of `splits`, and over (form, layer, repeats): `naive` and `distance` (1, or the model's units if
        absolute); with `_y` the same for y.

    Refuses: what `splits` refuses; texts longer than the model's context.

    >>> import squashlens as sl
    >>> ds = sl.tokenisation(sl.load("tiny-gemma", progress=False), n=4, progress=False)
    >>> artefact = abs(ds["naive"] - ds["distance"]).sel(layer=6).max("repeats")
    >>> (artefact > 0).to_series().to_dict()
    {'joined': False, 'spaced': False, 'commas': True, 'commas spaced': True}
    """
    check_choices(norm=norm, scale=scale, passes=passes)
    sound = require_sound(model)
    texts = written_texts(sound, n, repeat, forms, prompt)
    lead = start_ids(sound, "family")
    compared = [_compared(lead, row) for row in texts.values()]
    every = [ids for row in compared for ids in row]
    for ids in every:
        tokens(sound, torch.tensor(ids))
    session = Session.start(
        sound, torch.tensor(max(every, key=len)), "family", "tokenisation", n=n, repeat=repeat, forms=dict(forms),
        prompt=prompt, norm=norm, scale=scale, passes=passes,
    )  # fmt: skip
    ruler = Ruler(norm, scale)
    runs = [_runs(session, row, passes, progress) for row in compared]
    streams = [own.streams([Branch(0, ids) for ids in row]) for own, row in zip(runs, compared, strict=True)]
    thirds = [found.values.chunk(3, dim=1) for found in streams]
    naive = torch.stack([ruler.gap(text, longer) for text, longer, _ in thirds])
    true = torch.stack([ruler.gap(text, doubled) for text, _, doubled in thirds])
    dims = ("form", "layer", "repeats")
    found = table_of(sound, texts, repeat)
    found |= with_y("naive", naive, f"{norm} distance of n and n + 1 repeats as text", ruler.units, dims)
    found |= with_y("distance", true, f"{norm} distance of v and v*", ruler.units, dims)
    coords = coords_of(n, forms) | {"layer": np.array(runs[0].layers)}
    return runs[0].took(*streams, **facts_of(sound)).dataset("tokenisation and collapse", coords, found)


def _compared(lead: Ids, row: list[Text]) -> list[Ids]:
    """The prompts of 1 … n repeats, those of one repeat more, and v* of each of the first."""
    whole = [(*lead, *text.ids) for text in row]
    pairs = [Pair(ids, (*ids, ids[-1])) for ids in whole[:-1]]
    return [*whole[:-1], *whole[1:], *(pair.v_star for pair in pairs)]


def _runs(session: Session, row: list[Ids], passes: Passes, progress: bool) -> Runs:
    """The prompts of one form, along the longest of them: those that only grow share its pass."""
    trunk = max(row, key=len)
    sequence = Sequence("texts of one form", content=trunk, alphabet=tuple(dict.fromkeys(trunk)))
    return Runs(session, sequence, (len(trunk),), passes, None, progress)
