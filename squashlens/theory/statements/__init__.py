"""The paper's statements as functions that compute both sides and check the premises.

Each function returns a `Statement`. Its `verdict` is ``"holds"``, ``"fails"`` or ``"premise violated"``; for a limit it
is ``"consistent"`` or ``"undecided"``, since no finite check proves a limit. `shows` says what was checked. Theorem 5.1
is checked here on the paper's model; for real models, `squashlens.path_bound` computes it, certified against Jacobians.
`gallery` evaluates every statement at inputs that meet its premises and at inputs that do not.
"""

from squashlens.theory.statements.gallery import Exhibit, gallery
from squashlens.theory.statements.lemmas import lemma_b1, lemma_b2, lemma_b6, lemma_b7, proposition_b4, proposition_b8
from squashlens.theory.statements.statement import Statement, Step
from squashlens.theory.statements.theorems import corollary_b10, proposition_b9, theorem_51, theorem_b3

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
    "theorem_51",
    "theorem_b3",
]
