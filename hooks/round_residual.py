"""Round the residual stream to fewer and fewer bits, in one block or in all, and see how the answer changes.

Copy this and edit it. `sl.hooks.round_activations` takes a format (`"bfloat16"`, `"float16"`) or a number of bits after
the leading one, and rounds the stream, keys, values or patterns. Derivatives ignore the rounding.

    python hooks/round_residual.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
tokens = sl.prompts.tokenize(
    model, "How many ones are in the following sequence? 110111011101 ="
)
L = len(model.blocks)

print(f"{'bits':>4}" + "".join(f"   block {b}" for b in range(L)) + "       all")
for bits in (10, 7, 4, 2, 0):
    row = []
    for blocks in (*[(b,) for b in range(L)], None):
        with sl.applied(
            model, sl.hooks.round_activations(bits, "residual", blocks=blocks)
        ):
            answer = sl.top_tokens(model, tokens, k=1)
        row.append(f"{answer['token'].item()} {answer.item():.4f}")
    print(f"{bits:>4}" + "".join(f"  {cell:>8}" for cell in row))
