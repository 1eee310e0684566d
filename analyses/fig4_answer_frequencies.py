r"""Figures 4 and 7: models that are asked to count give common numbers far too often.

Claim: 100 was Gemini's most frequent answer. The script compares how often each number is answered with how often it
is right. Questions of all lengths are taken together, so that right answers are spread evenly where the count is the
length, and any peak comes from the model.

    python analyses/fig4_answer_frequencies.py --model google/gemma-7b-it --template chat --dtype bfloat16 \
        --longest 200 --out fig4
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

import squashlens as sl

TAUGHT = ["taught_sum_repeated", "taught_count_repeated", "taught_count_bernoulli"]
PAPER = ["sum", "count_ones", "count_bernoulli"]


@dataclass
class Options:
    """Command-line options.

    Args:
        model: bundled name, folder or Hugging Face name.
        tasks: names from `sl.tasks.names()`.
        longest: ask at every length up to this.
        seeds: draws at each length, if items are random.
        template: none, or chat for instruct models.
        dtype: dtype that the model runs in.
        device: device, such as cpu or cuda; by default CUDA if there is one.
        resume: continue from the answers in the output folder.
        out: folder for data and figure.
    """

    model: str = "tiny-gemma"
    tasks: tuple[str, ...] = ()
    longest: int = 96
    seeds: int = 4
    template: Literal["none", "chat"] = "none"
    dtype: str = "float32"
    device: str | None = None
    resume: bool = False
    out: Path = Path("fig4")


args = tyro.cli(Options, description=__doc__)
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model, device=args.device, dtype=args.dtype)
shares = {}
for name in args.tasks or (
    TAUGHT if sl.example_models.trained_length(args.model) else PAPER
):
    task = sl.tasks.find(name)
    answers = sl.evaluate_task(
        model,
        task,
        lengths=range(1, args.longest + 1),
        seeds=args.seeds if task.random else 1,
        template=args.template,
        resume=args.out / f"{name}.jsonl" if args.resume else None,
    )
    shares[name] = sl.results.answer_frequencies(answers)
    sl.results.save(answers, args.out / f"{name}.nc")
    most = (
        shares[name].isel(mode=0).sortby("said", ascending=False).isel(value=slice(3))
    )
    listed = [
        f"{value.item()} ({float(share):.1%}, right {float(due):.1%})"
        for value, share, due in zip(
            most["value"], most["said"], most["truth"], strict=True
        )
    ]
    print(
        f"{name}: answered most often {', '.join(listed)}; not read {float(shares[name]['unread'][0]):.1%}"
    )
sl.figures.save(sl.figures.answer_frequencies(shares), args.out / "fig4.html")
print(f"data and figure in {args.out.resolve()}")
