"""Freeze attention patterns and see how much of each token's sensitivity comes from the softmax.

Copy this and edit it. Any TransformerLens hook works the same way. Every measurement inside the `with` block is made
on the hooked model, and its provenance names the hooks.

    python hooks/freeze_attention.py
"""

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

print(
    "frozen in every block, by:",
    *sl.results.provenance(every)["ambient_hooks"][:1],
    "…",
)
print(f"{'token':>10}  {'free':>9}  {'blocks 0-2':>10}  {'all blocks':>10}")
for token, *values in zip(
    free["token"].values, free.values, lower.values, every.values, strict=True
):
    print(f"{token:>10}  {values[0]:9.3g}  {values[1]:10.3g}  {values[2]:10.3g}")
