"""Sharpen or flatten attention, in one block or in all, and see how sharp it must be for the right answer.

Copy this and edit it. A temperature T divides attention scores, so that each weight becomes α^(1/T) divided by the sum
of its row. As T grows, attention becomes uniform, as in the path bound's null. The second table has the first digit's
share of the path bound.

    python hooks/temper_attention.py
"""

import pandas as pd

import squashlens as sl

model = sl.load("tiny-gemma")
prompt = "How many ones are in the following sequence? 110111011101 ="
first = sl.hooks.find_positions(model, prompt, str.isdigit)[0]
every = range(len(model.blocks))
places = {f"block {b}": (b,) for b in every} | {"all": tuple(every)}
ANSWER = "answer and its probability"
SHARE = "path bound: the first digit's share"


def under(*hooks: sl.hooks.Hook) -> dict[str, str]:
    """The most likely next token with its probability; the first digit's share of the path bound."""
    with sl.applied(model, *hooks):
        best = sl.top_tokens(model, prompt, k=1)
        bound = sl.path_bound(model, prompt)
    return {
        ANSWER: f"{best['token'].item()} {best.item():.3f}",
        SHARE: f"{float(bound[first] / bound.sum()):.4f}",
    }


found = []
for place, blocks in places.items():
    hooks = {"uniform": sl.hooks.uniform_attention(blocks)}
    for T in (0.25, 2.0, 4.0, 8.0):
        hooks[f"T = {T:g}"] = sl.hooks.attention_temperature(T, blocks)
    for name, hook in hooks.items():
        found.append({"in": place, "attention": name, **under(hook)})

table = pd.DataFrame(found)
for title, unchanged in under().items():
    print(f"\n{title}; unchanged: {unchanged}")
    print(table.pivot(index="in", columns="attention", values=title).to_string())
