"""Theorem 4.2 repeats a token; a text repeats characters. Where are the two the same, and what if they are not?

Claim: “one more 1” is v with its last token repeated only where the tokenizer makes it so: for joined ones if digits
are never merged, for spaced ones if a space belongs to the digit behind it, for commas never. Elsewhere the distance
of the two texts is not the D of the theorem.

    python analyses/tokenisation.py --model google/gemma-2b --n 40 --out tokenisation
"""

import argparse
from pathlib import Path

import squashlens as sl

FORMS = {"joined": "", "spaced": " ", "commas": ",", "commas spaced": ", "}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="tiny-gemma", help="bundled name, folder or Hugging Face name (%(default)s)")
parser.add_argument("--repeat", default="1", help="what is written again and again (%(default)s)")
parser.add_argument("--n", type=int, default=40, help="most repeats (%(default)s)")
parser.add_argument(
    "--prompt", default="How many ones are in the following sequences? ", help="text in front, as it is"
)
parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), help="how they are written (all)")
parser.add_argument("--out", type=Path, default=Path("tokenisation"), help="folder for data and figures (%(default)s)")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

forms = {name: FORMS[name] for name in args.forms}
model = sl.load(args.model)
pieces = sl.splits(model, min(args.n, 12), repeat=args.repeat, forms=forms, prompt=args.prompt)
measured = sl.tokenisation(model, args.n, repeat=args.repeat, forms=forms, prompt=args.prompt)

sl.save(measured, args.out / "tokenisation.nc")
sl.figures.splits(pieces).write_html(args.out / "splits.html")
sl.figures.tokenisation(measured).write_html(args.out / "distances.html")

print("the first repeats in tokens")
print(pieces["pieces"].isel(repeats=slice(4)).reset_coords(drop=True).to_pandas().to_string())
print("of all numbers of repeats, at how many …")
counts = measured[["uniform", "grows", "pair"]].sum("repeats").reset_coords(drop=True)
print(counts.to_dataframe().to_string())
last = measured.isel(layer=-1)
print("D ÷ rms(v) at the last layer, medians over repeats, and of the two texts' over the true pair's")
ratio = (last["naive"] / last["distance"]).rename("ratio")
medians = last[["naive", "distance"]].assign(ratio=ratio).median("repeats").reset_coords(drop=True)
print(medians.to_dataframe().round(4).to_string())
print(f"data and figures in {args.out.resolve()}")
