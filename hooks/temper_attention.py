"""Sharpen or flatten attention, in one block or in all, and see how sharp it must be for the right answer.

Copy this and edit it. A temperature T divides attention scores, so that each weight becomes α^(1/T) divided by the sum
of its row. As T grows, attention becomes uniform, as in the path bound's null. The second table has the first digit's
share of the path bound.

    python hooks/temper_attention.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
prompt = "How many ones are in the following sequence? 110111011101 ="
first = sl.hooks.find_positions(model, prompt, str.isdigit)[0]
L = len(model.blocks)


def under(*hooks: sl.hooks.Hook) -> tuple[str, str]:
    """The most likely next token with its probability; the first digit's share of the path bound."""
    with sl.applied(model, *hooks):
        best = sl.top_tokens(model, prompt, k=1)
        bound = sl.path_bound(model, prompt)
    return (
        f"{best['token'].item()} {best.item():.3f}",
        f"{float(bound[first] / bound.sum()):.4f}",
    )


temperatures = (0.25, 2.0, 4.0, 8.0)
found = []
for blocks in (*[(b,) for b in range(L)], tuple(range(L))):
    tempered = [sl.hooks.attention_temperature(T, blocks) for T in temperatures]
    found.append(
        [under(hook) for hook in (*tempered, sl.hooks.uniform_attention(blocks))]
    )

names = (*[f"T = {T:g}" for T in temperatures], "uniform")
titles = ("answer and its probability", "path bound: the first digit's share")
for table, (title, unchanged) in enumerate(zip(titles, under(), strict=True)):
    print(f"\n{title}; unchanged: {unchanged}")
    print(f"{'':>7}" + "".join(f"  {name:>8}" for name in names))
    for name, row in zip(
        (*[f"block {b}" for b in range(L)], "all"), found, strict=True
    ):
        print(f"{name:>7}" + "".join(f"  {cell[table]:>8}" for cell in row))
