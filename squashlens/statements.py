"""The statements of the paper, evaluated on your own inputs: both sides of each, and whether its premises hold.

The functions named after lemmas, propositions and theorems take tensors. `shares_and_counts` tests Proposition 6.1 on a
model. `gallery` evaluates all statements on examples, and `statements_page` writes its results as a Markdown page.
"""

from squashlens.measure.collapse.shares_and_counts import shares_and_counts
from squashlens.reporting.theory_page import statements_page
from squashlens.theory import statements as _theory
from squashlens.theory.statements import *  # noqa: F403

__all__ = ["shares_and_counts", "statements_page"]
__all__ += _theory.__all__


def __dir__() -> list[str]:
    return sorted(__all__)
