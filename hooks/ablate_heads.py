"""Ablate attention heads, all heads of a block or one at a time, with zero or with their mean output.

Copy this and edit it. Zero is an output that a head may never have. The mean over prompts of the same form removes
what is particular to this prompt and keeps what all of them have in common.

    python hooks/ablate_heads.py
"""

import pandas as pd

import squashlens as sl

model = sl.load("tiny-gemma")
heads = range(model.cfg.n_heads)


def answer(prompt: str, *hooks: sl.hooks.Hook) -> str:
    """The most likely next token and its probability, with some hooks."""
    with sl.applied(model, *hooks):
        best = sl.top_tokens(model, prompt, k=1)
    return f"{best['token'].item()} {best.item():.3f}"


question = "What is the last digit in this sequence? 407158{} ="
prompt = question.format(2)
others = [question.format(digit) for digit in "0123456789"]
table = {}
for b in range(len(model.blocks)):
    ablations = {
        "all at 0": sl.hooks.zero_heads(heads, (b,)),
        "all at their mean": sl.hooks.mean_heads(heads, others, (b,)),
    }
    for head in heads:
        ablations[f"head {head} at 0"] = sl.hooks.zero_heads([head], (b,))
    answers = {name: answer(prompt, hook) for name, hook in ablations.items()}
    table[f"block {b}"] = answers
print(f"{prompt}   {answer(prompt)}")
print(pd.DataFrame(table).T.to_string())
