"""Theorem 4.2 in random stacks: if positional information decays with distance, a repeated last token collapses.

The script measures premise and conclusion separately, as exponents of δ and of D, for several position encodings and
depths, with and without a sliding window. It is a study with a cell for each encoding and depth: it can be interrupted
and continued, and shared by workers. Intervals are over random draws, so a cell has all its draws.

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
parser.add_argument("--workers", type=int, default=1, help="number of processes (%(default)s)")
parser.add_argument("--engine", default="local", help="local, ray or slurm (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("encodings"), help="folder for store and figure (%(default)s)")
args = parser.parse_args()

lengths = sl.synthetic.lengths_up_to(args.longest, args.lengths)
stack = {"heads": args.heads, "residual": True, "norm": "rms", "mlp": 4}
shared = {"stack": stack, "over": {"window": [None, args.window]}, "lengths": lengths, "seeds": args.seeds}
each = {"stack.encoding": args.encodings, "stack.depth": args.depth}
grid = {"measurement": "synthetic.survey", "arguments": shared, "each": each}
study = sl.Study(grid, store=args.out / "store")
print(study.run(engine=args.engine, workers=args.workers).to_string(index=False))
print(study.failures().to_string(index=False) if len(study.failures()) else "no cell failed")

found = study.combine().load()
sl.figures.save(sl.figures.survey(found), args.out / "survey.html")

table = found[["premise"]].assign(
    D=found["exponent_mean"], D_low=found["exponent_low"], D_high=found["exponent_high"],
    delta=found["variation_exponent_mean"], delta_high=found["variation_exponent_high"],
    D_at_longest=found["distance"].mean("seed"), delta_at_longest=found["total_variation"].mean("seed"),
)  # fmt: skip
print(f"exponents of D and of δ over the upper half of log n, D and δ at n = {lengths[-1]}; premise: δ decays")
print(table.reset_coords(drop=True).to_dataframe().round(3).to_string())
print(f"store and figure in {args.out.resolve()}")
