"""Section 4, figure 5 (c, d): separators after every third digit keep v and v* apart.

The script asks which property of a comma does this, and in which blocks. It edits the separators in the prompt, and
masks, zeroes or overwrites them from each block on. It repeats some of this for other separators and distances.

    python analyses/separators_by_layer.py --model google/gemma-2b --n 96 --out separators
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tyro

import squashlens as sl


@dataclass
class Options:
    """Command-line options.

    Args:
        model: bundled name, folder or Hugging Face name.
        n: digits in the longest sequence.
        separators: separators to try.
        every: digits between them.
        seed: random seed of places and substitute.
        out: folder for data and figures.
    """

    model: str = "tiny-gemma"
    n: int = 96
    separators: tuple[str, ...] = (",", ".", "?")
    every: tuple[int, ...] = (2, 3, 6)
    seed: int = 0
    out: Path = Path("separators")


args = tyro.cli(Options, description=__doc__)
args.out.mkdir(parents=True, exist_ok=True)
model = sl.load(args.model)
commas = sl.prompts.figure5(model, args.n)["d"]
ablate = partial(
    sl.separator_ablation,
    model,
    lengths=range(1, args.n + 1),
    scale="relative",
    seed=args.seed,
)
measured = ablate(commas, from_blocks=range(model.cfg.n_layers))
some = partial(
    ablate, kinds=["random_places", "mask", "mean_residual"], from_blocks=[0, 2]
)
by_separator = {}
for separator in args.separators:
    mark = sl.prompts.one_token(model, separator)
    by_separator[separator] = sl.results.concat(
        {k: some(commas.every(k, mark)) for k in args.every}, "every"
    )
others = sl.results.concat(by_separator, "separator")

sl.results.save(measured, args.out / "separators.nc")
sl.results.save(others, args.out / "other_separators.nc")
pairs = {
    "without separators": sl.prompts.figure5(model, args.n)["c"],
    "a comma after every third": commas,
}
curves = {
    name: sl.collapse(model, one, scale="relative") for name, one in pairs.items()
}
sl.figures.save(sl.figures.collapse_curve(curves), args.out / "curves.html")
sl.figures.save(sl.figures.retained_by_kind(measured), args.out / "by_kind.html")
kept = measured["retained_from"].isel(from_block=0).median("length", keep_attrs=True)
sl.figures.save(sl.figures.of(kept), args.out / "by_layer.html")
for hook in ("mask", "zero_values"):
    kept = measured["retained_from"].sel(hook=hook, length=args.n)
    sl.figures.save(sl.figures.of(kept), args.out / f"{hook}_from_block.html")
last = measured.isel(layer=-1)
print("D ÷ rms(v) at the last layer, median over lengths")
print(
    last["distance"]
    .median("length")
    .reset_coords(drop=True)
    .to_series()
    .round(4)
    .to_string()
)
print(
    "what gaps in positions, and attention beyond them, multiply D by: median by place in the group"
)
parts = (
    last[["gap_factor", "attention_factor"]]
    .reset_coords(drop=True)
    .assign_coords(place=last["place_in_group"])
)
print(parts.groupby("place").median().to_dataframe().round(3).to_string())
print(
    "share of the separators' effect that is left, by the block a hook acts from (median over lengths)"
)
print(
    last["retained_from"]
    .median("length")
    .reset_coords(drop=True)
    .to_pandas()
    .round(3)
    .to_string()
)
apart = (
    others.isel(layer=-1)["distance"]
    .sel(edit=["none", "separators", "random_places"])
    .median("length")
)
print(
    "other separators and distances: D ÷ rms(v) at the last layer, median over lengths"
)
print(apart.reset_coords(drop=True).to_series().unstack("edit").round(3).to_string())
left = others.isel(layer=-1)["retained_from"].median("length").reset_coords(drop=True)
print(
    left.rename("share of effect left")
    .to_series()
    .unstack(["hook", "from_block"])
    .round(3)
    .to_string()
)
print(f"data and figures in {args.out.resolve()}")
