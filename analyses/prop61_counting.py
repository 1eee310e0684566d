"""Proposition 6.1: without positional encodings and without a causal mask a model cannot count.

Claim: softmax depends on ratios of counts and not on counts, so 10 and 1100 have the same representations at every
layer unless a mask or positions tell their tokens apart. The script removes the mask and the position ids of the
model's own blocks in turn. With either of them the two differ, and this is all that the model can use to count.

    python analyses/prop61_counting.py --model google/gemma-2b --content 1 0 0 --times 3
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
        content: tokens of the shorter sequence (1 0).
        times: how often each occurs in the longer one.
        out: folder for the data.
    """

    model: str = "tiny-gemma"
    content: tuple[str, ...] = ("1", "0")
    times: int = 2
    out: Path = Path("prop61")


args = tyro.cli(Options, description=__doc__)
args.out.mkdir(parents=True, exist_ok=True)

found = sl.theorems.shares_and_counts(
    sl.load(args.model), args.content, times=args.times
)
sl.results.save(found, args.out / "shares_and_counts.nc")
longer = "".join(token * args.times for token in args.content)
print(
    f"{''.join(args.content)} and {longer}: largest L∞ distance of two equal tokens ÷ rms, by layer and y"
)
print(
    f"{'mask':>8} {'positions':>10}"
    + "".join(f"{f'layer {n}':>10}" for n in found["layer"].values)
    + f"{'y':>10}"
)
for mask in found["mask"].values:
    for positions in found["positions"].values:
        cell = found.sel(mask=mask, positions=positions)
        values = [*cell["distance"].values, cell["distance_y"].item()]
        print(
            f"{mask:>8} {positions:>10}"
            + "".join(f"{value:>10.2g}" for value in values)
        )
print(f"data in {args.out.resolve()}")
