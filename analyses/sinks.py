"""Many models give much attention to the first token, and fail if it is hidden.

The script masks the first token, drops it, and keeps it visible next to a window. It measures what this does to
collapse, to the path bound and to the answers: a token that receives much attention may still have no effect.

    python analyses/sinks.py --model google/gemma-2b --n 96 --out sinks
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

import squashlens as sl


@dataclass
class Options:
    """Command-line options.

    Args:
        model: bundled name, folder or Hugging Face name.
        n: digits in the longest sequence.
        window: size of the window to try.
        ending: text after the digits, where the answer is read.
        n_samples: random sequences for the accuracy.
        seed: random seed of their digits.
        out: folder for data and figure.
    """

    model: str = "tiny-gemma"
    n: int = 48
    window: int = 16
    ending: str = "="
    n_samples: int = 16
    seed: int = 0
    out: Path = Path("sinks")


args = tyro.cli(Options, description=__doc__)
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model)
form: dict[str, Any] = {
    "prefix": "How many ones are in the following sequence?",
    "suffix": args.ending,
}
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

changes: dict[str, Any] = {
    "masked in every block": sl.hooks.mask_tokens([0]),
    **{
        f"masked in block {block}": sl.hooks.mask_tokens([0], blocks=(block,))
        for block in patterns
    },
    f"window of {args.window}": sl.hooks.sliding_window(args.window),
    f"window of {args.window} and the first token": sl.hooks.sliding_window(
        args.window, sink=1
    ),
}
if ones.prefix[:1] == (model.tokenizer.bos_token_id,):
    headless: dict[str, Any] = form | {"prefix": ones.prefix[1:]}
    changes["BOS dropped"] = sl.prompts.repeated(model, "1", args.n, **headless)
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
