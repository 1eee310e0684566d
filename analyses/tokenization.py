"""Theorem 4.2 repeats a token, and a longer text repeats characters: the two are the same only with some tokenizers.

Claim: “one more 1” is v with its last token repeated only if the tokenizer makes it so: for joined ones if digits
are never merged, for spaced ones if a space belongs to the digit after it, for commas never. Otherwise the distance
of the two texts is not the D of the theorem.

    python analyses/tokenization.py --model google/gemma-2b --n 40 --out tokenization
"""

import argparse
from pathlib import Path

import squashlens as sl

FORMS = {"joined": "", "spaced": " ", "commas": ",", "commas spaced": ", "}
parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument(
    "--model",
    default="tiny-gemma",
    help="bundled name, folder or Hugging Face name (%(default)s)",
)
parser.add_argument("--repeat", default="1", help="text to repeat (%(default)s)")
parser.add_argument(
    "--n", type=int, default=40, help="largest number of repeats (%(default)s)"
)
parser.add_argument(
    "--prefix",
    default="How many ones are in the following sequences? ",
    help="text before the repeats",
)
parser.add_argument(
    "--forms",
    nargs="+",
    choices=FORMS,
    default=list(FORMS),
    help="text between repeats (all)",
)
parser.add_argument(
    "--out",
    type=Path,
    default=Path("tokenization"),
    help="folder for data and figures (%(default)s)",
)
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

forms = {name: FORMS[name] for name in args.forms}
model = sl.load(args.model)
pieces = sl.repeat_tokenization(
    model.tokenizer,
    min(args.n, 12),
    repeat=args.repeat,
    separator=forms,
    prefix=args.prefix,
)
measured = sl.repeat_tokenization(
    model,
    args.n,
    repeat=args.repeat,
    separator=forms,
    prefix=args.prefix,
    scale="relative",
)

sl.results.save(measured, args.out / "tokenization.nc")
sl.figures.save(sl.figures.repeat_tokenization(measured), args.out / "distances.html")

print("the first repeats in tokens")
print(
    pieces["pieces"]
    .isel(repeats=slice(4))
    .reset_coords(drop=True)
    .to_pandas()
    .to_string()
)
print("number of lengths at which …")
counts = measured[["uniform", "grows", "pair"]].sum("repeats").reset_coords(drop=True)
print(counts.to_dataframe().to_string())
last = measured.isel(layer=-1)
print(
    "D ÷ rms(v) at the last layer, medians over repeats, and ratio of the texts to the pair"
)
ratio = (last["naive"] / last["distance"]).rename("ratio")
medians = (
    last[["naive", "distance"]]
    .assign(ratio=ratio)
    .median("repeats")
    .reset_coords(drop=True)
)
print(medians.to_dataframe().round(4).to_string())
print(f"data and figures in {args.out.resolve()}")
