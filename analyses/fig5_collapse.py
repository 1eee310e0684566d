"""Figure 5: representations of a sequence and of that sequence with its last token repeated come closer with length.

Claim: for repeated ones (a, c) the distance D falls near machine precision by about 50 tokens, for sampled digits (b)
later, and commas after every third digit (d) keep it large. The script adds baselines that the paper's figure does not
have: a pair whose last token differs, unrelated sequences, and the noise floor.

    python analyses/fig5_collapse.py --model google/gemma-2b --n 512 --out fig5
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

import squashlens as sl


@dataclass
class Options:
    """Command-line options.

    Args:
        model: bundled name, folder or Hugging Face name.
        n: digits in the longest sequence.
        heads: reading of “each head”.
        ones: let the sequences of (b) end in ones, as in the paper.
        out: folder for data and figures.
    """

    model: str = "tiny-gemma"
    n: int = 512
    heads: Literal["value", "slice"] = "value"
    ones: bool = False
    out: Path = Path("fig5")


args = tyro.cli(Options, description=__doc__)
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model)
sequences = sl.prompts.figure5(model, args.n)
if args.ones:
    sequences["b"] = sl.prompts.digits(
        model,
        args.n,
        seed=0,
        prefix="How many ones are in the following sequences?",
        ending="1",
    )
pairs = {
    k: sl.capture(model, one, baselines=["contrast", "unrelated"], noise_lengths=8)
    for k, one in sequences.items()
}
panels = {
    letter: sl.collapse(model, captured, by_head=args.heads)
    for letter, captured in pairs.items()
}
for letter, panel in panels.items():
    sl.results.save(panel, args.out / f"fig5{letter}.nc")

trained = sl.example_models.trained_length(args.model)
about = {
    "a": "ones to count",
    "b": "random digits to count",
    "c": "ones to copy",
    "d": "ones and commas to copy",
}
named = {f"({letter}) {about[letter]}": ds for letter, ds in panels.items()}
sl.figures.save(
    sl.figures.collapse_curve(named, trained=trained), args.out / "fig5.html"
)
sl.figures.save(
    sl.figures.collapse_heatmap(panels["a"]), args.out / "fig5a_by_layer.html"
)

for letter, ds in panels.items():
    last = ds.isel(layer=-1)
    shown = last.sel(length=[n for n in (1, 11, 51, 101, 501) if n <= args.n])
    table = (
        shown[["distance", "contrast", "ulps", "probability_l1"]]
        .reset_coords(drop=True)
        .to_dataframe()
    )
    print(
        f"({letter}) ρ(D, length) = {last['length_trend'].item():.2f}\n{table.round(4).to_string()}"
    )
print(f"data and figures in {args.out.resolve()}")
