"""Freeze attention, norms and gates one after the other: which nonlinearity carries each token's sensitivity?

Copy this and edit it. Frozen things stay in the forward pass and leave the derivative; with all three frozen the
model is a linear map at this prompt, up to its biases, so what is left is a sum over tokens.

    python hooks/freeze_norms.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
tokens = sl.tokens(model, "How many ones are in the following sequence? 110111011101 =")

steps = {
    "nothing": (),
    "attention": (sl.freeze_attention(),),
    "+ norms": (sl.freeze_attention(), sl.freeze_norms()),
    "+ gates": (sl.freeze_attention(), sl.freeze_norms(), sl.freeze_gates()),
}
norms = {}
for name, hooks in steps.items():
    with sl.applied(model, *hooks):
        norms[name] = sl.jacobian_norms(model, tokens)

# The same by name: sl.jacobian_norms(model, tokens, freeze=("attention", "norms", "gates"))
print(f"{'token':>10}" + "".join(f"{name:>11}" for name in steps))
for place, token in enumerate(norms["nothing"]["token"].values):
    print(f"{token:>10}" + "".join(f"{values.values[place]:11.3g}" for values in norms.values()))
