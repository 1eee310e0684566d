"""Scale the attention that some tokens receive, and see how much of it the answer needs.

Copy this and edit it. The weights with which later tokens attend to some positions are multiplied by a factor, and
each row is divided by its sum. A factor of 0 is a mask, and a factor of 1 changes nothing.

    python hooks/scale_attention.py
"""

import squashlens as sl

model = sl.load("tiny-gemma")
factors = (0.0, 0.1, 0.5, 1.0, 2.0, 10.0)


def under(prompt: str, place: list[int], *hooks) -> tuple[str, str]:
    """The most likely next token with its probability; the share of the path bound that these tokens have."""
    with sl.applied(model, *hooks):
        best = sl.top_tokens(model, prompt, k=1)
        bound = sl.path_bound(model, prompt)
    return (
        f"{best['token'].item()} {best.item():.3f}",
        f"{float(bound[place].sum() / bound.sum()):.3f}",
    )


for prompt, named in {
    "What is the last digit in this sequence? 4071582 =": (
        "the last digit",
        lambda places: places[-1:],
    ),
    "How many ones are in the following sequence? 110111011101 =": (
        "every digit",
        lambda places: places,
    ),
}.items():
    place = list(named[1](sl.hooks.find_positions(model, prompt, str.isdigit)))
    print(f"\n{prompt}   {named[0]}, all blocks")
    for title, number in {"answer": 0, "path bound's share": 1}.items():
        row = [
            under(prompt, place, sl.hooks.scale_attention(factor, place))[number]
            for factor in factors
        ]
        if number == 0:
            print(f"{'factor':>18}" + "".join(f"  {factor:>7g}" for factor in factors))
        print(f"{title:>18}" + "".join(f"  {cell:>7}" for cell in row))
