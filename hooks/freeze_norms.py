"""Freeze attention, norms and gates one after another, and see which of them each token's sensitivity depends on.

Copy this and edit it. A frozen part stays in the forward pass and has no derivative. With all three frozen the
model is a linear map at this prompt, up to its biases, so that its output is a sum over tokens.

    python hooks/freeze_norms.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
tokens = sl.prompts.tokenize(
    model, "How many ones are in the following sequence? 110111011101 ="
)

steps = {
    "nothing": (),
    "attention": (sl.hooks.freeze_attention(),),
    "+ norms": (sl.hooks.freeze_attention(), sl.hooks.freeze_norms()),
    "+ gates": (
        sl.hooks.freeze_attention(),
        sl.hooks.freeze_norms(),
        sl.hooks.freeze_gates(),
    ),
}
norms = {}
for name, hooks in steps.items():
    with sl.applied(model, *hooks):
        norms[name] = sl.jacobian_norms(model, tokens)

# The same by name: sl.jacobian_norms(model, tokens, freeze=("attention", "norms", "gates"))
print(f"{'token':>10}" + "".join(f"{name:>11}" for name in steps))
for place, token in enumerate(norms["nothing"]["token"].values):
    print(
        f"{token:>10}"
        + "".join(f"{values.values[place]:11.3g}" for values in norms.values())
    )
