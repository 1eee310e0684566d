"""Words, sentences, lines and JSON fields of a prompt, as positions of its tokens.

A token belongs to the piece that has its first character that is no white space. A token of white space alone belongs
to the piece in which it is, or else to the one that follows it. Tokens of the beginning of sequence belong to none.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from squashlens._typing import Pieces
from squashlens.errors import InputError

Piece = tuple[str, int, int]  # its name, and where it starts and ends in the text
SPLITS: dict[str, re.Pattern[str]] = {
    "words": re.compile(r"\S+"),
    "sentences": re.compile(r"\S.*?(?:[.!?…]+[\"'”’)\]]*(?=\s|$)|(?=\n)|$)", re.DOTALL),
    "lines": re.compile(r"[^\n]*\S[^\n]*"),
}
BLANK = re.compile(r"[ \t\n\r]*")
READ = json.JSONDecoder().raw_decode  # a value and the place after it


def pieces_of(text: str, kind: Pieces) -> list[Piece]:
    """The pieces of a text with their places; those of ``"fields"`` are the values of a JSON object with their keys.

    >>> pieces_of("It is. So?", "sentences")
    [('It is.', 0, 6), ('So?', 7, 10)]
    >>> pieces_of('Read {"a": {"b": 1}, "c": [2]}.', "fields")
    [('a.b', 12, 18), ('c[0]', 27, 28)]
    """
    if kind != "fields":
        return [(match.group().strip(), match.start(), match.end()) for match in SPLITS[kind].finditer(text)]
    for start in (match.start() for match in re.finditer(r"[{\[]", text)):
        try:
            value, _ = READ(text, start)
        except (ValueError, RecursionError):
            continue
        if value and (isinstance(value, dict) or isinstance(value[0], dict)):
            return list(_fields(text, start, "", start))[:-1]
    raise InputError(
        "spans='fields' needs a prompt with a JSON object, and this one has none that can be read.",
        "Use spans='lines', or give positions by name.",
    )


def _fields(text: str, place: int, name: str, since: int) -> Iterator[Piece]:
    """The fields of the JSON value at `place`, whose key is at `since`; last, an empty piece at its end."""
    if text[place] not in "{[":
        end = READ(text, place)[1]
        yield name, since, end
        yield "", end, end
        return
    opened, number = text[place], 0
    place = _past_blank(text, place + 1)
    while text[place] not in "}]":
        key, since = f"{name}[{number}]", place
        if opened == "{":
            read, place = READ(text, place)
            key = f"{name}.{read}" if name else read
            place = _past_blank(text, _past_blank(text, place) + 1)  # the colon
        *found, (_, place, _) = _fields(text, place, key, since)
        yield from found
        number += 1
        place = _past_blank(text, place)
        if text[place] == ",":
            place = _past_blank(text, place + 1)
    yield "", place + 1, place + 1


def _past_blank(text: str, place: int) -> int:
    """The place after the white space of JSON."""
    match = BLANK.match(text, place)
    return place if match is None else match.end()


def positions_in(texts: Sequence[str], pieces: Sequence[Piece]) -> list[list[int]]:
    """The tokens of each piece, for the text of every token up to the end of it, see `ends_of`.

    >>> positions_in(["It", " is", ".", " So"], [("It is.", 0, 6), ("So", 7, 9)])
    [[0, 1, 2], [3]]
    """
    found: list[list[int]] = [[] for _ in pieces]
    whole, place = "".join(texts), 0
    for token, text in enumerate(texts):
        place, start = place + len(text), place
        seen = re.compile(r"\S").search(whole, start, place)
        at = start if seen is None else seen.start()
        inside = [i for i, (_, first, last) in enumerate(pieces) if first <= at < last]
        if not inside and seen is None:
            inside = [i for i, (_, first, _) in enumerate(pieces) if first >= at][:1]
        for i in inside[:1]:
            found[i].append(token)
    return found


def texts_of(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text that each token adds to the text of those before it; "" for the first parts of a character."""
    texts: list[str] = []
    before = ""
    for end in range(1, len(ids) + 1):
        now = tokenizer.decode(ids[:end], clean_up_tokenization_spaces=False)
        complete = now.rstrip("\ufffd") if end < len(ids) else now
        complete = complete if complete.startswith(before) else before
        texts.append(complete[len(before) :])
        before = complete
    return texts
