"""Theorem 4.2 in random stacks: if positional information decays with distance, a repeated last token collapses.

The script measures premise and conclusion separately, as exponents of δ and of D, for several position encodings and
depths, with and without a sliding window.

    python analyses/encodings_and_depth.py --depth 1 2 --window 64 --longest 2000
"""

from dataclasses import dataclass
from typing import get_args

import numpy as np
import pandas as pd
import tyro

import squashlens as sl
from squashlens._typing import Encoding


@dataclass
class Options:
    """Command-line options.

    Args:
        encodings: position encodings.
        depth: layers.
        window: size of the window to try.
        longest: longest sequence, in tokens.
        lengths: how many lengths, evenly on a log scale.
        heads: attention heads.
        seeds: random draws.
    """

    encodings: tuple[Encoding, ...] = get_args(Encoding)
    depth: tuple[int, ...] = (1, 2)
    window: int = 64
    longest: int = 2000
    lengths: int = 40
    heads: int = 4
    seeds: int = 5


args = tyro.cli(Options, description=__doc__)

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
            first = found.isel(layer=0)
            top = found.isel(layer=-1)
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
