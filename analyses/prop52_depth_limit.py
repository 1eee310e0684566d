"""Proposition 5.2 (B.8): if one attention pattern is repeated without end, every path starts at the first token.

Claim: (½(Λ + I))^k → e₁, at the rate (1 + max_{i>1} α_ii) / 2. This is about one repeated pattern. A model's blocks
differ, so it tells in which direction each block moves the paths, not where the paths of the model start.

    python analyses/prop52_depth_limit.py --model google/gemma-2b --out depth
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
        depth: repetitions.
        out: folder for data and figure.
    """

    model: str = "tiny-gemma"
    prompt: str = sl.example_models.EXAMPLE_PROMPT
    depth: int = 128
    out: Path = Path("depth")


args = tyro.cli(Options, description=__doc__)
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
