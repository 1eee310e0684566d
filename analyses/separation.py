"""Section 4: which lengths can a model still tell apart above its own rounding, in float32 and in bfloat16?

Every length of a repeated word is run in three groupings into passes, which round otherwise. A length is recovered if
the nearest representation of another run is its own. Beside it: the same with commas, prose, and random weights.

    python analyses/separation.py --model gemma-3-270m --word " one" --n 256 --out separation
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

import squashlens as sl

PROSE = (
    "The old house stood at the end of a narrow road, and nobody had lived in it since the winter of the great flood. "
    "Children who passed on their way to school said that a light moved behind its windows. "
)


@dataclass
class Options:
    """Command-line options.

    Args:
        model: bundled name, folder or Hugging Face name.
        word: text of one token that is repeated.
        prefix: text before the words, which a model without BOS needs.
        n: longest sequence.
        runs: dtypes to run in.
        prose: also measure prose, for a model that reads any text.
        out: folder for data and figures.
    """

    model: str = "tiny-gemma"
    word: str = "1"
    prefix: str = ""
    n: int = 96
    runs: tuple[str, ...] = ("bfloat16", "float32")
    prose: bool = False
    out: Path = Path("separation")


args = tyro.cli(Options, description=__doc__)
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model)
sequences = {
    "repeated": sl.prompts.repeated(model, args.word, args.n, prefix=args.prefix),
    "with commas": sl.prompts.repeated(
        model, args.word, args.n, prefix=args.prefix, separator=","
    ),
}
if args.prose:
    ids = sl.prompts.tokenize(model, PROSE * (args.n // 40 + 1))[0].tolist()
    sequences["prose"] = sl.prompts.build(model, ids[1 : args.n + 1], prefix=ids[:1])

models = {dtype: sl.load(args.model, dtype=dtype) for dtype in args.runs}
found: dict[str, Any] = {
    name: sl.results.concat(
        {
            dtype: sl.distinguishable_lengths(one, sequence)
            for dtype, one in models.items()
        },
        dim="run",
    )
    for name, sequence in sequences.items()
}
for name, one in found.items():
    sl.results.save(one, args.out / f"{name.replace(' ', '_')}.nc")
sl.figures.save(sl.figures.separation_curve(found), args.out / "separation.html")

for name, one in found.items():
    for run in one["run"].values:
        own = one.sel(run=run)
        print(
            f"{name}, {run}: {own['recovery_y'].item():.2f} of {own.sizes['length']} lengths recovered from y "
            f"(random weights {own['recovery_random_y'].mean().item():.2f}, chance {own['chance'].item():.3f}); "
            f"by the next token {own['next_recovery'].item():.2f}; one more token moves y by "
            f"{own['step_y'].median().item():.3g} times its rounding (median)"
        )
print(f"data and figure in {args.out.resolve()}")
