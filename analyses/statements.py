"""Appendix B, statement by statement: both sides of every lemma, proposition and corollary, and a violated premise.

Limits are checked as inequalities at finite n that imply them. For each statement, the script also shows what happens
if a premise is violated.

    python analyses/statements.py --out statements
"""

from dataclasses import dataclass
from pathlib import Path

import tyro

import squashlens as sl


@dataclass
class Options:
    """Command-line options.

    Args:
        seed: random seed.
        out: folder for the page.
    """

    seed: int = 0
    out: Path = Path("statements")


args = tyro.cli(Options, description=__doc__)
args.out.mkdir(parents=True, exist_ok=True)

exhibits = sl.theorems.gallery(args.seed)
(args.out / "theory.md").write_text(
    sl.theorems.statements_page(exhibits), encoding="utf-8"
)
for exhibit in exhibits:
    print(f"{exhibit.kept[-1]}  ({exhibit.axis} = {exhibit.at[-1]:,})")
    print(
        f"  {exhibit.how}: {exhibit.broken.left:.4g} {exhibit.broken.relation} {exhibit.broken.right:.4g}, "
        f"{exhibit.broken.verdict}"
    )
print(f"page in {args.out.resolve()}")
