"""Words, sentences and lines of a prompt, as positions of its tokens.

A token belongs to the piece that has its first character that is no white space. A token of white space alone belongs
to the piece in which it is, or else to the one that follows it. Tokens of the beginning of sequence belong to none.
"""

import re
from collections.abc import Sequence

from squashlens._typing import Pieces

Piece = tuple[str, int, int]  # its name, and where it starts and ends in the text
SPLITS: dict[Pieces, re.Pattern[str]] = {
    "words": re.compile(r"\S+"),
    "sentences": re.compile(r"\S.*?(?:[.!?…]+[\"'”’)\]]*(?=\s|$)|(?=\n)|$)", re.DOTALL),
    "lines": re.compile(r"[^\n]*\S[^\n]*"),
}


def pieces_of(text: str, kind: Pieces) -> list[Piece]:
    """The pieces of a text with their places.

    >>> pieces_of("It is. So?", "sentences")
    [('It is.', 0, 6), ('So?', 7, 10)]
    """
    pieces: list[Piece] = []
    for match in SPLITS[kind].finditer(text):
        pieces.append((match.group().strip(), match.start(), match.end()))
    return pieces


def positions_in(texts: Sequence[str], pieces: Sequence[Piece]) -> list[list[int]]:
    """The tokens of each piece, for the text of every token up to the end of it, see `ends_of`.

    >>> positions_in(["It", " is", ".", " So"], [("It is.", 0, 6), ("So", 7, 9)])
    [[0, 1, 2], [3]]
    """
    positions: list[list[int]] = [[] for _ in pieces]
    end = 0
    for token, text in enumerate(texts):
        start = end
        end = start + len(text)
        is_space = not text.strip()
        # The first character of the token that is no white space; of white space alone, its first.
        character = start
        if not is_space:
            character += len(text) - len(text.lstrip())
        for piece, (_, first, last) in enumerate(pieces):
            is_inside = first <= character < last
            is_before = is_space and character < first
            if is_inside or is_before:
                positions[piece].append(token)
                break
    return positions
