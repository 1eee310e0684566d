"""The paper's lemmas, propositions and corollaries as functions: both sides on given inputs, premises checked.

Each returns a `Statement`, whose `verdict` is ``"holds"``, ``"fails"``, or ``"premise violated"``; of a statement about
a limit ``"consistent"`` or ``"undecided"``, since no finite check shows one. `shows` says what was checked. Theorem 5.1
is checked here on the paper's model; on real models it is `squashlens.path_bound`, certified against real Jacobians.
`gallery` has every statement at inputs that meet its premises and at some that do not.
"""

from squashlens.theory.statements.collapse import corollary_b10, theorem_b3
from squashlens.theory.statements.counting import proposition_b9
from squashlens.theory.statements.gallery import Exhibit, gallery
from squashlens.theory.statements.markov import lemma_b6, lemma_b7, proposition_b8
from squashlens.theory.statements.softmax import lemma_b1, lemma_b2, proposition_b4
from squashlens.theory.statements.squashing import theorem_51
from squashlens.theory.statements.statement import Statement, Step

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
