"""Replace a digit's residual stream from block k on, and see up to which block the answer needs it.

Copy this and edit it. The stream is replaced by zero, which no prompt has; by the mean of other prompts, without what
tells them apart; or by that of one other prompt, drawn with a seed. An answer that follows the replacement has read
it.

    python hooks/resample_streams.py
"""

import pandas as pd

import squashlens as sl

model = sl.load("tiny-gemma")
L = len(model.blocks)


def answer(prompt: str, *hooks: sl.hooks.Hook) -> str:
    """The most likely next token and its probability, with some hooks."""
    with sl.applied(model, *hooks):
        best = sl.top_tokens(model, prompt, k=1)
    return f"{best['token'].item()} {best.item():.3f}"


for question, digit in {
    "What is the last digit in this sequence? 407158{} =": "2",
    "How many ones are in the following sequence? 11011101110{} =": "1",
}.items():
    prompt = question.format(digit)
    place = sl.hooks.find_positions(model, prompt, str.isdigit)[-1:]
    # They differ in that digit only.
    others = [question.format(other) for other in "0123456789" if other != digit]
    table = {}
    for first in range(L):
        blocks = tuple(range(first, L))
        hooks = {
            "zero": sl.hooks.zero_residual(place, blocks),
            "mean of nine": sl.hooks.mean_residual(place, others, blocks),
        }
        for seed in (0, 1):
            drawn = sl.hooks.resample_residual(place, others, blocks, seed=seed)
            hooks[f"one, seed {seed}"] = drawn
        answers = {name: answer(prompt, hook) for name, hook in hooks.items()}
        table[first] = answers
    print(f"\n{prompt}   {answer(prompt)}\nlast digit's stream, from block")
    print(pd.DataFrame(table).T.to_string())
