"""Round keys, values and attention weights to fewer bits, as a quantized cache does, and see if the answer changes.

Copy this and edit it. Give formats by name, or a number of bits after the leading one. Keys are rounded before they
are rotated, and no scale is fitted; caches differ in both. One prompt is certain, in the other the model is
uncertain.

    python hooks/round_keys_values.py
"""

import pandas as pd

import squashlens as sl

model = sl.load("tiny-gemma")
question = "How many ones are in the following sequence? "
prompts = {
    "sure": question + "110111011101 =",  # 9
    "in doubt": question
    + "11001101111111111110001011111011001111110111 = 3",  # 33; the second 3 comes next
}


def answer(prompt: str, *hooks: sl.hooks.Hook) -> str:
    """The most likely next token and its probability, with some hooks."""
    with sl.applied(model, *hooks):
        best = sl.top_tokens(model, prompt, k=1)
    return f"{best['token'].item()} {best.item():.4f}"


for name, prompt in prompts.items():
    table = {}
    for label, to in {
        "bfloat16": "bfloat16",
        "3 bits": 3,
        "1 bit": 1,
        "0 bits": 0,
    }.items():
        keys = sl.hooks.round_activations(to, "keys")
        values = sl.hooks.round_activations(to, "values")
        patterns = sl.hooks.round_activations(to, "patterns")
        table[label] = {
            "keys": answer(prompt, keys),
            "values": answer(prompt, values),
            "both": answer(prompt, keys, values),
            "patterns": answer(prompt, patterns),
        }
    print(f"\n{name}: …{prompt[-16:]}   {answer(prompt)}")
    print(pd.DataFrame(table).T.to_string())
