r"""Figures 4 and 7: models that are asked to count give common numbers far too often.

Claim: 100 was Gemini's most frequent answer. The script compares how often each number is answered with how often it
is right. Questions of all lengths are taken together, so that right answers are spread evenly where the count is the
length, and any peak comes from the model.

    python analyses/fig4_answer_frequencies.py --model google/gemma-7b-it --template chat --dtype bfloat16 \
        --longest 200 --out fig4
"""

import argparse
from pathlib import Path

import squashlens as sl

TAUGHT = ["taught_sum_repeated", "taught_count_repeated", "taught_count_bernoulli"]
PAPER = ["sum", "count_ones", "count_bernoulli"]

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
    "--longest",
    type=int,
    default=96,
    help="ask at every length up to this (%(default)s)",
)
parser.add_argument(
    "--seeds",
    type=int,
    default=4,
    help="draws at each length, if items are random (%(default)s)",
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
    default=Path("fig4"),
    help="folder for data and figure (%(default)s)",
)
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model, device=args.device, dtype=args.dtype)
shares = {}
for name in args.tasks or (
    TAUGHT if sl.example_models.trained_length(args.model) else PAPER
):
    task = sl.tasks.find(name)
    answers = sl.evaluate_task(
        model,
        task,
        lengths=range(1, args.longest + 1),
        seeds=args.seeds if task.random else 1,
        template=args.template,
        resume=args.out / f"{name}.jsonl" if args.resume else None,
    )
    shares[name] = sl.results.answer_frequencies(answers)
    sl.results.save(answers, args.out / f"{name}.nc")
    most = (
        shares[name].isel(mode=0).sortby("said", ascending=False).isel(value=slice(3))
    )
    listed = [
        f"{value.item()} ({float(share):.1%}, right {float(due):.1%})"
        for value, share, due in zip(
            most["value"], most["said"], most["truth"], strict=True
        )
    ]
    print(
        f"{name}: answered most often {', '.join(listed)}; not read {float(shares[name]['unread'][0]):.1%}"
    )
sl.figures.save(sl.figures.answer_frequencies(shares), args.out / "fig4.html")
print(f"data and figure in {args.out.resolve()}")
