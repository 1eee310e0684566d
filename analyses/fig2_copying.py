r"""Figure 2: copying the last digit of 1…10 is harder than the first of 01…1; hints and alternating digits help.

Claim: from some length on the model answers 1 for the last digit, and still finds the first. With a hint, or with
alternating digits, it answers correctly for longer. The bundled model is asked with the words of its training,
without a hint; any other model with the paper's.

    python analyses/fig2_copying.py --model google/gemma-7b-it --template chat --dtype bfloat16 \
        --lengths 10 50 100 200 300 --out fig2
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

import squashlens as sl

TAUGHT = [
    "taught_last_odd_last",
    "taught_first_odd_first",
    "taught_last_alternating",
    "taught_first_alternating",
]
PAPER = [
    f"copy_{end}{how}"
    for how in ("", "_hint", "_alternating")
    for end in ("last", "first")
]


@dataclass
class Options:
    """Command-line options.

    Args:
        model: bundled name, folder or Hugging Face name.
        tasks: names from `sl.tasks.names()`.
        lengths: numbers of digits.
        template: none, or chat for instruct models.
        dtype: dtype that the model runs in.
        device: device, such as cpu or cuda; by default CUDA if there is one.
        resume: continue from the answers in the output folder.
        out: folder for data and figure.
    """

    model: str = "tiny-gemma"
    tasks: tuple[str, ...] = ()
    lengths: tuple[int, ...] = (*range(4, 161, 4),)
    template: Literal["none", "chat"] = "none"
    dtype: str = "float32"
    device: str | None = None
    resume: bool = False
    out: Path = Path("fig2")


args = tyro.cli(Options, description=__doc__)
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model, device=args.device, dtype=args.dtype)
found = {}
for name in args.tasks or (
    TAUGHT if sl.example_models.trained_length(args.model) else PAPER
):
    kept = args.out / f"{name}.jsonl" if args.resume else None
    # One answer for each length: the only random choice is the digit that alternating sequences begin with.
    task = sl.tasks.find(name)
    found[name] = sl.evaluate_task(
        model, task, lengths=args.lengths, seeds=1, template=args.template, resume=kept
    )
    sl.results.save(found[name], args.out / f"{name}.nc")
sl.figures.save(sl.figures.task_accuracy(found), args.out / "fig2.html")

for name, answers in found.items():
    right = answers["right"].isel(mode=0, seed=0)
    wrong = [*right["length"].values[~right.values], "none"]
    print(
        f"{name}: right at {int(right.sum())} of {right.size} lengths; first wrong at {wrong[0]}"
    )
    print(
        f"  instead: {sorted({*answers['answer'].values[~answers['right'].values]})[:8]}"
    )
    print(f"  {answers['able_reason'].item()}")
    print(f"  not read: {float(answers['unread'].sum('why').mean()):.0%}")
print(f"data and figure in {args.out.resolve()}")
