"""Round keys, values and attention weights to fewer bits, as a quantised cache would: does the answer stand?

Copy this and edit it. Formats by name, or bits behind the leading one. Keys are rounded before they are rotated and
no scale is fitted to them; caches differ in both. Asked where the model is sure, and where it is in doubt.

    python hooks/round_keys_values.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
question = "How many ones are in the following sequence? "
prompts = {
    "sure": question + "110111011101 =",  # 9
    "in doubt": question + "11001101111111111110001011111011001111110111 = 3",  # 33: the second digit is asked
}


def answer(prompt: str, *hooks: sl.Hook) -> str:
    """The likeliest next token and its probability, under some hooks."""
    with sl.applied(model, *hooks):
        best = sl.next_token(model, prompt, top=1)
    return f"{best['token'].item()} {best.item():.4f}"


for name, prompt in prompts.items():
    print(f"\n{name}: …{prompt[-16:]}   {answer(prompt)}")
    print(f"{'':>13}" + "".join(f"  {what:>8}" for what in ("keys", "values", "both", "patterns")))
    for to in ("bfloat16", "float8_e4m3fn", "float8_e5m2", 1, 0):
        keys, values, patterns = sl.rounding(to, "keys"), sl.rounding(to, "values"), sl.rounding(to, "patterns")
        row = [answer(prompt, *hooks) for hooks in ((keys,), (values,), (keys, values), (patterns,))]
        label = f"bits: {to}" if isinstance(to, int) else to
        print(f"{label:>13}" + "".join(f"  {cell:>8}" for cell in row))
