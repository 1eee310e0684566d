"""Theorem 5.1 with the blocks' own Jacobians is never below the true Jacobian norm; as printed, it is a shape.

How large bounds and estimates of the norm are, and how they order digits: the median over digits of each divided by the
norm, the least of these, Spearman's ρ with the norm within a prompt, mean over prompts, and the time.

    python analyses/theorem51_methods.py --model google/gemma-2b --prompts 20
"""

import time
from dataclasses import dataclass

import pandas as pd
import tyro

import squashlens as sl


@dataclass
class Options:
    """Command-line options.

    Args:
        model: bundled name, folder or Hugging Face name.
        n: digits in each prompt.
        prompts: number of prompts.
    """

    model: str = "tiny-gemma"
    question: str = "How many ones are in the following sequence?"
    n: int = 12
    prompts: int = 20


args = tyro.cli(Options, description=__doc__)

METHODS = {
    "Jacobian": lambda model, ids: sl.jacobian_norms(model, ids, method="exact"),
    "path bound as printed": sl.path_bound,
    "its null": lambda model, ids: sl.path_bound(model, ids, attention="uniform"),
    "certified bound": sl.certified_bound,
    "certified sketch of 16": lambda model, ids: sl.jacobian_norms(
        model, ids, method="sketch_upper", n_probes=16
    ),
    "Frobenius norm": lambda model, ids: sl.jacobian_norms(
        model, ids, method="exact", norm="frobenius"
    ),
    "Jacobian, all frozen": lambda model, ids: sl.jacobian_norms(
        model, ids, method="exact", freeze=("attention", "norms", "gates")
    ),
    "replacement": lambda model, ids: sl.substitution_effect(
        model, ids, n_replacements=8
    )["output_change"],
}
model = sl.load(args.model)
sequences = [
    sl.prompts.bernoulli(
        model, args.n, p=0.5, seed=seed, prefix=args.question, suffix="="
    )
    for seed in range(args.prompts)
]
ids = sl.prompts.stacked(sequences)
content = [sequences[0].position(k) for k in range(1, args.n + 1)]
values = {}
seconds = {}
for name, measure in METHODS.items():
    start = time.perf_counter()
    values[name] = measure(model, ids).isel(position=content)
    seconds[name] = time.perf_counter() - start
norm = values["Jacobian"]
rows = {}
for name, value in values.items():
    over = value / norm
    agreement = (
        pd.DataFrame(value.values.T)
        .corrwith(pd.DataFrame(norm.values.T), method="spearman")
        .mean()
    )
    rows[name] = {
        "÷ norm": over.median(),
        "least": over.min(),
        "ρ": agreement,
        "seconds": seconds[name],
    }
table = pd.DataFrame(rows).T.astype(float)
table.loc["replacement", ["÷ norm", "least"]] = float(
    "nan"
)  # has the unit of the stream
print(table.to_string(float_format=lambda value: f"{value:.3g}", na_rep="–"))
