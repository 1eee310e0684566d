"""Replace a digit's residual stream from block k on, and see up to which block the answer needs it.

Copy this and edit it. The stream is replaced by zero, which no prompt has; by the mean of other prompts, without what
tells them apart; or by that of one other prompt, drawn with a seed. An answer that follows the replacement has read
it.

    python hooks/resample_streams.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
L = len(model.blocks)


def answer(prompt: str, *hooks) -> str:
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
    others = [
        question.format(other) for other in "0123456789" if other != digit
    ]  # they differ in that digit only
    print(f"\n{prompt}   {answer(prompt)}\nlast digit's stream, from block")
    print(
        f"{'':>5}"
        + "".join(
            f"  {name:>12}"
            for name in ("zero", "mean of nine", "one, seed 0", "one, seed 1")
        )
    )
    for first in range(L):
        blocks = tuple(range(first, L))
        hooks = (
            sl.hooks.zero_residual(place, blocks),
            sl.hooks.mean_residual(place, others, blocks),
            sl.hooks.resample_residual(place, others, blocks, seed=0),
            sl.hooks.resample_residual(place, others, blocks, seed=1),
        )
        print(
            f"{first:>5}" + "".join(f"  {answer(prompt, hook):>12}" for hook in hooks)
        )
