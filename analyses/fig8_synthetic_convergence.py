"""Figure 8: the last tokens of v and v* converge in a random attention layer with sinusoidal positions.

The paper's text has two readings, sines added to queries and keys or to the inputs; both are run. The script also
measures δ of the attention rows: Theorem B.3 derives convergence from δ → 0, so if D falls and δ does not, there is
another cause. Both readings are attention alone, without the residual connection, norm and MLP of the Transformer
that the paper follows.

    python analyses/fig8_synthetic_convergence.py --longest 100000 --out fig8
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
        longest: longest sequence, in tokens.
        lengths: how many lengths, evenly on a log scale.
        seeds: random draws.
        out: folder for data and figure.
    """

    longest: int = 100_000
    lengths: int = 40
    seeds: int = 5
    out: Path = Path("fig8")


args = tyro.cli(Options, description=__doc__)
args.out.mkdir(parents=True, exist_ok=True)

lengths = np.geomspace(10, args.longest, args.lengths).round().astype(int)
paper = sl.synthetic.PAPER
Stack = sl.synthetic.Stack
stacks = {
    "no positions": Stack(projections="direct"),
    "sines on queries and keys": paper["queries_keys"],
    "sines on the inputs": paper["inputs"],
}
found = {
    name: sl.synthetic.convergence(stack, lengths, seeds=args.seeds)
    for name, stack in stacks.items()
}

for number, one in enumerate(found.values()):
    sl.results.save(one, args.out / f"stack_{number}.nc")
sl.figures.save(sl.figures.synthetic_convergence(found), args.out / "convergence.html")

print(
    f"exponents over the upper half of log n, 95 % intervals over {args.seeds} draws; D and δ at n = {lengths[-1]}"
)
for name, one in found.items():
    here = one.isel(layer=0)
    D, delta = (
        "{:.3f} [{:.3f}, {:.3f}]".format(
            *(here[f"{of}_{edge}"].item() for edge in ("mean", "low", "high"))
        )
        for of in ("exponent", "variation_exponent")
    )
    last, far = (
        here[of].isel(length=-1).mean().item() for of in ("distance", "total_variation")
    )
    print(f"{name}: D ∝ n^{D}, δ ∝ n^{delta}; D = {last:.4g}, δ = {far:.4g}")
    print(
        f"  premise, positional information decays: {'seen' if here['premise'] else 'not seen'}"
    )
    if here["rate"].notnull():
        print(f"  derived, in the limit of long sequences: D ∝ n^{here['rate']:.1f}")
print(f"data and figure in {args.out.resolve()}")
