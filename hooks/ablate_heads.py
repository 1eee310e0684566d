"""Take attention heads away, all of a block or one at a time: by zeros, or by what they say on average.

Copy this and edit it. Zero is an output that a head may never have; the mean over prompts of the same form takes away
what it says about this prompt and leaves what it always says.

    python hooks/ablate_heads.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
L, heads = len(model.blocks), range(model.cfg.n_heads)


def answer(prompt: str, *hooks) -> str:
    """The likeliest next token and its probability, under some hooks."""
    with sl.applied(model, *hooks):
        best = sl.next_token(model, prompt, top=1)
    return f"{best['token'].item()} {best.item():.3f}"


question = "What is the last digit in this sequence? 407158{} ="
prompt, others = question.format(2), [question.format(digit) for digit in "0123456789"]  # the same but for that digit
print(f"{prompt}   {answer(prompt)}")
for b in range(L):
    away = {
        "all at 0": sl.zero_heads(heads, (b,)),
        "all at their mean": sl.mean_heads(heads, others, (b,)),
        **{f"head {h} at 0": sl.zero_heads([h], (b,)) for h in heads},
    }
    if b == 0:
        print(f"{'':>7}" + "".join(f"  {name:>17}" for name in away))
    print(f"block {b}" + "".join(f"  {answer(prompt, hook):>17}" for hook in away.values()))
