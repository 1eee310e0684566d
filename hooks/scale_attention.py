"""Scale the attention that some tokens receive, and see how much of it the answer needs.

Copy this and edit it. The weights with which later tokens attend to some positions are multiplied by a factor, and
each row is divided by its sum. A factor of 0 is a mask, and a factor of 1 changes nothing.

    python hooks/scale_attention.py
"""

import pandas as pd

import squashlens as sl

model = sl.load("tiny-gemma")


def under(prompt: str, positions: tuple[int, ...], factor: float) -> dict[str, str]:
    """The most likely next token with its probability; the share of the path bound that these tokens have."""
    with sl.applied(model, sl.hooks.scale_attention(factor, positions)):
        best = sl.top_tokens(model, prompt, k=1)
        bound = sl.path_bound(model, prompt)
    share = bound[list(positions)].sum() / bound.sum()
    return {
        "answer": f"{best['token'].item()} {best.item():.3f}",
        "path bound's share": f"{float(share):.3f}",
    }


last_digit = "What is the last digit in this sequence? 4071582 ="
ones = "How many ones are in the following sequence? 110111011101 ="
digits = sl.hooks.find_positions(model, last_digit, str.isdigit)
every_digit = sl.hooks.find_positions(model, ones, str.isdigit)
for prompt, name, positions in (
    (last_digit, "the last digit", digits[-1:]),
    (ones, "every digit", every_digit),
):
    table = {}
    for factor in (0.0, 0.1, 0.5, 1.0, 2.0, 10.0):
        table[f"{factor:g}"] = under(prompt, positions, factor)
    print(f"\n{prompt}   {name}, all blocks; by factor")
    print(pd.DataFrame(table).to_string())
