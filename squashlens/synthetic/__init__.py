"""The synthetic lab: random attention stacks in plain tensors, to ask which making of a decoder leads to collapse.

`Stack` says what is in one, `PAPER` has the two readings of figure 8. `convergence` (figure 8) follows D and δ with
length, `survey` does so for many stacks side by side, `softmax_total_variation` is figure 9, `last_tokens` gives the
representations themselves, `lengths_up_to` lengths to ask for. No model is loaded and nothing is trained.
"""

from squashlens.synthetic.convergence import convergence
from squashlens.synthetic.draws import lengths_up_to
from squashlens.synthetic.forward import LastTokens, last_tokens
from squashlens.synthetic.stack import PAPER, Stack
from squashlens.synthetic.survey import survey
from squashlens.synthetic.variation import softmax_total_variation, softmax_variation

__all__ = [
    "PAPER",
    "LastTokens",
    "Stack",
    "convergence",
    "last_tokens",
    "lengths_up_to",
    "softmax_total_variation",
    "softmax_variation",
    "survey",
]
