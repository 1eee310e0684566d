"""Cut what some tokens may read of some others, block by block and head by head: which cut changes the answer?

Copy this and edit it. A cut sets attention logits to −∞ between two sets of positions, found by the tokens' texts. What
is cut in one block may still come through another, and by way of the tokens in between.

    python hooks/cut_attention.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
L, heads = len(model.blocks), range(model.cfg.n_heads)


def answer(prompt: str, *hooks: sl.Hook) -> str:
    """The likeliest next token and its probability, under some hooks."""
    with sl.applied(model, *hooks):
        best = sl.next_token(model, prompt, top=1)
    return f"{best['token'].item()} {best.item():.3f}"


for asked, which in {"last": -1, "first": 0}.items():
    prompt = f"What is the {asked} digit in this sequence? 4071582 ="
    digits, end = sl.places(model, prompt, str.isdigit), sl.places(model, prompt, "=")
    question, wanted = range(1, digits[0]), digits[which]
    cuts = {
        "= from the question": (end, question),
        "= from the digits": (end, digits),
        f"= from the {asked} digit": (end, [wanted]),
        "digits from the question": (digits, question),
    }
    print(f"\n{prompt}   {answer(prompt)}\n{'cut off':>24}" + "".join(f"  block {b}" for b in range(L)) + "  every")
    for name, (queries, keys) in cuts.items():
        row = [answer(prompt, sl.mask_attention(queries, keys, b)) for b in [*((b,) for b in range(L)), None]]
        print(f"{name:>24}" + "".join(f"  {cell:>7}" for cell in row))

    print(f"{'= from it, block 1, head':>24}" + "".join(f"  {h:>7}" for h in heads))
    for name, chosen in {"alone": lambda h: [h], "all but this": lambda h: [g for g in heads if g != h]}.items():
        row = [answer(prompt, sl.mask_attention(end, [wanted], (1,), heads=chosen(h))) for h in heads]
        print(f"{name:>24}" + "".join(f"  {cell:>7}" for cell in row))
