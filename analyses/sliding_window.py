"""The paper's discussion names local attention as a way out. What does a window do to collapse, reach and answers?

Claim: seeing only the last tokens helps. In exact arithmetic it does the opposite to repeats: behind L (w − 1) equal
tokens a window of w leaves nothing by which v and v* could differ. Accuracy stands beside every window.

    python analyses/sliding_window.py --model google/gemma-2b --n 96 --out windows
"""

import argparse
from pathlib import Path

import squashlens as sl

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="tiny-gemma", help="bundled name, folder or Hugging Face name (%(default)s)")
parser.add_argument("--n", type=int, default=48, help="digits in the longest sequence (%(default)s)")
parser.add_argument("--windows", nargs="+", type=int, default=[4, 8, 16, 24, 32], help="sizes in tokens to try")
parser.add_argument("--sinks", nargs="+", type=int, default=[0, 1, 4], help="first tokens left in sight to try")
parser.add_argument("--ending", default="=", help="text behind the digits, where the answer is read (%(default)s)")
parser.add_argument("--draws", type=int, default=16, help="sequences of digits asked about (%(default)s)")
parser.add_argument("--seed", type=int, default=0, help="draws their digits (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("windows"), help="folder for data and figure (%(default)s)")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model)
ones = sl.prompts.repeated(
    model, "1", args.n, prompt="How many ones are in the following sequence?", suffix=args.ending
)
found = sl.windows(
    model, ones, args.windows, sinks=args.sinks, answer=lambda digits: str(digits.count("1")),
    lengths=range(4, args.n + 1, 4), draws=args.draws, seed=args.seed,
)  # fmt: skip

sl.save(found, args.out / "windows.nc")
sl.figures.windows(found).write_html(args.out / "windows.html")

last = found.isel(layer=-1)
share = found["bound"].isel(content=0) / found["bound"].sum("content")
tables = {
    "D ÷ rms(v) at the last layer, at the longest length": last["distance"].isel(length=-1),
    "share of fresh digits counted rightly, mean over lengths": found["accuracy"].mean("length"),
    "first digit's share of the path bound over digits": share,
}
for title, values in tables.items():
    print(f"{title}, by first tokens in sight and window; the last column is the model as it is")
    print(values.reset_coords(drop=True).to_pandas().map(lambda value: f"{value:.3g}").to_string())
native = found["native_window"].values
print("native windows by block:", ", ".join("none" if w != w else str(int(w)) for w in native))
print(f"data and figure in {args.out.resolve()}")
