"""Freeze attention patterns and see how much of each token's sensitivity comes from the softmax.

Copy this and edit it. Any TransformerLens hook works the same way. Every measurement inside the `with` block is made
on the hooked model, and its provenance names the hooks.

    python hooks/freeze_attention.py
"""

import pandas as pd

import squashlens as sl

model = sl.load("tiny-gemma")
tokens = sl.prompts.tokenize(
    model, "How many ones are in the following sequence? 110111011101 ="
)

free = sl.jacobian_norms(model, tokens)
with sl.applied(model, sl.hooks.freeze_attention(blocks=(0, 1, 2))):
    lower = sl.jacobian_norms(model, tokens)
with sl.applied(model, sl.hooks.freeze_attention()):
    every = sl.jacobian_norms(model, tokens)

hooks = sl.results.provenance(every)["ambient_hooks"]
print(f"frozen in every block, by: {hooks[0]} …")
frozen = {"free": free, "blocks 0-2": lower, "all blocks": every}
table = {name: norms.values for name, norms in frozen.items()}
by_token = pd.DataFrame(table, index=free["token"].values)
print(by_token.to_string(float_format="{:.3g}".format))
