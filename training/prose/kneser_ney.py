"""The baseline of tiny-prose: an interpolated n-gram model with modified Kneser–Ney smoothing (Chen and Goodman 1999).

The highest order counts n-grams; a lower order counts in how many contexts an n-gram appears, that is, the distinct
tokens before it. With a count c of the n-gram (h, w), and h' for h without its first token,

    p(w | h) = (c(h, w) − D(c(h, w)))⁺ / c(h, ·) + γ(h) p(w | h'),

where γ(h) is the mass that the discounts D take away, and the last p is uniform over the vocabulary.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["KneserNey"]

_FALLBACK = (
    0.5,
    1.0,
    1.5,
)  # KenLM's discounts for a text that is too small to estimate them


@dataclass(frozen=True)
class _Level:
    """One order: n-grams and contexts as sorted keys, with counts, totals and the mass that is left to lower orders."""

    grams: NDArray[np.int64]
    counts: NDArray[np.int64]
    contexts: NDArray[np.int64]
    totals: NDArray[np.int64]
    left: NDArray[np.float64]
    discounts: NDArray[np.float64]  # by count 0, 1, 2, and 3 or more

    def interpolate(
        self, grams: NDArray[np.int64], contexts: NDArray[np.int64], lower: NDArray
    ) -> NDArray:
        """The probability of each n-gram, from that of the lower order."""
        count = _look_up(self.grams, self.counts, grams)
        total = _look_up(self.contexts, self.totals, contexts)
        left = _look_up(self.contexts, self.left, contexts)
        own = count - self.discounts[np.minimum(count, 3)]
        return np.where(total > 0, own / np.maximum(total, 1) + left * lower, lower)


def _look_up(
    keys: NDArray[np.int64], values: NDArray, wanted: NDArray[np.int64]
) -> NDArray:
    """The value of each wanted key, zero where there is none."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)


def _discounts(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The discounts of counts 1, 2, and 3 or more, after a zero: Chen and Goodman's estimates."""
    n1, n2, n3, n4 = (int((counts == c).sum()) for c in (1, 2, 3, 4))
    if 0 in (n1, n2, n3, n4):
        return np.array((0.0, *_FALLBACK))
    y = n1 / (n1 + 2 * n2)
    return np.array(
        (0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    )


class KneserNey:
    """An n-gram model of documents, each of them token ids that start with one begin-of-text token.

    A token near the start of a document is preceded by as many begin-of-text tokens as the order needs.

    Args:
        documents: the training text.
        vocabulary: the number of token ids.
        order: the n of the n-grams; as high as their keys fit into 63 bits.
    """

    def __init__(
        self, documents: Iterable[NDArray], vocabulary: int, order: int = 5
    ) -> None:
        self._vocabulary, self._order = vocabulary, order
        if vocabulary**order >= 2**63:
            raise ValueError(
                f"{order}-grams over {vocabulary} tokens do not fit into 63 bits."
            )
        grams, counts = np.unique(
            np.concatenate([self._keys(d, order) for d in documents]),
            return_counts=True,
        )
        self._levels: list[_Level] = []
        for n in range(order, 0, -1):
            contexts, where = np.unique(grams // vocabulary, return_inverse=True)
            discounts = _discounts(counts)
            totals = np.bincount(where, weights=counts).astype(np.int64)
            taken = np.bincount(where, weights=discounts[np.minimum(counts, 3)])
            self._levels.append(
                _Level(grams, counts, contexts, totals, taken / totals, discounts)
            )
            grams, counts = np.unique(grams % vocabulary ** (n - 1), return_counts=True)

    def _keys(self, ids: NDArray, n: int) -> NDArray[np.int64]:
        """The n-gram that ends at each token after the first, as a number with its tokens as digits."""
        padded = (
            np.concatenate([np.full(n - 2, ids[0]), ids]).astype(np.int64)
            if n > 1
            else ids[1:].astype(np.int64)
        )
        keys = np.zeros(len(ids) - 1, np.int64)
        for i in range(n):
            keys = keys * self._vocabulary + padded[i : i + len(keys)]
        return keys

    def probabilities(self, ids: NDArray) -> NDArray[np.float64]:
        """The probability of every token of a document but the first, given those before it."""
        full = self._keys(ids, self._order)
        p = np.full(len(full), 1 / self._vocabulary)
        for n, level in enumerate(reversed(self._levels), start=1):
            grams = full % self._vocabulary**n
            p = level.interpolate(grams, grams // self._vocabulary, p)
        return p
