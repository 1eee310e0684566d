r"""Figure 2: copying the last digit of 1…10 is harder than the first of 01…1; hints and alternating digits help.

Claim: from some length on the model answers 1 for the last digit, and still finds the first. With a hint, or with
alternating digits, it answers correctly for longer. The bundled model is asked with the words of its training,
without a hint; any other model with the paper's.

    python analyses/fig2_copying.py --model google/gemma-7b-it --template chat --dtype bfloat16 \
        --lengths 10 50 100 200 300 --out fig2
"""

import argparse
from pathlib import Path

import squashlens as sl

TAUGHT = [
    "taught_last_odd_last",
    "taught_first_odd_first",
    "taught_last_alternating",
    "taught_first_alternating",
]
PAPER = [
    f"copy_{end}{how}"
    for how in ("", "_hint", "_alternating")
    for end in ("last", "first")
]

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument(
    "--model",
    default="tiny-gemma",
    help="bundled name, folder or Hugging Face name (%(default)s)",
)
parser.add_argument(
    "--tasks",
    nargs="+",
    choices=sl.tasks.names(),
    metavar="T",
    help="names from `sl.tasks.names()`",
)
parser.add_argument(
    "--lengths",
    type=int,
    nargs="+",
    default=[*range(4, 161, 4)],
    help="numbers of digits",
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
    "--resume",
    action="store_true",
    help="continue from the answers in the output folder",
)
parser.add_argument(
    "--out",
    type=Path,
    default=Path("fig2"),
    help="folder for data and figure (%(default)s)",
)
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model, device=args.device, dtype=args.dtype)
found = {}
for name in args.tasks or (
    TAUGHT if sl.example_models.trained_length(args.model) else PAPER
):
    kept = args.out / f"{name}.jsonl" if args.resume else None
    # One answer for each length: the only random choice is the digit that alternating sequences begin with.
    task = sl.tasks.find(name)
    found[name] = sl.evaluate_task(
        model, task, lengths=args.lengths, seeds=1, template=args.template, resume=kept
    )
    sl.results.save(found[name], args.out / f"{name}.nc")
sl.figures.save(sl.figures.task_accuracy(found), args.out / "fig2.html")

for name, answers in found.items():
    right = answers["right"].isel(mode=0, seed=0)
    wrong = [*right["length"].values[~right.values], "none"]
    print(
        f"{name}: right at {int(right.sum())} of {right.size} lengths; first wrong at {wrong[0]}"
    )
    print(
        f"  instead: {sorted({*answers['answer'].values[~answers['right'].values]})[:8]}"
    )
    print(f"  {answers['able_reason'].item()}")
    print(f"  not read: {float(answers['unread'].sum('why').mean()):.0%}")
print(f"data and figure in {args.out.resolve()}")
