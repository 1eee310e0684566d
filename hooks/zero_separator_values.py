"""Let separators be attended to and give nothing: zero their value vectors from one block on.

Beside `mask_separators.py` this tells two things apart that separators do: what they say (their values) and the
attention they draw away from the digits, which stays as it is here.

    python hooks/zero_separator_values.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
ones = sl.prompts.repeated(model, "1", 30, prompt="Can you copy the following number?", separator=",", every=3)
v, v_star = ones.pair(30).tensors()
commas = ones.separator_places(30)
top = model.cfg.n_layers

patterns = {}
for name, hooks in {"as it is": (), "values zeroed": (sl.zero_values(commas, blocks=(0,)),)}.items():
    with sl.applied(model, *hooks):
        run = sl.capture(model, v)
    patterns[name] = run.patterns[0][0, :, -1, list(commas)].sum(-1)
    print(f"{name:>14}: block 0's last token gives the commas {patterns[name].mean():.3f} of its attention")
print("attention of block 0 unchanged:", bool((patterns["as it is"] == patterns["values zeroed"]).all()))

# Over all lengths, layers and blocks, against masking:
ablation = sl.separator_ablation(model, ones, kinds=["mask", "zero_value"], progress=False)
kept = ablation["retained_from"].sel(layer=top).median("length")
print("effect left at the last layer (median over lengths), by the block hooks act from:")
print(kept.to_series().unstack("hook").round(3).to_string())
