"""Set the value vectors of separators to zero from one block on: other tokens attend to them but get nothing.

Compare with `mask_separators.py`. Separators act through their values, and through the attention that they draw
away from the digits. Here the attention stays as it was.

    python hooks/zero_separator_values.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
ones = sl.prompts.repeated(
    model, "1", 30, prefix="Can you copy the following number?", separator=","
)
v, v_star = ones.pair(30).tensors()
commas = ones.separator_places(30)
top = model.cfg.n_layers

patterns = {}
for name, hooks in {
    "unchanged": (),
    "values zeroed": (sl.hooks.zero_values(commas, blocks=(0,)),),
}.items():
    with sl.applied(model, *hooks):
        run = sl.capture(model, v)
    patterns[name] = run.patterns[0][0, :, -1, list(commas)].sum(-1)
    print(
        f"{name:>14}: block 0's last token gives the commas {patterns[name].mean():.3f} of its attention"
    )
print(
    "attention of block 0 unchanged:",
    bool((patterns["unchanged"] == patterns["values zeroed"]).all()),
)

# The same for all lengths, layers and blocks, compared with masking:
ablation = sl.separator_ablation(
    model,
    ones,
    kinds=["mask", "zero_values"],
    from_blocks=range(top),
    lengths=range(1, len(ones) + 1),
)
kept = ablation["retained_from"].sel(layer=top).median("length")
print(
    "effect left at the last layer (median over lengths), by the block hooks act from:"
)
print(kept.to_series().unstack("hook").round(3).to_string())
