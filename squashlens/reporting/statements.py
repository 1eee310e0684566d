"""The page on the theory, written from the docstrings and results of the functions in `squashlens.statements`."""

import inspect
from collections.abc import Sequence

from squashlens.checks.arguments import validated
from squashlens.theory.statements import Exhibit

ROUNDING = 1e-12  # smaller numbers are rounding errors, which depend on the machine
HEAD = """# The theory, statement by statement

This page is written by `python analyses/statements.py`. Each statement of the paper's appendix B, and Theorem 5.1, is a
function in `sl.statements` that computes both sides on given inputs and checks the premises.

Verdicts: *holds* and *fails* say whether the relation is true for the given input. A statement about a limit is
checked at growing lengths: the inequality must hold at each length, and the values must decrease from each length to
the next. No finite check proves a limit. If the inequality holds, the verdict is *consistent* when the values
decrease, and *undecided* when they do not. The inequalities of Lemmas B.1 and B.2 are theorems, so no input can
contradict them at a single length. If a premise fails, the verdict is *premise violated*, whether or not the
conclusion happens to be true. Numbers below 10⁻¹² in size are rounding errors and are shown as 0.

"""


@validated
def statements_page(exhibits: Sequence[Exhibit], figure: str = "images/statements.png") -> str:
    """The page on the theory as Markdown: each statement with its proof, both sides, and a violated premise.

    Args:
        exhibits: a result of `squashlens.statements.gallery`.
        figure: path of the figure of both sides, relative to the page. An image is shown; an HTML page is linked.

    Returns:
        The page as Markdown text.
    """
    mark = "" if figure.endswith(".html") else "!"
    return "\n".join([HEAD, f"{mark}[Both sides of each statement]({figure})\n", *map(_section, exhibits)])


def _section(exhibit: Exhibit) -> str:
    says, why = _claim_and_proof(exhibit)
    first = exhibit.kept[0]
    rows = [
        f"| {one.at:,} | {_number(one.left)} | {first.relation} | {_number(one.right)} | "
        f"{'holds' if one.holds else 'fails'} |"
        for one in exhibit.rows
    ]
    verdicts = ", ".join(dict.fromkeys(one.verdict for one in exhibit.kept))
    numbers = "; ".join(f"{name} = {_number(value)}" for name, value in exhibit.kept[-1].found.items())
    broken = [premise for premise, true in exhibit.broken.premises.items() if not true]
    return "\n".join([
        f"## {first.name}\n",
        f"{says}\n",
        f"*Why.* {why}\n",
        f"*Premises.* {'; '.join(first.premises)}.\n",
        f"| {exhibit.axis} | left | | right | |\n|---:|---:|:-:|---:|---|",
        *rows,
        f"\n*Verdict*: **{verdicts}**. Checked: {exhibit.kept[-1].shows}.",
        *([f"\nAt the last input: {numbers}."] if numbers else []),
        f"\n*With a violated premise* ({exhibit.how}): {_number(exhibit.broken.left)} {exhibit.broken.relation} "
        f"{_number(exhibit.broken.right)}, **{exhibit.broken.verdict}** ({'; '.join(broken)}).\n",
    ])  # fmt: skip


def _number(value: float) -> str:
    return "0" if abs(value) < ROUNDING else f"{value:.4g}"


def _claim_and_proof(exhibit: Exhibit) -> tuple[str, str]:
    """The first paragraph of a docstring, "Check Lemma B.1: the claim", and the second, which is the proof."""
    first, proof, *_ = (part.replace("\n", " ") for part in (inspect.getdoc(exhibit.check) or "").split("\n\n"))
    claim = first.partition(": ")[2]
    return claim[:1].upper() + claim[1:], proof
