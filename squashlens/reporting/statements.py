"""The theory, statement by statement: a page written by the functions themselves, from what they say and find."""

import inspect
from collections.abc import Sequence

from squashlens.theory.statements import Exhibit

ROUNDING = 1e-12  # what depends on the machine
HEAD = """# The theory, statement by statement

Written by `python analyses/statements.py` from `squashlens.theory.statements` (`sl.statements`): each statement of the
paper's appendix B is a function that computes both sides on given inputs and says whether its premises hold. Lemmas
about limits are stated as inequalities at finite n that imply them, so that a sequence can contradict them. What breaks
a premise is reported as *premise violated*, whether the conclusion happens to hold or not. What is below 10⁻¹² in size
is rounding and stands as 0.

"""


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
        f"| {at:,} | {_number(one.left)} | {one.relation} | {_number(one.right)} | {one.verdict} |"
        for at, one in zip(exhibit.at, exhibit.kept, strict=True)
    ]
    numbers = "; ".join(f"{name} = {_number(value)}" for name, value in exhibit.kept[-1].found.items())
    broken = [premise for premise, true in exhibit.broken.premises.items() if not true]
    return "\n".join([
        f"## {first.name}\n",
        f"{says}\n",
        f"*Why.* {why}\n",
        f"*Premises.* {'; '.join(first.premises)}.\n",
        f"| {exhibit.axis} | left | | right | |\n|---:|---:|:-:|---:|---|",
        *rows,
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
