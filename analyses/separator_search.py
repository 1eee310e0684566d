"""Section 4: separators put between tokens keep representations apart.

The script tries every separator after every number of digits, compares the best with the same tokens at random
positions, and measures accuracy on random digits for each.

    python analyses/separator_search.py --model google/gemma-2b --n 96 --out separator_search
"""

import argparse
from pathlib import Path

import squashlens as sl

TASKS = {
    "count": ("How many ones are in the following sequence?", lambda digits: str(digits.count("1"))),
    "last": ("What is the last digit in this sequence?", lambda digits: digits[-1]),
    "first": ("What is the first digit in this sequence?", lambda digits: digits[0]),
}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="tiny-gemma", help="bundled name, folder or Hugging Face name (%(default)s)")
parser.add_argument("--task", choices=TASKS, default="count", help="question about the digits (%(default)s)")
parser.add_argument("--ending", default="=", help="text after the digits, where the answer is read (%(default)s)")
parser.add_argument("--n", type=int, default=48, help="digits in the longest sequence (%(default)s)")
parser.add_argument("--separator", nargs="+", default=[",", ".", "?", ":", "0"], help="tokens to try")
parser.add_argument("--every", nargs="+", type=int, default=[2, 3, 4, 6], help="numbers of digits between them to try")
parser.add_argument("--n-placements", type=int, default=40, help="random placements of the best (%(default)s)")
parser.add_argument("--seed", type=int, default=0, help="random seed of digits and placements (%(default)s)")
parser.add_argument(
    "--out", type=Path, default=Path("separator_search"), help="folder for data and figure (%(default)s)"
)
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model)
question, answer = TASKS[args.task]
ones = sl.prompts.repeated(model, "1", args.n, prefix=question, suffix=args.ending)
found = sl.search_separators(
    model,
    ones,
    separator=args.separator,
    every=args.every,
    n_placements=args.n_placements,
    seed=args.seed,
    answer=answer,
    lengths=range(2, args.n + 1, 2),
    resume=args.out / "search.sqlite",
)

sl.results.save(found, args.out / "separator_search.nc")
sl.figures.save(sl.figures.separator_search(found), args.out / "separator_search.html")

print("separation is the median over lengths of D ÷ rms(v) at the last layer, where the answer is read")
print(sl.results.table(found).round(3).to_string())
best, every = found["best_separator"].item(), found["best_every"].item()
low, middle, high = (found[name].item() for name in ("advantage_low", "advantage", "advantage_high"))
print(f"the largest separation: “{best}” after every {every}")
print(f"minus that of the same tokens at random places: {middle:.3f}, 95 % interval {low:.3f} to {high:.3f}")
print(f"random placements as good: {100 * found['random_as_good'].item():.3g} %")
print(f"data and figure in {args.out.resolve()}; the same call continues from search.sqlite there")
