"""Which queries are kept where not all fit: the opened one first, then queries that are evenly spaced."""

from collections.abc import Sequence


def spread(queries: Sequence[int], opened: int, cost: int, room: int) -> list[int]:
    """The queries to keep, in ascending order, if query q costs ``cost · (q + 1)`` of `room`; at least the opened one.

    >>> spread(range(8), 7, cost=1, room=36)
    [0, 1, 2, 3, 4, 5, 6, 7]
    >>> spread(range(8), 7, cost=1, room=20)
    [1, 3, 5, 7]
    """
    whole = sorted({*queries, opened})
    if sum(cost * (query + 1) for query in whole) <= room:
        return whole
    step = 2
    while step <= len(whole):
        place = whole.index(opened)
        kept = whole[place % step :: step]
        if sum(cost * (query + 1) for query in kept) <= room:
            return kept
        step += 1
    return [opened]
