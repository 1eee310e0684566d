"""An atlas of models: a study of each, beside the same architecture with random weights.

The distance of v and v* with and without commas, attention to the first token, and the rank correlation of the path
bound with the Jacobian norm. The file says for each label what `load` takes. What cannot be reached is left out.

    python analyses/atlas.py --models analyses/models.yaml --workers 2 --out atlas
"""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import tyro
import yaml

import squashlens as sl


@dataclass
class Options:
    """Command-line options.

    Args:
        models: YAML file of models; by default tiny-gemma alone.
        workers: number of processes.
        out: folder of store and table.
    """

    models: Path | None = None
    workers: int = 1
    out: Path = Path("atlas")


args = tyro.cli(Options, description=__doc__)
args.out.mkdir(parents=True, exist_ok=True)

TEXTS = {
    "harbour": "The old man walked slowly down to the harbour, where his daughter had been waiting in the rain.",
    "water": "Water boils at a lower temperature on a mountain, because the air presses less on it there.",
}
ONES = {"token": "1", "n": 64}
SEQUENCES = {
    "ones": {"repeated": ONES},
    "with commas": {"repeated": {**ONES, "separator": ",", "every": 3}},
}
STUDY = {
    "collapse": ({"scale": "relative"}, {"sequence": SEQUENCES}),
    "head_statistics": ({"prompt": sl.example_models.EXAMPLE_PROMPT}, {}),
    "bound_vs_jacobian": ({}, {"prompt": TEXTS}),
}
WEIGHTS = {"untrained": {"trained": None, "random": 0}}
models = (
    yaml.safe_load(args.models.read_text())["models"]
    if args.models
    else {"tiny-gemma": {"model": "tiny-gemma"}}
)
table = {}
if __name__ == "__main__":  # each worker imports this script
    for label, given in models.items():
        load = {
            name: value
            for name, value in given.items()
            if name in ("model", "dtype", "revision")
        }
        grids = [
            {"measurement": n, "arguments": a | load, "each": WEIGHTS | each}
            for n, (a, each) in STUDY.items()
        ]
        try:
            study = sl.Study(grids, args.out / "store")
            done = study.run(workers=args.workers).set_index("grid")["done"].to_dict()
        except sl.errors.SquashlensError as error:
            print(f"{label}: {error}")
            continue
        found = {name: study.combine(name) for name in STUDY if done[name]}
        numbers = {
            f"distance of y, {one}": found["collapse"]["distance_y"].sel(sequence=one)[
                :, -1
            ]
            for one in SEQUENCES
        }
        numbers["attention to the first token"] = found["head_statistics"][
            "sink_rate"
        ].max("head")
        if "bound_vs_jacobian" in found:  # tiny-gemma does not know the words
            agreement = found["bound_vs_jacobian"]["rank_agreement"].drop_sel(
                estimate="jacobian"
            )
            numbers |= {
                f"{one.item()} as the Jacobian": agreement.sel(estimate=one)
                for one in agreement["estimate"]
            }
        for name, values in numbers.items():
            each = values.mean(
                [dim for dim in values.dims if dim != "untrained"]
            ).to_series()
            table |= {(label, name, weights): value for weights, value in each.items()}
    made = (
        pd.Series(table).rename_axis(["model", "quantity", "weights"]).unstack("model")
    )
    made.to_csv(args.out / "atlas.csv")
    print(made.round(3).to_string(), f"\ntable and store in {args.out.resolve()}")
