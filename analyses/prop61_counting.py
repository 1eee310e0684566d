"""Proposition 6.1: without positional encodings and without a causal mask a model cannot count.

Claim: softmax depends on ratios of counts and not on counts, so 10 and 1100 have the same representations at every
layer unless a mask or positions tell their tokens apart. The script removes the mask and the position ids of the
model's own blocks in turn. With either of them the two differ, and this is all that the model can use to count.

    python analyses/prop61_counting.py --model google/gemma-2b --content 1 0 0 --times 3
"""

import argparse
from pathlib import Path

import squashlens as sl

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument(
    "--model",
    default="tiny-gemma",
    help="bundled name, folder or Hugging Face name (%(default)s)",
)
parser.add_argument(
    "--content",
    nargs="+",
    default=["1", "0"],
    help="tokens of the shorter sequence (1 0)",
)
parser.add_argument(
    "--times",
    type=int,
    default=2,
    help="how often each occurs in the longer one (%(default)s)",
)
parser.add_argument(
    "--out", type=Path, default=Path("prop61"), help="folder for the data (%(default)s)"
)
args = parser.parse_args()
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
