"""Cut attention from some tokens to others, block by block and head by head, and see which cut changes the answer.

Copy this and edit it. A cut sets attention scores between two sets of positions to −∞; the positions are found by the
tokens' texts. Information that is cut in one block may still pass through another block, or through tokens in between.

    python hooks/cut_attention.py
"""

import pandas as pd

import squashlens as sl

model = sl.load("tiny-gemma")
heads = range(model.cfg.n_heads)
places = {f"block {b}": (b,) for b in range(len(model.blocks))} | {"every": None}


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
    wanted = [digits[which]]
    cuts = {
        "= from the question": (end, question),
        "= from the digits": (end, digits),
        f"= from the {asked} digit": (end, wanted),
        "digits from the question": (digits, question),
    }
    table = pd.DataFrame(index=list(cuts), columns=list(places))
    for name, (queries, keys) in cuts.items():
        for place, blocks in places.items():
            cut = sl.hooks.mask_attention(queries, keys, blocks)
            table.loc[name, place] = answer(prompt, cut)
    print(f"\n{prompt}   {answer(prompt)}\n{table.to_string()}")

    by_head = {}
    for head in heads:
        others = [other for other in heads if other != head]
        alone = sl.hooks.mask_attention(end, wanted, (1,), heads=[head])
        all_others = sl.hooks.mask_attention(end, wanted, (1,), heads=others)
        by_head[f"head {head}"] = {
            "alone": answer(prompt, alone),
            "all but this": answer(prompt, all_others),
        }
    print(f"= from it in block 1\n{pd.DataFrame(by_head).to_string()}")
