"""Corollary 6.2: two sequences whose representations have collapsed get the same answer, so one of them is miscounted.

The script asks whether this is why the model miscounts. On the prompts whose answers are scored it measures the
distance of such a pair, whether both get the same answer, and whether a linear probe of the last token predicts the
right answer better than in models with random weights. If it does, the count is represented, and collapse has not
lost it.

    python analyses/collapse_vs_readout.py --model google/gemma-2b --task count_bernoulli --lengths 10 50 100 200
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
parser.add_argument(
    "--task",
    default="taught_count_bernoulli",
    help="a name from `sl.tasks.names()` (%(default)s)",
)
parser.add_argument(
    "--lengths",
    type=int,
    nargs="+",
    default=[4, *range(8, 97, 8)],
    help="numbers of items",
)
parser.add_argument(
    "--seeds", type=int, default=256, help="random draws at each length (%(default)s)"
)
parser.add_argument(
    "--template", default="none", help="none, or chat for instruct models (%(default)s)"
)
parser.add_argument(
    "--dtype", default="float32", help="dtype that the model runs in (%(default)s)"
)
parser.add_argument(
    "--device", help="device, such as cpu or cuda; by default CUDA if there is one"
)
parser.add_argument(
    "--n-train",
    type=int,
    default=64,
    help="prompts that each probe is fitted to (%(default)s)",
)
parser.add_argument(
    "--n-random-models",
    type=int,
    default=4,
    help="random models to compare with (%(default)s)",
)
parser.add_argument(
    "--resume",
    action="store_true",
    help="continue from the answers in the output folder",
)
parser.add_argument(
    "--out",
    type=Path,
    default=Path("collapse_vs_readout"),
    help="folder for results (%(default)s)",
)
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

model, task = (
    sl.load(args.model, device=args.device, dtype=args.dtype),
    sl.tasks.find(args.task),
)
found = sl.collapse_vs_readout(
    model,
    task,
    lengths=args.lengths,
    seeds=args.seeds if task.random else 1,
    template=args.template,
    n_train=args.n_train,
    n_random_models=args.n_random_models,
    resume=args.out / "answers.jsonl" if args.resume else None,
)
sl.results.save(found, args.out / "collapse_vs_readout.nc")
sl.figures.save(
    sl.figures.collapse_vs_readout(found), args.out / "collapse_vs_readout.html"
)
if "r2" in found:
    sl.figures.save(sl.figures.probe(found), args.out / "probe.html")

print(
    "shares of right answers and of pairs with the same next token, the same answer, the same right answer; R² of the"
)
print(
    "probe, in random models and of the control task; R² minus R² of the best baseline, with its interval; share of"
)
print("right predictions; D ÷ rms(v) at the last layer, median over draws")
kept = [
    "accuracy",
    "same_argmax",
    "same_answer",
    "same_truth",
    "r2_y",
    "r2_random_model_y",
    "r2_control_y",
    "gain_y",
]
kept += ["gain_low_y", "gain_high_y", "probe_right_y", "verdict"]
table = found[[name for name in kept if name in found]].assign(
    D=found["distance"].median("seed")
)
print(table.reset_coords(drop=True).to_dataframe().round(3).to_string())
for length, reason in zip(found["length"].values, found["reason"].values, strict=True):
    print(f"{length} items: {reason}")
print(f"data and figures in {args.out.resolve()}")
