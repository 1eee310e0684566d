"""Figure 9: the total variation of two softmaxes that differ in their first entries falls with length (Lemma B.2).

Claim: with noise on the first 200 entries only, δ decays to 0. It decays as 1/n once n is well above 200, with a
factor 1 − k/n before that. The figure also has the mean that can be derived.

    python analyses/fig9_total_variation.py --k 200 --noise 0.1 --out fig9
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

import squashlens as sl


@dataclass
class Options:
    """Command-line options.

    Args:
        k: entries with noise.
        noise: largest noise added to one entry.
        longest: longest sequence.
        lengths: how many lengths, evenly on a log scale.
        seeds: random draws.
        out: folder for data and figure.
    """

    k: int = 200
    noise: float = 0.1
    longest: int = 100_000
    lengths: int = 30
    seeds: int = 5
    out: Path = Path("fig9")


args = tyro.cli(Options, description=__doc__)
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
