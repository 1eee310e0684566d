"""The paper's discussion: local attention is a way to avoid collapse.

In exact arithmetic a window of w in all of L blocks does the opposite to repeated tokens: from L (w − 1) + 1 of them
on, v and v* are equal at the last layer. The script measures collapse, the path bound and accuracy for each window.

    python analyses/sliding_window.py --model google/gemma-2b --n 96 --out windows
"""

from dataclasses import dataclass
from pathlib import Path

import tyro

import squashlens as sl


@dataclass
class Options:
    """Command-line options.

    Args:
        model: bundled name, folder or Hugging Face name.
        n: digits in the longest sequence.
        windows: window sizes to try, in tokens.
        sinks: numbers of visible first tokens to try.
        ending: text after the digits, where the answer is read.
        n_samples: random sequences for the accuracy.
        seed: random seed of their digits.
        out: folder for data and figures.
    """

    model: str = "tiny-gemma"
    n: int = 48
    windows: tuple[int, ...] = (4, 8, 16, 24, 32)
    sinks: tuple[int, ...] = (0, 1, 4)
    ending: str = "="
    n_samples: int = 16
    seed: int = 0
    out: Path = Path("windows")


args = tyro.cli(Options, description=__doc__)
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model)
question = "How many ones are in the following sequence?"
ones = sl.prompts.repeated(model, "1", args.n, prefix=question, suffix=args.ending)
windows = {
    (w, s): f"window of {w}, {s} sinks" for s in args.sinks for w in args.windows
}
hooks = {name: sl.hooks.sliding_window(w, sink=s) for (w, s), name in windows.items()}
found = sl.compare_interventions(
    model,
    ones,
    hooks,
    answer=lambda digits: str(digits.count("1")),
    lengths=range(4, args.n + 1, 4),
    n_samples=args.n_samples,
    seed=args.seed,
)
sl.results.save(found, args.out / "windows.nc")
sl.figures.save(sl.figures.of(found), args.out / "windows.html")

share = found["bound"].isel(content=0) / found["bound"].sum("content")
quantities = {
    "D ÷ rms(v) at the last layer, at the longest length": found["distance"].isel(
        layer=-1, length=-1
    ),
    "share of random digits counted correctly, mean over lengths": found[
        "accuracy"
    ].mean("length"),
    "first digit's share of the path bound over digits": share,
}
for title, values in quantities.items():
    print(
        f"{title}, by visible first tokens and window; the last column is without a window"
    )
    for s in args.sinks:
        shown = values.sel(
            change=[*(windows[w, s] for w in args.windows), "as it is"]
        ).values
        print(f"{s:>4}", *(f"{value:9.3g}" for value in shown))
native = [str(int(w)) if w > 0 else "none" for w in found["native_window"].values]
print(
    f"native windows by block: {', '.join(native)}\ndata and figures in {args.out.resolve()}"
)
