"""Freeze attention, norms and gates one after another, and see which of them each token's sensitivity depends on.

Copy this and edit it. A frozen part stays in the forward pass and has no derivative. With all three frozen the
model is a linear map at this prompt, up to its biases, so that its output is a sum over tokens.

    python hooks/freeze_norms.py
"""

import pandas as pd

import squashlens as sl

model = sl.load("tiny-gemma")
tokens = sl.prompts.tokenize(
    model, "How many ones are in the following sequence? 110111011101 ="
)

attention = sl.hooks.freeze_attention()
norms = sl.hooks.freeze_norms()
gates = sl.hooks.freeze_gates()
frozen = {
    "attention": (attention,),
    "+ norms": (attention, norms),
    "+ gates": (attention, norms, gates),
}
unchanged = sl.jacobian_norms(model, tokens)
table = {"nothing": unchanged.values}
for name, hooks in frozen.items():
    with sl.applied(model, *hooks):
        table[name] = sl.jacobian_norms(model, tokens).values

# The same by name: sl.jacobian_norms(model, tokens, freeze=("attention", "norms", "gates"))
by_token = pd.DataFrame(table, index=unchanged["token"].values)
print(by_token.to_string(float_format="{:.3g}".format))
