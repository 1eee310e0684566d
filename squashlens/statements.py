"""The statements of the paper, evaluated on your own inputs: both sides of each, and whether its premises hold.

The functions named after lemmas, propositions and theorems take tensors. `shares_and_counts` tests Proposition 6.1 on a
model. `gallery` evaluates all statements on examples, and `statements_page` writes its results as an HTML page.
"""

from squashlens.measure.collapse.shares_and_counts import shares_and_counts
from squashlens.reporting.statements import statements_page
from squashlens.theory.statements import (
    Exhibit,
    Statement,
    Step,
    corollary_b10,
    gallery,
    lemma_b1,
    lemma_b2,
    lemma_b6,
    lemma_b7,
    proposition_b4,
    proposition_b8,
    proposition_b9,
    theorem_51,
    theorem_b3,
)

__all__ = [
    "Exhibit",
    "Statement",
    "Step",
    "corollary_b10",
    "gallery",
    "lemma_b1",
    "lemma_b2",
    "lemma_b6",
    "lemma_b7",
    "proposition_b4",
    "proposition_b8",
    "proposition_b9",
    "shares_and_counts",
    "statements_page",
    "theorem_51",
    "theorem_b3",
]


def __dir__() -> list[str]:
    return [*__all__]
