r"""Figures 3 and 6: the error of counting grows with the length, whichever way the question is put.

Claim: sums of ones, ones in a sequence of ones, and ones among zeros are soon miscounted, with an error that grows
quickly; a chain of thought, with or without examples, does not mend it. The bundled model is asked in the words it was
taught, which have one mode; any other in the paper's. Answers that cannot be read have no error: their share is shown.

    python analyses/fig3_counting.py --model google/gemma-7b-it --template chat --dtype bfloat16 \
        --lengths 10 50 100 200 --out fig3
"""

import argparse
from pathlib import Path

import squashlens as sl

TAUGHT = ["taught_sum_repeated", "taught_count_repeated", "taught_count_bernoulli"]
PAPER = ["sum", "count_ones", "count_bernoulli", "count_word"]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="tiny-gemma", help="bundled name, folder or Hugging Face name (%(default)s)")
parser.add_argument(
    "--tasks", nargs="+", choices=sl.tasks.names(), metavar="T", help="as `squashlens tasks` lists them"
)
parser.add_argument("--modes", nargs="+", help="answer_only, cot, cot_few_shot; all there are if not given")
parser.add_argument("--lengths", type=int, nargs="+", default=[*range(4, 97, 4)], help="numbers of items")
parser.add_argument("--seeds", type=int, default=16, help="draws at each length, where items are drawn (%(default)s)")
parser.add_argument("--template", default="none", help="chat for instruct models (%(default)s)")
parser.add_argument("--dtype", default="float32", help="in which the model is run (%(default)s)")
parser.add_argument("--device", help="cpu, cuda, …; CUDA where there is one if not given")
parser.add_argument("--resume", action="store_true", help="go on from what the folder holds")
parser.add_argument("--out", type=Path, default=Path("fig3"), help="folder for data and figures (%(default)s)")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model, device=args.device, dtype=args.dtype)
found = {}
for name in args.tasks or (TAUGHT if args.model in sl.zoo.bundled() else PAPER):
    task = sl.tasks.find(name)
    found[name] = sl.behave(
        model, task, lengths=args.lengths, seeds=args.seeds if task.random else 1, template=args.template,
        modes=args.modes or (["answer_only", "cot", "cot_few_shot"] if task.examples else ["answer_only"]),
        resume=args.out / f"{name}.sqlite" if args.resume else None,
    )  # fmt: skip
    sl.save(found[name], args.out / f"{name}.nc")
sl.figures.error_by_length(found).write_html(args.out / "errors.html")
sl.figures.accuracy_by_length(found).write_html(args.out / "accuracy.html")

for name, answers in found.items():
    for mode, one in answers.groupby("mode"):
        table = one[["accuracy", "mean_error"]].assign(unread=one["unread"].sum("why")).mean().to_array().values
        print("{} ({}): right {:.1%}, mean error {:.1f}, not read {:.1%}".format(name, mode, *table))
print(f"data and figures in {args.out.resolve()}")
