"""Figure 9: the total variation of two softmaxes that differ in their first entries falls with length (Lemma B.2).

Claim: with noise on the first 200 entries only, δ decays to 0. It decays as 1/n once n is well above 200, with a
factor 1 − k/n before that. The figure also has the mean that can be derived.

    python analyses/fig9_total_variation.py --k 200 --noise 0.1 --out fig9
"""

import argparse
from pathlib import Path

import numpy as np

import squashlens as sl

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument(
    "--k", type=int, default=200, help="entries with noise (%(default)s)"
)
parser.add_argument(
    "--noise",
    type=float,
    default=0.1,
    help="largest noise added to one entry (%(default)s)",
)
parser.add_argument(
    "--longest", type=int, default=100_000, help="longest sequence (%(default)s)"
)
parser.add_argument(
    "--lengths",
    type=int,
    default=30,
    help="how many lengths, evenly on a log scale (%(default)s)",
)
parser.add_argument("--seeds", type=int, default=5, help="random draws (%(default)s)")
parser.add_argument(
    "--out",
    type=Path,
    default=Path("fig9"),
    help="folder for data and figure (%(default)s)",
)
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

lengths = np.geomspace(10, args.longest, args.lengths).round().astype(int)
found = sl.synthetic.softmax_total_variation(
    lengths, k=args.k, noise=args.noise, seeds=args.seeds
)

sl.results.save(found, args.out / "total_variation.nc")
sl.figures.save(
    sl.figures.synthetic_total_variation(found), args.out / "total_variation.html"
)

mean, low, high = (found[f"exponent_{edge}"].item() for edge in ("mean", "low", "high"))
last = found.isel(length=-1)
print(
    f"δ ∝ n^{mean:.3f} [{low:.3f}, {high:.3f}] over {args.seeds} draws, R² {found['fit'].mean().item():.5f}"
)
mean, low, high = (found[f"leading_{edge}"].item() for edge in ("mean", "low", "high"))
print(f"without the factor 1 − k/n: n^{mean:.4f} [{low:.4f}, {high:.4f}]")
print(
    f"δ at n = {lengths[-1]}: {last['total_variation'].mean():.4g}, derived {last['expected']:.4g}"
)
print(f"data and figure in {args.out.resolve()}")
