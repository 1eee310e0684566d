"""Section 4: in few bits representations collapse sooner. At which length, in which format, from which block on?

Claim: v and v* end below floating-point precision, the more so in low precision and in quantised models. Measured are
runs in several precisions, vectors stored in fewer bits, one block's stream rounded at a time, the bits it takes to
tell the pair apart at each layer, and whether the next token was the same long before.

    python analyses/precision.py --model google/gemma-2b --n 1000 --out precision
"""

import argparse
from pathlib import Path

import squashlens as sl

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="tiny-gemma", help="bundled name, folder or Hugging Face name (%(default)s)")
parser.add_argument("--panel", choices="abcd", default="a", help="which of figure 5's sequences (%(default)s)")
parser.add_argument("--n", type=int, default=96, help="digits in the longest sequence (%(default)s)")
parser.add_argument("--window", type=int, help="impose a window of so many tokens on what is rounded")
parser.add_argument(
    "--runs", nargs="+", default=["float32", "bfloat16", "float16", "int8"], help="runs to make; int8 wants torchao"
)
parser.add_argument("--out", type=Path, default=Path("precision"), help="folder for data and figures (%(default)s)")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model)
sequence = sl.prompts.figure5(model, args.n)[args.panel]
lengths = [n for n in range(1, args.n + 1) if n <= 16 or n % (args.n // 32 or 1) == 0]
with sl.applied(model, *([sl.sliding_window(args.window)] if args.window else [])):
    rounded = sl.precision(model, sequence, lengths=lengths)
runs = sl.precision_by_run(args.model, sequence, runs=args.runs, lengths=lengths)

sl.save(rounded, args.out / "rounded.nc")
sl.save(runs, args.out / "runs.nc")
sl.figures.bits_needed(rounded).write_html(args.out / "bits_needed.html")
sl.figures.runs(runs).write_html(args.out / "runs.html")

print("the length from which v and v* are bit-identical, by layer, once stored in a format")
print(rounded["collapsed_from"].to_pandas().to_string(na_rep="never"))
print("the same in runs of their own, in the run's dtype")
print(runs["collapsed_from"].to_pandas().to_string(na_rep="never"))
print("mantissa bits that tell them apart, median over lengths, by layer")
print(rounded["bits_needed"].median("length").to_pandas().to_frame().T.to_string(index=False, na_rep="same"))
print("share of lengths at which a block's rounded stream makes the pair enter it as one")
print(rounded["enters_as_one"].mean("length").to_pandas().round(3).to_string(na_rep="out of range"))
print("share of lengths at which the likeliest next token stays, one block's stream rounded")
print(rounded["same_answer"].mean("length").to_pandas().round(3).to_string(na_rep="out of range"))
print(f"v and v* have the same likeliest next token from {rounded['same_argmax_from'].item():g} digits on")
print(f"data and figures in {args.out.resolve()}")
