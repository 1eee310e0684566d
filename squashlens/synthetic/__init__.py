"""Random attention stacks in plain tensors, to test which parts of a decoder lead to collapse.

`Stack` describes a stack, and `PAPER` has two readings of the stack of figure 8. `convergence` (figure 8) measures D
and δ by length, `softmax_total_variation` is figure 9, and `last_tokens` returns
the representations. No model is loaded and nothing is trained.
"""

from squashlens.synthetic.convergence import convergence
from squashlens.synthetic.stack import PAPER, Stack
from squashlens.synthetic.stack_passes import LastTokens, last_tokens
from squashlens.synthetic.variation import softmax_total_variation

__all__ = [
    "PAPER",
    "LastTokens",
    "Stack",
    "convergence",
    "last_tokens",
    "softmax_total_variation",
]


def __dir__() -> list[str]:
    return [*__all__]
