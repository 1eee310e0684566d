"""Hide the separators of a sequence from every later token, from one block on, and see what is left of them.

Copy this and edit it. The hook sets attention logits to −∞, so the weights renormalise over what is left; a
separator still attends to itself. It is probed at its first use: a hook that did nothing would stop the script.

    python hooks/mask_separators.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
ones = sl.prompts.repeated(model, "1", 30, prompt="Can you copy the following number?", separator=",", every=3)
v, v_star = ones.pair(30).tensors()  # the second has the last digit once more
commas = ones.separator_places(30)
top = model.cfg.n_layers


def distance() -> float:
    """‖v⁽ᴸ⁾ − v*⁽ᴸ⁾‖∞ at the last token, under whatever hooks stand."""
    last = [sl.capture(model, ids, patterns=False, layers=[top]).residuals[top][0, -1] for ids in (v, v_star)]
    return (last[0] - last[1]).abs().max().item()


print(f"30 ones with a comma after every third: D = {distance():.4g}")
for first in range(top):
    with sl.applied(model, sl.mask_tokens(commas, blocks=tuple(range(first, top)))):
        print(f"commas masked from block {first} on:        D = {distance():.4g}")

# The same over all lengths and layers, with controls and noise floor, is one call:
ablation = sl.separator_ablation(model, ones, kinds=["mask"], progress=False)
print(ablation["retained_from"].sel(hook="mask", layer=top, length=30).to_series().round(3).to_string())
