"""Theorem 4.2 in random stacks: if positional information decays with distance, a repeated last token collapses.

The script measures premise and conclusion separately, as exponents of δ and of D, for several position encodings and
depths, with and without a sliding window.

    python analyses/encodings_and_depth.py --depth 1 2 --window 64 --longest 2000 --out encodings
"""

import argparse
from pathlib import Path

import squashlens as sl

ENCODINGS = ["none", "sinusoidal", "sinusoidal_qk", "rope", "alibi", "t5", "learned"]
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--encodings", nargs="+", default=ENCODINGS, help="position encodings (%(default)s)")
parser.add_argument("--depth", type=int, nargs="+", default=[1, 2], help="layers (%(default)s)")
parser.add_argument("--window", type=int, default=64, help="size of the window to try (%(default)s)")
parser.add_argument("--longest", type=int, default=2000, help="longest sequence, in tokens (%(default)s)")
parser.add_argument("--lengths", type=int, default=40, help="how many lengths, evenly on a log scale (%(default)s)")
parser.add_argument("--heads", type=int, default=4, help="attention heads (%(default)s)")
parser.add_argument("--seeds", type=int, default=5, help="random draws (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("encodings"), help="folder for data and figure (%(default)s)")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

lengths = sl.synthetic.lengths_up_to(args.longest, args.lengths)
stack = sl.synthetic.Stack(heads=args.heads, residual=True, norm="rms", mlp=4)
over = {"encoding": args.encodings, "depth": args.depth, "window": [None, args.window]}
found = sl.synthetic.survey(stack, over, lengths, seeds=args.seeds)

sl.save(found, args.out / "survey.nc")
sl.figures.save(sl.figures.survey(found), args.out / "survey.html")

table = found[["premise"]].assign(
    D=found["exponent_mean"], D_low=found["exponent_low"], D_high=found["exponent_high"],
    delta=found["variation_exponent_mean"], delta_high=found["variation_exponent_high"],
    D_at_longest=found["distance"].mean("seed"), delta_at_longest=found["total_variation"].mean("seed"),
)  # fmt: skip
print(f"exponents of D and of δ over the upper half of log n, D and δ at n = {lengths[-1]}; premise: δ decays")
print(table.reset_coords(drop=True).to_dataframe().round(3).to_string())
print(f"data and figure in {args.out.resolve()}")
