"""Round the residual stream to fewer and fewer bits, in one block or in all, and see how the answer changes.

Copy this and edit it. `sl.hooks.round_activations` takes a format (`"bfloat16"`, `"float16"`) or a number of bits after
the leading one, and rounds the stream, keys, values or patterns. Derivatives ignore the rounding.

    python hooks/round_residual.py
"""

import pandas as pd

import squashlens as sl

model = sl.load("tiny-gemma")
tokens = sl.prompts.tokenize(
    model, "How many ones are in the following sequence? 110111011101 ="
)
places = {f"block {b}": (b,) for b in range(len(model.blocks))} | {"all": None}

table = pd.DataFrame(index=[10, 7, 4, 2, 0], columns=list(places))
for bits in table.index:
    for place, blocks in places.items():
        rounding = sl.hooks.round_activations(int(bits), "residual", blocks=blocks)
        with sl.applied(model, rounding):
            best = sl.top_tokens(model, tokens, k=1)
        table.loc[bits, place] = f"{best['token'].item()} {best.item():.4f}"
print(table.rename_axis("bits").to_string())
