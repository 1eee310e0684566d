"""Cut attention from some tokens to others, block by block and head by head, and see which cut changes the answer.

Copy this and edit it. A cut sets attention scores between two sets of positions to −∞; the positions are found by the
tokens' texts. Information that is cut in one block may still pass through another block, or through tokens in between.

    python hooks/cut_attention.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
L = len(model.blocks)
heads = range(model.cfg.n_heads)


def answer(prompt: str, *hooks: sl.hooks.Hook) -> str:
    """The most likely next token and its probability, with some hooks."""
    with sl.applied(model, *hooks):
        best = sl.top_tokens(model, prompt, k=1)
    return f"{best['token'].item()} {best.item():.3f}"


for asked, which in {"last": -1, "first": 0}.items():
    prompt = f"What is the {asked} digit in this sequence? 4071582 ="
    digits = sl.hooks.find_positions(model, prompt, str.isdigit)
    end = sl.hooks.find_positions(model, prompt, "=")
    question = range(1, digits[0])
    wanted = digits[which]
    cuts = {
        "= from the question": (end, question),
        "= from the digits": (end, digits),
        f"= from the {asked} digit": (end, [wanted]),
        "digits from the question": (digits, question),
    }
    print(
        f"\n{prompt}   {answer(prompt)}\n{'cut off':>24}"
        + "".join(f"  block {b}" for b in range(L))
        + "  every"
    )
    for name, (queries, keys) in cuts.items():
        row = [
            answer(prompt, sl.hooks.mask_attention(queries, keys, b))
            for b in [*((b,) for b in range(L)), None]
        ]
        print(f"{name:>24}" + "".join(f"  {cell:>7}" for cell in row))

    print(f"{'= from it, block 1, head':>24}" + "".join(f"  {h:>7}" for h in heads))
    for name, chosen in {
        "alone": lambda h: [h],
        "all but this": lambda h: [g for g in heads if g != h],
    }.items():
        row = [
            answer(
                prompt, sl.hooks.mask_attention(end, [wanted], (1,), heads=chosen(h))
            )
            for h in heads
        ]
        print(f"{name:>24}" + "".join(f"  {cell:>7}" for cell in row))
