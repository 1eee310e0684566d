"""Ablate attention heads, all heads of a block or one at a time, with zero or with their mean output.

Copy this and edit it. Zero is an output that a head may never have. The mean over prompts of the same form removes
what is particular to this prompt and keeps what all of them have in common.

    python hooks/ablate_heads.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
L = len(model.blocks)
heads = range(model.cfg.n_heads)


def answer(prompt: str, *hooks) -> str:
    """The most likely next token and its probability, with some hooks."""
    with sl.applied(model, *hooks):
        best = sl.top_tokens(model, prompt, k=1)
    return f"{best['token'].item()} {best.item():.3f}"


question = "What is the last digit in this sequence? 407158{} ="
prompt = question.format(2)
others = [question.format(digit) for digit in "0123456789"]
print(f"{prompt}   {answer(prompt)}")
for b in range(L):
    ablations = {
        "all at 0": sl.hooks.zero_heads(heads, (b,)),
        "all at their mean": sl.hooks.mean_heads(heads, others, (b,)),
        **{f"head {h} at 0": sl.hooks.zero_heads([h], (b,)) for h in heads},
    }
    if b == 0:
        print(f"{'':>7}" + "".join(f"  {name:>17}" for name in ablations))
    print(
        f"block {b}"
        + "".join(f"  {answer(prompt, hook):>17}" for hook in ablations.values())
    )
