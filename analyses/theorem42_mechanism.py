"""Theorem 4.2 (B.3): why representations should come close, step by step on the heads of the model.

Claim: as a sequence grows, repeating its last token changes the last attention row less and less (δ → 0), the
new token's weight on itself goes to 0, and the attention outputs of block 0 differ by at most Σ_h max‖x‖₁ (δ + α*).

    python analyses/theorem42_mechanism.py --model google/gemma-2b --n 256 --out theorem42
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
        n: ones in the longest sequence.
        out: folder for data and figure.
    """

    model: str = "tiny-gemma"
    n: int = 256
    out: Path = Path("theorem42")


args = tyro.cli(Options, description=__doc__)
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model)
measured = sl.collapse_mechanism(model, sl.prompts.figure5(model, args.n)["a"])

sl.results.save(measured, args.out / "mechanism.nc")
sl.figures.save(sl.figures.collapse_mechanism(measured), args.out / "mechanism.html")

for name in ("attention_tv", "self_weight"):
    by_block = measured[f"{name}_mean"].sel(
        length=[n for n in (1, 16, 64, 256) if n <= args.n]
    )
    print(
        f"{name}: ρ with length {measured[f'{name}_trend'].item():.2f}; by block, mean over heads"
    )
    print(by_block.reset_coords(drop=True).to_pandas().round(4).to_string())
ratio = measured["bound"] / measured["observed"]
print(
    f"block 0: bound ÷ observed from {ratio.min().item():.3g} to {ratio.max().item():.3g}, never below 1"
)
print(f"data and figure in {args.out.resolve()}")
