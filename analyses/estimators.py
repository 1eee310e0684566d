"""Which estimate says best what a token does? Estimates against knockouts and replacements, on fifty short texts.

Each estimate of a token's influence is compared with what the output loses if no later token attends to that token, if
its embedding is zero, or if another token that the model expects stands there; the same for spans of tokens. BOS,
attention sinks and the last token are left out. Texts that are in the output folder are not measured again; each model,
number of tokens and kind of spans has a folder of its own in it.

    python analyses/estimators.py --model gemma-3-270m --texts 12 --spans 2
"""

import argparse
from pathlib import Path

import squashlens as sl
from tables import run_folder
from tables.estimators import estimators_page

TEXTS = Path(__file__).with_name("texts.txt").read_text("utf-8").splitlines()
ESTIMATES = ["paper form", "mean attention row", "value-weighted attention", "gradient times input", "first order",
             "top-logit gradient", "sketch of 64, spectral", "sketch of 64, Frobenius"]  # fmt: skip
CERTIFIED = ["sketch of 64, certified", "analytic edges"]
EFFECTS = ["knockout KL", "leave-one-out KL", "expected replacement KL"]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
either = parser.add_mutually_exclusive_group()
either.add_argument("--model", default="tiny-prose", help="bundled name, folder or Hugging Face name (%(default)s)")
parser.add_argument("--texts", type=int, default=50, choices=range(1, 51), metavar="N", help="of 50 (%(default)s)")
parser.add_argument("--tokens", type=int, default=20, help="first tokens of each text that are used (%(default)s)")
parser.add_argument("--spans", default="words", help="words, or a number of tokens (%(default)s)")
either.add_argument("--saved", action="store_true", help="measure nothing: print what the documentation has")
parser.add_argument("--certified", action="store_true", help="measure certified bounds too, of tokens; takes long")
parser.add_argument("--out", type=Path, default=Path("estimators"), help="folder for results (%(default)s)")
args = parser.parse_args()
some = ESTIMATES + EFFECTS + (CERTIFIED if args.certified else [])
levels = ("certified bounds",) if args.certified else ("tokens", "spans")


def measure(model, out, number, level):
    file = out / f"{level.replace(' ', '_')}-{number}.nc"
    if not file.exists():
        ids = sl.prompts.tokenize(model, TEXTS[number])[0, : args.tokens].tolist()
        size = int(args.spans) if args.spans.isdigit() else 0
        runs = {str(k): range(k, k + size) for k in range(1, len(ids) - size, size)} if size else args.spans
        places = runs if level == "spans" else None
        sl.results.save(sl.audit(model, ids, positions=places, estimates=some, n_probes=64, seed=0), file)
    return sl.results.open(file)


if args.saved:
    data = Path(__file__).parents[1] / "docs" / "data"
    found = {file.stem.replace("_", " "): sl.results.open(file) for file in sorted(data.glob("*_of_*.nc"))}
else:
    model, out = sl.load(args.model), run_folder(args.out, args.model, args.tokens, args.spans)
    audits = {level: [measure(model, out, k, level) for k in range(args.texts)] for level in levels}
    found = {f"{level} of {Path(args.model).name}": sl.results.pooled(each) for level, each in audits.items()}  # pyright: ignore
    for title, one in found.items():
        sl.results.save(one, out / f"{title.replace(' ', '_')}.nc")
print(estimators_page(found))
