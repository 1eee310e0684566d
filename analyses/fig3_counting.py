r"""Figures 3 and 6: the error of counting grows with the length, however the question is asked.

Claim: sums of ones, ones in a sequence of ones, and ones among zeros are soon miscounted, with an error that grows
quickly, also with a chain of thought, with or without examples. The bundled model is asked with the words of its
training, which have one mode; any other model with the paper's. Answers that cannot be read have no error; their
share is printed.

    python analyses/fig3_counting.py --model google/gemma-7b-it --template chat --dtype bfloat16 \
        --lengths 10 50 100 200 --out fig3
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

import squashlens as sl
from squashlens._typing import Mode

TAUGHT = ["taught_sum_repeated", "taught_count_repeated", "taught_count_bernoulli"]
PAPER = ["sum", "count_ones", "count_bernoulli", "count_word"]


@dataclass
class Options:
    """Command-line options.

    Args:
        model: bundled name, folder or Hugging Face name.
        tasks: names from `sl.tasks.names()`.
        mode: answer_only, cot, cot_few_shot; by default all that the task has.
        lengths: numbers of items.
        seeds: draws at each length, if items are random.
        template: none, or chat for instruct models.
        dtype: dtype that the model runs in.
        device: device, such as cpu or cuda; by default CUDA if there is one.
        resume: continue from the answers in the output folder.
        out: folder for data and figures.
    """

    model: str = "tiny-gemma"
    tasks: tuple[str, ...] = ()
    mode: tuple[Mode, ...] = ()
    lengths: tuple[int, ...] = (*range(4, 97, 4),)
    seeds: int = 16
    template: Literal["none", "chat"] = "none"
    dtype: str = "float32"
    device: str | None = None
    resume: bool = False
    out: Path = Path("fig3")


args = tyro.cli(Options, description=__doc__)
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model, device=args.device, dtype=args.dtype)
found = {}
for name in args.tasks or (
    TAUGHT if sl.example_models.trained_length(args.model) else PAPER
):
    task = sl.tasks.find(name)
    modes = args.mode or (
        ("answer_only", "cot", "cot_few_shot") if task.examples else "answer_only"
    )
    found[name] = sl.evaluate_task(
        model,
        task,
        lengths=args.lengths,
        seeds=args.seeds if task.random else 1,
        mode=modes,
        template=args.template,
        resume=args.out / f"{name}.jsonl" if args.resume else None,
    )
    sl.results.save(found[name], args.out / f"{name}.nc")
sl.figures.save(sl.figures.task_error(found), args.out / "errors.html")
sl.figures.save(sl.figures.task_accuracy(found), args.out / "accuracy.html")

for name, answers in found.items():
    print(name, *answers["able_reason"].values, sep=": ")
    for mode, one in answers.groupby("mode"):
        table = (
            one[["accuracy", "mean_error"]]
            .assign(unread=one["unread"].sum("why"))
            .mean()
            .to_array()
            .values
        )
        print(
            "{} ({}): right {:.1%}, mean error {:.1f}, not read {:.1%}".format(
                name, mode, *table
            )
        )
print(f"data and figures in {args.out.resolve()}")
