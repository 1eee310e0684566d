"""Many models give much attention to the first token, and fail if it is hidden.

The script masks the first token, drops it, and keeps it visible next to a window. It measures what this does to
collapse, to the path bound and to the answers: a token that receives much attention may still have no effect.

    python analyses/sinks.py --model google/gemma-2b --n 96 --out sinks
"""

import argparse
from pathlib import Path
from typing import Any

import squashlens as sl

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument(
    "--model",
    default="tiny-gemma",
    help="bundled name, folder or Hugging Face name (%(default)s)",
)
parser.add_argument(
    "--n", type=int, default=48, help="digits in the longest sequence (%(default)s)"
)
parser.add_argument(
    "--window", type=int, default=16, help="size of the window to try (%(default)s)"
)
parser.add_argument(
    "--ending",
    default="=",
    help="text after the digits, where the answer is read (%(default)s)",
)
parser.add_argument(
    "--n-samples",
    type=int,
    default=16,
    help="random sequences for the accuracy (%(default)s)",
)
parser.add_argument(
    "--seed", type=int, default=0, help="random seed of their digits (%(default)s)"
)
parser.add_argument(
    "--out",
    type=Path,
    default=Path("sinks"),
    help="folder for data and figure (%(default)s)",
)
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model)
form = {"prefix": "How many ones are in the following sequence?", "suffix": args.ending}
ones = sl.prompts.repeated(model, "1", args.n, **form)

patterns = sl.capture(model, ones.pair(args.n).tensors()[0], keep="patterns").patterns
print(
    "share of attention that goes to the first token, mean over heads and over tokens from the second half on"
)
for block, pattern in patterns.items():
    drawn = pattern[0, :, pattern.shape[2] // 2 :, 0].mean()
    even = (
        1 / (1 + pattern.new_tensor(range(pattern.shape[2] // 2, pattern.shape[2])))
    ).mean()
    print(f"  block {block}: {drawn:.4f}; with uniform attention {even:.4f}")

headless: dict[str, Any] = form | {"prefix": ones.prefix[1:]}
has_bos = bool(ones.prefix) and ones.prefix[0] == model.tokenizer.bos_token_id
changes = {
    "masked in every block": sl.hooks.mask_tokens([0]),
    **{
        f"masked in block {block}": sl.hooks.mask_tokens([0], blocks=(block,))
        for block in patterns
    },
    **(
        {"BOS dropped": sl.prompts.repeated(model, "1", args.n, **headless)}
        if has_bos
        else {}
    ),
    f"window of {args.window}": sl.hooks.sliding_window(args.window),
    f"window of {args.window} and the first token": sl.hooks.sliding_window(
        args.window, sink=1
    ),
}
found = sl.compare_interventions(
    model,
    ones,
    changes,
    answer=lambda digits: str(digits.count("1")),
    lengths=range(4, args.n + 1, 4),
    n_samples=args.n_samples,
    seed=args.seed,
)

sl.results.save(found, args.out / "sinks.nc")
sl.figures.save(sl.figures.changes(found), args.out / "sinks.html")
table = (
    found[["accuracy"]]
    .mean("length")
    .assign(D=found["distance"].isel(layer=-1).median("length"))
)
print(
    "share of random digits counted correctly (mean over lengths), D ÷ rms(v) at the last layer (median)"
)
print(table.reset_coords(drop=True).to_dataframe().round(4).to_string())
print(f"data and figure in {args.out.resolve()}")
