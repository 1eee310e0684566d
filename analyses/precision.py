"""Section 4: v and v* end up closer than floating-point precision, especially in low precision and quantized models.

The script measures runs in several precisions, vectors stored in fewer bits, one block's stream rounded at a time, the
bits needed to tell the pair apart at each layer, and from which length on the next token is the same.

    python analyses/precision.py --model google/gemma-2b --n 1000 --out precision
"""

import argparse
from pathlib import Path

import squashlens as sl

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="tiny-gemma", help="bundled name, folder or Hugging Face name (%(default)s)")
parser.add_argument("--panel", choices="abcd", default="a", help="which of figure 5's sequences (%(default)s)")
parser.add_argument("--n", type=int, default=96, help="digits in the longest sequence (%(default)s)")
parser.add_argument("--window", type=int, help="impose a window of this many tokens before rounding")
parser.add_argument(
    "--runs", nargs="+", default=["float32", "bfloat16", "float16", "int8"], help="dtypes to run in; int8 needs torchao"
)
parser.add_argument("--out", type=Path, default=Path("precision"), help="folder for data and figures (%(default)s)")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model)
sequence = sl.prompts.figure5(model, args.n)[args.panel]
lengths = [n for n in range(1, args.n + 1) if n <= 16 or n % (args.n // 32 or 1) == 0]
with sl.applied(model, *([sl.hooks.sliding_window(args.window)] if args.window else [])):
    pairs = sl.capture(model, sequence, lengths=lengths)
    rounded = sl.precision(model, pairs, blocks="all")
runs = sl.precision(args.model, sequence, runs=args.runs, lengths=lengths)

sl.results.save(rounded, args.out / "rounded.nc")
sl.results.save(runs, args.out / "runs.nc")
sl.figures.save(sl.figures.bits_needed(rounded), args.out / "bits_needed.html")
sl.figures.save(sl.figures.runs(runs), args.out / "runs.html")

print("the smallest length such that v and v* are bit-identical at it and all longer ones, by format and layer")
print(rounded["collapsed_from"].to_pandas().to_string(na_rep="never"))
print("the same for runs in other dtypes, in the dtype of the run")
print(runs["collapsed_from"].to_pandas().to_string(na_rep="never"))
print("mantissa bits needed to tell half of the coordinates apart, median over lengths, by layer")
print(rounded["bits_per_coordinate"].median("length").to_pandas().to_frame().T.to_string(index=False, na_rep="same"))
print("share of lengths at which rounding a block's stream makes v and v* equal")
print(rounded["enters_as_one"].mean("length").to_pandas().round(3).to_string(na_rep="out of range"))
print("share of lengths at which rounding a block's stream leaves the most likely next token unchanged")
print(rounded["same_answer"].mean("length").to_pandas().round(3).to_string(na_rep="out of range"))
print(f"v and v* have the same most likely next token from {rounded['same_argmax_from'].item():g} digits on")
print(f"data and figures in {args.out.resolve()}")
