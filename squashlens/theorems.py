"""The statements of the paper, evaluated on your own inputs: both sides of each, and whether its premises hold.

The functions named after the lemmas, propositions and theorems of Barbero et al. 2024 take tensors, and return a
`Statement`, which says in `shows` what was checked. Inputs that a statement is not about, such as patterns that are not
square, raise an `InputError`. `shares_and_counts` tests Proposition 6.1 on a model. `gallery` evaluates all statements
on examples, and `statements_page` writes its results as a Markdown page. Theorem 5.1 is checked on the paper's model;
for real models, `squashlens.path_bound` computes it, and `squashlens.certified_bound` certifies it.
"""

import inspect
from collections.abc import Sequence

from squashlens.checks.arguments import validated
from squashlens.measure.collapse.shares_and_counts import shares_and_counts
from squashlens.pages.page import template
from squashlens.theory.statements.counting import corollary_b10, proposition_b9
from squashlens.theory.statements.gallery import Exhibit, gallery
from squashlens.theory.statements.limits import (
    lemma_b1,
    lemma_b2,
    proposition_b4,
    theorem_b3,
)
from squashlens.theory.statements.squashing import (
    lemma_b6,
    lemma_b7,
    proposition_b8,
    theorem_51,
)
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
    "shares_and_counts",
    "statements_page",
    "theorem_51",
    "theorem_b3",
]
ROUNDING = 1e-12  # smaller numbers are rounding errors, which depend on the machine


def __dir__() -> list[str]:
    return sorted(__all__)


@validated
def statements_page(exhibits: Sequence[Exhibit]) -> str:
    """The page on the theory as Markdown: each statement with its claim, both sides, and a violated premise.

    Args:
        exhibits: a result of `squashlens.theorems.gallery`.

    Returns:
        The page as Markdown text.
    """
    page = template("theory.md.jinja")
    return page.render(exhibits=exhibits, number=_number, claim=_claim)


def _number(value: float) -> str:
    return "0" if abs(value) < ROUNDING else f"{value:.4g}"


def _claim(exhibit: Exhibit) -> str:
    """The claim of a docstring "Check Lemma B.1: the claim", with its formula where the proof begins with one."""
    docstring = inspect.getdoc(exhibit.check) or ""
    first, proof, *_ = docstring.split("\n\n")
    _, _, claim = first.replace("\n", " ").partition(": ")
    formula = ""
    if proof.startswith("The claim is"):
        sentence, _, _ = proof.replace("\n", " ").partition(". ")
        formula = f" {sentence.rstrip('.')}."
    return claim[:1].upper() + claim[1:] + formula
