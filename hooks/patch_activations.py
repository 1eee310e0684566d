"""Patch activations from another prompt, and see which of them carry the answer.

Copy this and edit it. Two prompts differ in one digit. The residual stream of the other prompt at one position of one
block, or the outputs of one block's heads, replace those of this prompt. If the answer becomes the other's, they
carry it.

    python hooks/patch_activations.py
"""

from typing import Any

import pandas as pd

import squashlens as sl

model = sl.load("tiny-gemma")
heads = range(model.cfg.n_heads)
question = "What is the last digit in this sequence? 40715{} ="
prompt = question.format(8)
other = question.format(3)
digit = sl.hooks.find_positions(model, prompt, "8")
end = sl.hooks.find_positions(model, prompt, "=")


def share(*hooks: Any) -> str:
    """The probabilities of this prompt's answer and of the other's, with some hooks."""
    with sl.applied(model, *hooks):
        said = sl.top_tokens(model, prompt, k=20)
    chances = [said.where(said["token"] == answer).sum().item() for answer in "83"]
    return "{:.3f} {:.3f}".format(*chances)


# The prompt's text works too.
_, cache = model.run_with_cache(sl.prompts.tokenize(model, other))
table = {}
for b in range(len(model.blocks)):
    table[f"block {b}"] = {
        "digit": share(sl.hooks.patch_residual(digit, cache, (b,))),
        "=": share(sl.hooks.patch_residual(end, cache, (b,))),
        "heads at =": share(sl.hooks.patch_heads(heads, cache, (b,), positions=end)),
    }
print(f"{prompt}   p(8) p(3) = {share()}")
print(pd.DataFrame(table).T.to_string())

# One more digit moves later tokens by one.
longer = "What is the last digit in this sequence? 4407153 ="
later = [place + 1 for place in digit]
shifted = sl.hooks.patch_residual(digit, longer, (0,), from_positions=later)
print(f"from a longer prompt: {share(shifted)}")
