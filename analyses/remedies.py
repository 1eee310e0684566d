"""What remedies for collapse and over-squashing buy, measured on the same sequences: distance D and right answers.

Windows, sinks, separators, temperatures, and attention scaled with the context or by its entropy are compared with the
unchanged model. One sequence is one observation: quotients of D are medians over drawn sequences, with a sign test.

    python analyses/remedies.py --model google/gemma-2b --n 96 --out remedies
"""

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pandas as pd
import tyro
from scipy.stats import binomtest

import squashlens as sl


@dataclass
class Options:
    """Command-line options.

    Args:
        model: bundled name, folder or Hugging Face name.
        n: digits of each sequence.
        trained: tokens where log n has a factor of 1.
        window: tokens of the sliding window.
        n_samples: sequences of each family.
        out: folder for the data.
    """

    model: str = "tiny-gemma"
    n: int = 24
    trained: int = 24
    window: int = 16
    n_samples: int = 8
    out: Path = Path("remedies")


args = tyro.cli(Options, description=__doc__)
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model)
comma = sl.prompts.one_token(model, ",")
count = "How many ones are in the following sequences?"
first = "What is the first digit in this sequence?"
families = {
    "count ones": (
        sl.prompts.bernoulli(model, args.n, seed=0, prefix=count, suffix="="),
        lambda d: str(d.count("1")),
    ),
    "first digit": (
        sl.prompts.digits(model, args.n, seed=0, prefix=first, suffix="="),
        lambda d: d[0],
    ),
}
remedies = {
    f"window of {args.window}": sl.hooks.sliding_window(args.window),
    f"window of {args.window}, 4 sinks": sl.hooks.sliding_window(args.window, sink=4),
    "a comma after 3 digits": lambda sequence: sequence.every(3, comma),
    "temperature 0.8": sl.hooks.attention_temperature(0.8),
    "log n": sl.hooks.log_scaling(args.trained),
    "adaptive temperature": sl.hooks.adaptive_temperature(),
}
rows = []
for family, (sequence, answer) in families.items():
    right = sl.compare_interventions(
        model,
        sequence,
        remedies,
        answer=answer,
        lengths=[args.n],
        n_samples=args.n_samples,
    )
    drawn = [sequence.unrelated(Random(seed)) for seed in range(args.n_samples)]
    found: dict[str | int | float, Any] = {
        seed: sl.compare_interventions(model, one, remedies, lengths=[args.n])
        for seed, one in enumerate(drawn)
    }
    sl.results.save(
        sl.results.concat(found, "sample"), args.out / f"{family.replace(' ', '_')}.nc"
    )
    for change in right["change"].values[1:]:
        last = [one["distance"].isel(layer=-1, length=0) for one in found.values()]
        ratio = pd.Series(
            [float(d.sel(change=change) / d.sel(change="as it is")) for d in last]
        )
        p = binomtest(int((ratio > 1).sum()), max(1, int((ratio != 1).sum()))).pvalue
        accuracy = float(right["accuracy"].sel(change=change, length=args.n))
        rows.append(
            [family, change, ratio.median(), ratio.min(), ratio.max(), p, accuracy]
        )
columns = [
    "family",
    "change",
    "D ÷ unchanged",
    "least",
    "most",
    "p (sign test)",
    "right",
]
print(
    pd.DataFrame(rows, columns=columns).to_string(
        index=False, float_format=lambda value: f"{value:.3g}"
    )
)
print(f"data in {args.out.resolve()}")
