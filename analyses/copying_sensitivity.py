"""Figure 2 and Theorem 5.1: over-squashing makes the last digit of 1…10 harder to copy than the first of 01…1.

Claim: hints and interleaved digits help. If over-squashing is the reason, the asked digit influences y least in the
first case, and more with each help. The script measures sensitivity at the asked digit, for every prompt and length.

    python analyses/copying_sensitivity.py --model google/gemma-2b --lengths 16 64 256 --out copying
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
        lengths: digits.
        out: folder for data and figure.
    """

    model: str = "tiny-gemma"
    lengths: tuple[int, ...] = (8, 24, 48, 96)
    out: Path = Path("copying")


args = tyro.cli(Options, description=__doc__)
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model)
hint = "Hint It's not necessarily a 1, check carefully"
cases = []
for n in args.lengths:
    for asked, zero in (("last", n), ("first", 1)):
        question = f"What is the {asked} digit in this sequence?"
        ones = ["1"] * n
        mixed = ["01"[(k + zero) % 2] for k in range(1, n + 1)]
        ones[zero - 1] = "0"
        for kind, digits, prompt in (
            ("plain", ones, question),
            ("hint", ones, f"{question} {hint}"),
            ("interleaved", mixed, question),
        ):
            sequence = sl.prompts.build(model, digits, prefix=prompt, suffix="=")
            cases.append((f"{asked}, {kind}", n, sequence, sequence.position(zero)))

found = sl.needle_sensitivity(
    model,
    [sequence.plain(n).ids(sequence.trunk) for _, n, sequence, _ in cases],
    [position for *_, position in cases],
    groups=[(name, n) for name, n, *_ in cases],
    candidates=[sl.prompts.one_token(model, digit) for digit in "0123456789"],
)
sl.results.save(found, args.out / "copying.nc")
sl.figures.save(
    sl.figures.needle_sensitivity(
        found, title="Sensitivity to the asked digit", xlabel="digits"
    ),
    args.out / "copying.html",
)
means = [name for name in found.data_vars if str(name).endswith("_mean")]
print(found[means].to_dataframe().to_string(float_format=lambda value: f"{value:.4g}"))
print(f"data and figure in {args.out.resolve()}")
