"""The sum over paths favours early tokens, so that the start of a prompt should be easier to use than its middle.

The script puts a needle at every position among random digits. It draws the path bound, the bound over the null, the
true Jacobian norm and the effect of replacing the needle by position, with intervals.

    python analyses/u_shape.py --model google/gemma-2b --n 24 --prompts 20 --out u_shape
"""

from dataclasses import dataclass
from pathlib import Path

import tyro

import squashlens as sl


@dataclass
class Options:
    """Command-line options.

    Args:
        model: bundled name, folder or Hugging Face name.
        needle: token whose position varies.
        n: digits in each prompt.
        prompts: prompts for each position.
        out: folder for data and figure.
    """

    model: str = "tiny-gemma"
    question: str = "How many ones are in the following sequence?"
    needle: str = "1"
    n: int = 16
    prompts: int = 20
    out: Path = Path("u_shape")


args = tyro.cli(Options, description=__doc__)
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model)
needle = sl.prompts.one_token(model, args.needle)
places = range(1, args.n + 1)
hay = [d for d in "0123456789" if d != args.needle]
grounds = [
    sl.prompts.words(model, args.n, hay, seed=seed, prefix=args.question, suffix="=")
    for seed in range(args.prompts)
]
cases = [
    (ground.replaced(place, needle), place) for place in places for ground in grounds
]
found = sl.needle_sensitivity(
    model,
    sl.prompts.stacked([sequence for sequence, _ in cases]).tolist(),
    [sequence.position(place) for sequence, place in cases],
    groups=[("needle", place) for _, place in cases],
    candidates=[sl.prompts.one_token(model, d) for d in hay],
)

sl.results.save(found, args.out / "u_shape.nc")
title = f"A {args.needle} among {args.n - 1} other digits, by its place ({args.prompts} prompts at each)"
sl.figures.save(
    sl.figures.needle_sensitivity(found, title=title, xlabel="place of the needle"),
    args.out / "u_shape.html",
)

sides = [
    name for name in found.data_vars if str(name).endswith(("_mean", "_low", "_high"))
]
print(
    found[sides]
    .squeeze("group", drop=True)
    .to_dataframe()
    .to_string(float_format=lambda value: f"{value:.4g}")
)
print(f"data and figure in {args.out.resolve()}")
