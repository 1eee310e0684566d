"""An atlas of models: squashing, collapse, sinks and verdicts for each model of a list, as one study.

The rows are models. D is the relative distance between a sequence and the same sequence with its last token repeated,
at the last layer and the longest length. On the paper's prompt: the least ratio of a token's path bound to its null
(uniform attention), the bound's rank agreement with the Jacobian, and the largest mass on the first token in any block.

    python analyses/atlas.py --models tiny-gemma google/gemma-2b --lengths 24 96 192 --workers 2
"""

import argparse
from pathlib import Path

import squashlens as sl

PROMPT = "How many ones are in the following sequence? 110111011101 ="
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--models", nargs="+", default=["tiny-gemma"], help="bundled names, folders or hub names")
parser.add_argument("--dtype", default="float32", help="dtype that the models run in (%(default)s)")
parser.add_argument("--lengths", type=int, nargs="+", default=[16, 48], help="lengths of the sequences (%(default)s)")
parser.add_argument("--task", default="taught_count_bernoulli", help="task of the verdict (%(default)s)")
parser.add_argument("--seeds", type=int, default=8, help="random draws for the verdict (%(default)s)")
parser.add_argument("--workers", type=int, default=1, help="number of processes (%(default)s)")
parser.add_argument("--engine", default="local", help="local, ray or slurm (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("atlas"), help="folder for the store and the page (%(default)s)")
args = parser.parse_args()

shared, each, probing = {"dtype": args.dtype}, {"model": args.models}, {"n_train": 16, "n_random_models": 1}
sequences = {"repeated": {"repeated": {"token": "1"}}, "random": {"bernoulli": {"seed": 0}}}
verdict = {"task": args.task, "lengths": [args.lengths[0]], "seeds": args.seeds, "probing": probing}
grids = [
    {"measurement": "collapse", "name": name, "arguments": {"sequence": made, "scale": "relative", **shared},
     "each": {**each, "sequence.n": args.lengths}} for name, made in sequences.items()
] + [
    {"measurement": "sensitivity", "arguments": {"prompt": PROMPT, **shared}, "each": each},
    {"measurement": "paths.depth_limit", "name": "sinks", "arguments": {"prompt": PROMPT, **shared}, "each": each},
    {"measurement": "collapse_vs_readout", "name": "verdict", "arguments": {**verdict, **shared}, "each": each},
]  # fmt: skip
study = sl.Study(grids, store=args.out / "store")
print(study.run(engine=args.engine, workers=args.workers).to_string(index=False))
print(study.failures().to_string(index=False) if len(study.failures()) else "no cell failed")

table = study.status()
done = {name for name, number in zip(table["grid"], table["done"], strict=True) if number}
columns = {}
for name in (name for name in sequences if name in done):
    longest = study.combine(name).sel(sequence_n=max(args.lengths))
    columns[f"D, {name}"] = longest["distance"].isel(layer=-1).sel(length=max(args.lengths)).to_series()
if "sensitivity" in done:
    squash = study.combine("sensitivity")
    columns |= {"least bound/null": squash["bound_over_null"].min("position").to_series()}
    columns |= {"agreement": squash["rank_agreement"].sel(estimate="path_bound").to_series()}
if "sinks" in done:
    columns |= {"sink": study.combine("sinks")["first_share"].isel(depth=1).max("block").to_series()}
if "verdict" in done:
    columns |= {"verdict": study.combine("verdict")["verdict"].isel(length=0).to_series()}
table = next(iter(columns.values())).to_frame().iloc[:, :0].assign(**columns)
page = f"<meta charset='utf-8'><title>Atlas</title><h1>{len(args.models)} models</h1>{table.round(3).to_html()}"
(args.out / "atlas.html").write_text(page, encoding="utf-8")
print(table.round(3).to_string())
print(f"page in {args.out.resolve()}")
