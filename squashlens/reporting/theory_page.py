"""The page on the theory, written from the docstrings and results of the functions in `squashlens.statements`."""

import inspect
from collections.abc import Sequence

from squashlens.checks.arguments import validated
from squashlens.reporting.markup import template
from squashlens.theory.statements import Exhibit

ROUNDING = 1e-12  # smaller numbers are rounding errors, which depend on the machine


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
