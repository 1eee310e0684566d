"""Wipe a digit's residual stream from block k on, or put other prompts' there: until when does the answer need it?

Copy this and edit it. Zero is a stream that no prompt ever had; the mean of other prompts' is one without what tells
them apart; one of them, drawn by a seed, says something else, and an answer that follows it shows what was read.

    python hooks/resample_streams.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
L = len(model.blocks)


def answer(prompt: str, *hooks) -> str:
    """The likeliest next token and its probability, under some hooks."""
    with sl.applied(model, *hooks):
        best = sl.next_token(model, prompt, top=1)
    return f"{best['token'].item()} {best.item():.3f}"


for question, digit in {
    "What is the last digit in this sequence? 407158{} =": "2",
    "How many ones are in the following sequence? 11011101110{} =": "1",
}.items():
    prompt = question.format(digit)
    place = sl.places(model, prompt, str.isdigit)[-1:]
    others = [question.format(other) for other in "0123456789" if other != digit]  # the same but for that digit
    print(f"\n{prompt}   {answer(prompt)}\nlast digit's stream, from block")
    print(f"{'':>5}" + "".join(f"  {name:>12}" for name in ("zero", "mean of nine", "one, seed 0", "one, seed 1")))
    for first in range(L):
        blocks = tuple(range(first, L))
        hooks = (
            sl.zero_residual(place, blocks),
            sl.mean_residual(place, others, blocks),
            sl.resample_residual(place, others, blocks, seed=0),
            sl.resample_residual(place, others, blocks, seed=1),
        )
        print(f"{first:>5}" + "".join(f"  {answer(prompt, hook):>12}" for hook in hooks))
