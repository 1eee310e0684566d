"""The form of a growing sequence in a provenance, and the lengths at which a prompt has this form."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from squashlens.sequences import GrowingSequence, Scattered


def stated(sequence: GrowingSequence, *, drawn: bool) -> dict[str, Any] | None:
    """The token ids of a sequence by their part; of content that is drawn, only what it is drawn from.

    None for a sequence whose separators differ between lengths, of which no single form can be stated.
    """
    if isinstance(sequence, Scattered):
        return None
    return {
        "prefix": list(sequence.prefix), "suffix": list(sequence.suffix), "breaks": list(sequence.breaks),
        "separators": list(sequence.separators), "ending": sequence.ending, "content_tokens": len(sequence),
        **({"drawn_from": sorted(set(sequence.alphabet))} if drawn else {"content": list(sequence.content)}),
    }  # fmt: skip


def lengths_with(form: Mapping[str, Any] | None, ids: Sequence[int], lengths: Iterable[int]) -> list[int]:
    """The lengths at which the token ids are a prompt of a stated form: with any content that may be drawn, or its own.

    >>> ones = GrowingSequence("ones", content=(1, 1, 1), alphabet=(1, 2), prefix=(7,), suffix=(9,))
    >>> lengths_with(stated(ones, drawn=False), [7, 1, 1, 9], [1, 2, 3])
    [2]
    >>> lengths_with(stated(ones, drawn=True), [7, 2, 1, 9], [1, 2, 3])
    [2]
    """
    if form is None:
        return []
    drawn = form.get("drawn_from")
    content = form["content"] if drawn is None else [drawn[0]] * form["content_tokens"]
    parts: dict[str, Any] = {name: tuple(form[name]) for name in ("prefix", "suffix", "breaks", "separators")}
    sequence = GrowingSequence("", tuple(content), tuple(content), **parts, ending=form["ending"])
    return [n for n in lengths if _is_prompt(sequence, set(drawn or ()), list(ids), n)]


def _is_prompt(sequence: GrowingSequence, drawn: set[int], ids: list[int], n: int) -> bool:
    own = sequence.plain(n).ids(sequence.trunk)
    last = n if sequence.ending is None else n - 1  # of the content that is drawn
    free = {sequence.position(number) for number in range(1, last + 1)} if drawn else set()
    return len(own) == len(ids) and all(
        here == there or (place in free and there in drawn)
        for place, (here, there) in enumerate(zip(own, ids, strict=True))
    )
