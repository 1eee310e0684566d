"""Hide the separators of a sequence from all later tokens, from one block on, and see how much of their effect is left.

Copy this and edit it. The hook sets attention scores to −∞, so that the other weights of a row grow; a separator still
attends to itself. The hook is checked at its first use: if it had no effect, the script would stop.

    python hooks/mask_separators.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
ones = sl.prompts.repeated(
    model, "1", 30, prefix="Can you copy the following number?", separator=","
)
v, v_star = ones.pair(30).tensors()  # v* has the last digit once more
commas = ones.separator_places(30)
top = model.cfg.n_layers


def distance() -> float:
    """‖v⁽ᴸ⁾ − v*⁽ᴸ⁾‖∞ at the last token, with the current hooks."""
    last = [
        sl.capture(model, ids, keep="residuals", layers=[top]).residuals[top][0, -1]
        for ids in (v, v_star)
    ]
    return (last[0] - last[1]).abs().max().item()


print(f"30 ones with a comma after every third: D = {distance():.4g}")
for first in range(top):
    with sl.applied(
        model, sl.hooks.mask_tokens(commas, blocks=tuple(range(first, top)))
    ):
        print(f"commas masked from block {first} on:        D = {distance():.4g}")

# One call measures the same for several lengths and all layers, with controls and a noise floor:
ablation = sl.separator_ablation(model, ones, kinds=["mask"], from_blocks=range(top))
print(
    ablation["retained_from"]
    .sel(hook="mask", layer=top, length=30)
    .to_series()
    .round(3)
    .to_string()
)
