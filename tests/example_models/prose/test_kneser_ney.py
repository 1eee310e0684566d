"""The n-gram baseline: by hand, beside a slow twin of dictionaries, and with probabilities that sum to one."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.prose.kneser_ney import KneserNey

BOS = 0


def test_a_bigram_model_by_hand() -> None:
    """`0 1 2` and `0 1 1`: the bigrams are 01 twice, 12 once, 11 once. The discounts are 1/2 and 1.

    Continuations: 1 follows 0 and 1, 2 follows 1, three in all. p(1) = (2 − 1)/3 + (1 + 1/2)/3 · 1/4 = 11/24 and
    p(2) = (1 − 1/2)/3 + 1/2 · 1/4 = 7/24. p(1 | 0) = (2 − 1)/2 + 1/2 · 11/24 = 35/48, and
    p(2 | 1) = (1 − 1/2)/2 + (1/2 + 1/2)/2 · 7/24 = 19/48. Token 3 is new: p(3 | 3) = 1/2 · 1/4 = 1/8.
    """
    model = KneserNey([np.array([0, 1, 2]), np.array([0, 1, 1])], vocabulary=4, order=2)
    assert model.probabilities(np.array([0, 1, 2])) == pytest.approx([35 / 48, 19 / 48])
    assert model.probabilities(np.array([0, 3, 3]))[1] == pytest.approx(1 / 8)


documents = st.lists(
    st.lists(st.integers(1, 3), min_size=1, max_size=12), min_size=1, max_size=6
)


class Twin:
    """The same model from dictionaries of tuples and exact fractions, by recursion."""

    def __init__(self, texts: list[list[int]], order: int) -> None:
        self.order = order
        self.counts: dict[int, Counter[tuple[int, ...]]] = {order: Counter()}
        for text in texts:
            padded = [BOS] * (order - 1) + text
            self.counts[order].update(
                tuple(padded[i : i + order]) for i in range(len(text))
            )
        for n in range(order - 1, 0, -1):
            before = defaultdict(set)
            for gram in self.counts[n + 1]:
                before[gram[1:]].add(gram[0])
            self.counts[n] = Counter(
                {gram: len(tokens) for gram, tokens in before.items()}
            )

    def discount(self, n: int, count: int) -> Fraction:
        of = Counter(self.counts[n].values())
        if any(of[c] == 0 for c in (1, 2, 3, 4)):
            return Fraction(min(count, 3), 2)
        c = min(count, 3)
        return c - (c + 1) * Fraction(of[1], of[1] + 2 * of[2]) * Fraction(
            of[c + 1], of[c]
        )

    def p(self, context: Sequence[int], token: int, n: int) -> Fraction:
        if n == 0:
            return Fraction(1, 5)
        h = tuple(context[len(context) - n + 1 :])
        seen = {gram: c for gram, c in self.counts[n].items() if gram[:-1] == h}
        lower = self.p(context, token, n - 1)
        if not seen:
            return lower
        own, total = seen.get((*h, token), 0), sum(seen.values())
        left = sum(self.discount(n, c) for c in seen.values())
        return (
            (own - self.discount(n, own)) if own else Fraction(0)
        ) / total + left / total * lower


@settings(deadline=None, max_examples=40)
@given(
    documents, st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(1, 5)
)
def test_equals_a_twin_of_dictionaries(
    texts: list[list[int]], text: list[int], order: int
) -> None:
    model = KneserNey([np.array([BOS, *t]) for t in texts], vocabulary=5, order=order)
    twin = Twin(texts, order)
    padded = [BOS] * order + text
    expected = [
        float(twin.p(padded[: order + i], token, order)) for i, token in enumerate(text)
    ]
    assert model.probabilities(np.array([BOS, *text])) == pytest.approx(
        expected, rel=1e-9
    )
