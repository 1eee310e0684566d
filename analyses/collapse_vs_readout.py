"""Corollary 6.2: two sequences whose representations have collapsed get the same answer, so one of them is miscounted.

The script asks whether this is why the model miscounts. On the prompts whose answers are scored it measures the
distance of such a pair, whether both get the same answer, and whether a linear probe of the last token predicts the
right answer better than in models with random weights. If it does, the count is represented, and collapse has not
lost it.

    python analyses/collapse_vs_readout.py --model google/gemma-2b --task count_bernoulli --lengths 10 50 100 200
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

import squashlens as sl


@dataclass
class Options:
    """Command-line options.

    Args:
        model: bundled name, folder or Hugging Face name.
        task: a name from `sl.tasks.names()`.
        lengths: numbers of items.
        seeds: random draws at each length.
        template: none, or chat for instruct models.
        dtype: dtype that the model runs in.
        device: device, such as cpu or cuda; by default CUDA if there is one.
        n_train: prompts that each probe is fitted to.
        n_random_models: random models to compare with.
        resume: continue from the answers in the output folder.
        out: folder for results.
    """

    model: str = "tiny-gemma"
    task: str = "taught_count_bernoulli"
    lengths: tuple[int, ...] = (4, *range(8, 97, 8))
    seeds: int = 256
    template: Literal["none", "chat"] = "none"
    dtype: str = "float32"
    device: str | None = None
    n_train: int = 64
    n_random_models: int = 4
    resume: bool = False
    out: Path = Path("collapse_vs_readout")


args = tyro.cli(Options, description=__doc__)
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model, device=args.device, dtype=args.dtype)
task = sl.tasks.find(args.task)
found = sl.collapse_vs_readout(
    model,
    task,
    lengths=args.lengths,
    seeds=args.seeds if task.random else 1,
    template=args.template,
    n_train=args.n_train,
    n_random_models=args.n_random_models,
    resume=args.out / "answers.jsonl" if args.resume else None,
)
sl.results.save(found, args.out / "collapse_vs_readout.nc")
sl.figures.save(
    sl.figures.collapse_vs_readout(found), args.out / "collapse_vs_readout.html"
)
if "r2" in found:
    sl.figures.save(sl.figures.probe(found), args.out / "probe.html")

print(
    "shares of right answers and of pairs with the same next token, the same answer, the same right answer; R² of the"
)
print(
    "probe, in random models and of the control task; R² minus R² of the best baseline, with its interval; share of"
)
print("right predictions; D ÷ rms(v) at the last layer, median over draws")
kept = [
    "accuracy",
    "same_argmax",
    "same_answer",
    "same_truth",
    "r2_y",
    "r2_random_model_y",
    "r2_control_y",
    "gain_y",
]
kept += ["gain_low_y", "gain_high_y", "probe_right_y", "verdict"]
table = found[[name for name in kept if name in found]].assign(
    D=found["distance"].median("seed")
)
print(table.reset_coords(drop=True).to_dataframe().round(3).to_string())
for length, reason in zip(found["length"].values, found["reason"].values, strict=True):
    print(f"{length} items: {reason}")
print(f"data and figures in {args.out.resolve()}")
