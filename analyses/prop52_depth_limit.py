"""Proposition 5.2 (B.8): if one attention pattern is repeated without end, every path starts at the first token.

Claim: (½(Λ + I))^k → e₁, at the rate (1 + max_{i>1} α_ii) / 2. This is about one repeated pattern. A model's blocks
differ, so it tells in which direction each block moves the paths, not where the paths of the model start.

    python analyses/prop52_depth_limit.py --model google/gemma-2b --out depth
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
parser.add_argument("--prompt", default=sl.example_models.EXAMPLE_PROMPT)
parser.add_argument("--depth", type=int, default=128, help="repetitions (%(default)s)")
parser.add_argument(
    "--out",
    type=Path,
    default=Path("depth"),
    help="folder for data and figure (%(default)s)",
)
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model)
limit = sl.attention_paths.depth_limit(model, args.prompt, depth=args.depth)
sl.results.save(limit, args.out / "depth_limit.nc")
sl.figures.save(sl.figures.depth_limit(limit), args.out / "depth_limit.html")

shares = sl.attention_paths.composition(model, args.prompt).sel(layer=0)
print(
    limit[["predicted_rate", "observed_rate", "absorbing"]]
    .to_dataframe()
    .round(4)
    .to_string()
)
print(
    f"composed once through its own blocks, the model has {shares.values[0]:.2%} of its paths at the first token"
)
print(f"data and figure in {args.out.resolve()}")
