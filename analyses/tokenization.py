"""Theorem 4.2 repeats a token, and a longer text repeats characters: the two are the same only with some tokenizers.

Claim: “one more 1” is v with its last token repeated only if the tokenizer makes it so: for joined ones if digits
are never merged, for spaced ones if a space belongs to the digit after it, for commas never. Otherwise the distance
of the two texts is not the D of the theorem.

    python analyses/tokenization.py --model google/gemma-2b --n 40 --out tokenization
"""

from dataclasses import dataclass
from pathlib import Path

import tyro

import squashlens as sl

FORMS = {"joined": "", "spaced": " ", "commas": ",", "commas spaced": ", "}


@dataclass
class Options:
    """Command-line options.

    Args:
        model: bundled name, folder or Hugging Face name.
        repeat: text to repeat.
        n: largest number of repeats.
        prefix: text before the repeats.
        forms: text between repeats (all).
        out: folder for data and figures.
    """

    model: str = "tiny-gemma"
    repeat: str = "1"
    n: int = 40
    prefix: str = "How many ones are in the following sequences? "
    forms: tuple[str, ...] = tuple(FORMS)
    out: Path = Path("tokenization")


args = tyro.cli(Options, description=__doc__)
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
