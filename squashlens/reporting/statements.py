"""The theory, statement by statement: a page written by the functions themselves, from what they say and find."""

import inspect
from collections.abc import Sequence

from squashlens.arguments import validated
from squashlens.theory.statements import Exhibit

ROUNDING = 1e-12  # what depends on the machine
HEAD = """# The theory, statement by statement

Written by `python analyses/statements.py` from `squashlens.theory.statements` (`sl.statements`): each statement of the
paper's appendix B, and Theorem 5.1, is a function that computes both sides on given inputs and checks the premises.

Verdicts: *holds* and *fails* say whether the relation is true of the given input. A statement about a limit is checked
at growing lengths: as an inequality at each length, and by whether the values fall at every length as a limit of 0
would have it. No finite check shows a limit, so the verdict is *consistent*, or *undecided* where the values do not
fall. The inequalities of Lemmas B.1 and B.2 are theorems: no input can contradict them at one length. *Premise
violated* stands whether the conclusion happens to be true or not. What is below 10⁻¹² in size is rounding and stands
as 0.

"""


@validated
def statements_page(exhibits: Sequence[Exhibit], figure: str = "images/statements.png") -> str:
    """Markdown: of each statement what it says, why, both sides at inputs that grow, and a premise taken away.

    `figure` is where the picture of both sides lies beside the page: it is shown, or linked if it is a page itself.
    """
    shown = "" if figure.endswith(".html") else "!"
    return "\n".join([HEAD, f"{shown}[Both sides of each statement]({figure})\n", *map(_section, exhibits)])


def _section(exhibit: Exhibit) -> str:
    says, why = _told(exhibit)
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
        *([f"\nAt the last: {numbers}."] if numbers else []),
        f"\n*A premise taken away* ({exhibit.how}): {_number(exhibit.broken.left)} {exhibit.broken.relation} "
        f"{_number(exhibit.broken.right)}, **{exhibit.broken.verdict}** ({'; '.join(broken)}).\n",
    ])  # fmt: skip


def _number(value: float) -> str:
    return "0" if abs(value) < ROUNDING else f"{value:.4g}"


def _told(exhibit: Exhibit) -> tuple[str, str]:
    """The first paragraph of a docstring, and the second, which is the proof."""
    paragraphs = (inspect.getdoc(exhibit.check) or "").split("\n\n")
    return paragraphs[0].replace("\n", " "), paragraphs[1].replace("\n", " ")
