"""The statements of the paper, evaluated on your own inputs: both sides of each, and whether its premises hold.

The functions named after lemmas, propositions and theorems take tensors. `shares_and_counts` tests Proposition 6.1 on a
model. `gallery` evaluates all statements on examples, and `statements_page` writes its results as a Markdown page.
"""

import inspect
from collections.abc import Sequence

from squashlens.checks.arguments import validated
from squashlens.measure.collapse.shares_and_counts import shares_and_counts
from squashlens.reporting.markup import template
from squashlens.theory import statements as _theory
from squashlens.theory.statements import *  # noqa: F403
from squashlens.theory.statements import Exhibit

__all__ = ["shares_and_counts", "statements_page"]
__all__ += _theory.__all__
ROUNDING = 1e-12  # smaller numbers are rounding errors, which depend on the machine


def __dir__() -> list[str]:
    return sorted(__all__)


@validated
def statements_page(exhibits: Sequence[Exhibit], figure: str = "images/statements.png") -> str:
    """The page on the theory as Markdown: each statement with its proof, both sides, and a violated premise.

    Args:
        exhibits: a result of `squashlens.statements.gallery`.
        figure: path of the figure of both sides, relative to the page. An image is shown; an HTML page is linked.

    Returns:
        The page as Markdown text.
    """
    page = template("theory.md.jinja")
    return page.render(exhibits=exhibits, figure=figure, number=_number, claim_and_proof=_claim_and_proof)


def _number(value: float) -> str:
    return "0" if abs(value) < ROUNDING else f"{value:.4g}"


def _claim_and_proof(exhibit: Exhibit) -> tuple[str, str]:
    """The first paragraph of a docstring, "Check Lemma B.1: the claim", and the second, which is the proof."""
    first, proof, *_ = (part.replace("\n", " ") for part in (inspect.getdoc(exhibit.check) or "").split("\n\n"))
    claim = first.partition(": ")[2]
    return claim[:1].upper() + claim[1:], proof
