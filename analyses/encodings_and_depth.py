"""Theorem 4.2 in random stacks: if positional information decays with distance, a repeated last token collapses.

The script measures premise and conclusion separately, as exponents of δ and of D, for several position encodings and
depths, with and without a sliding window.

    python analyses/encodings_and_depth.py --depth 1 2 --window 64 --longest 2000
"""

import argparse

import numpy as np
import pandas as pd

import squashlens as sl

ENCODINGS = ["none", "sinusoidal", "sinusoidal_qk", "rope", "alibi", "t5", "learned"]
parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument(
    "--encodings", nargs="+", default=ENCODINGS, help="position encodings (%(default)s)"
)
parser.add_argument(
    "--depth", type=int, nargs="+", default=[1, 2], help="layers (%(default)s)"
)
parser.add_argument(
    "--window", type=int, default=64, help="size of the window to try (%(default)s)"
)
parser.add_argument(
    "--longest",
    type=int,
    default=2000,
    help="longest sequence, in tokens (%(default)s)",
)
parser.add_argument(
    "--lengths",
    type=int,
    default=40,
    help="how many lengths, evenly on a log scale (%(default)s)",
)
parser.add_argument(
    "--heads", type=int, default=4, help="attention heads (%(default)s)"
)
parser.add_argument("--seeds", type=int, default=5, help="random draws (%(default)s)")
args = parser.parse_args()

lengths = np.geomspace(10, args.longest, args.lengths).round().astype(int)
rows = []
for encoding in args.encodings:
    for depth in args.depth:
        for window in (None, args.window):
            stack = sl.synthetic.Stack(
                heads=args.heads,
                residual=True,
                norm="rms",
                mlp=4,
                encoding=encoding,
                depth=depth,
                window=window,
            )
            found = sl.synthetic.convergence(stack, lengths, seeds=args.seeds)
            first, top = found.isel(layer=0), found.isel(layer=-1)
            rows.append(
                {
                    "encoding": encoding,
                    "depth": depth,
                    "window": window or "all",
                    "premise": bool(first["premise"]),
                    **{
                        f"D{end}": float(top[f"exponent{end}"])
                        for end in ("_mean", "_low", "_high")
                    },
                    **{
                        f"delta{end}": float(first[f"variation_exponent{end}"])
                        for end in ("_mean", "_high")
                    },
                    "D_at_longest": float(top["distance"][:, -1].mean()),
                }
            )
print(
    "exponents of D (last layer) and of δ (first layer) over the upper half of log n; premise: δ decays"
)
print(pd.DataFrame(rows).round(3).to_string(index=False))
