"""Measure the accuracy of the bundled model by task and length, and write its model card.

`python -m training.gemma.evaluate --folder FOLDER` measures exact-match accuracy: the greedy answer, its `<eos>`
included, must equal the right one. Teacher forcing gives the same verdict in one forward pass, because a greedy answer
is right if and only if every token is the most likely one after the right tokens before it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import torch
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from squashlens.example_models.curriculum import MAX_TRAINED, TASKS
from training.gemma.curriculum import CYCLES, Example, draw
from training.gemma.train import BATCH, SEED, pack

LENGTHS = (*range(1, MAX_TRAINED + 1), 52, 56, 60, 64, 80, 96)
BANDS = ((1, 8), (9, 16), (17, 24), (25, 32), (33, 40), (41, 48), (49, 64), (65, 96))
SAMPLES = 30  # prompts for each task, pattern and length


def correct(examples: list[Example], model: Any, tokenizer: Any) -> np.ndarray:
    """Whether the greedy answer to each example is exactly right."""
    batch = pack(examples, tokenizer)
    with torch.no_grad():
        best = batch.logits(model).argmax(dim=-1)
    return ((best == batch.targets) | (batch.targets == -100)).all(dim=-1).numpy()


def evaluate(
    folder: Path,
    samples: int = SAMPLES,
    seed: int = 1,
    lengths: Sequence[int] = LENGTHS,
) -> pd.DataFrame:
    """Accuracy by task, pattern and length over `samples` new prompts each, every second prompt with commas."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = []
    for task in TASKS.values():
        for length in tqdm(lengths, desc=task.name, unit="length"):
            rng = Random(f"evaluate:{seed}:{task.name}:{length}")
            for pattern in task.patterns:
                drawn = [
                    draw(task, length, i % 2 == 1, rng, pattern) for i in range(samples)
                ]
                share = correct(drawn, model, tokenizer).mean()
                rows.append(
                    {
                        "task": task.name,
                        "pattern": pattern,
                        "length": length,
                        "accuracy": share,
                    }
                )
    return pd.DataFrame(rows)


def by_length(table: pd.DataFrame) -> pd.DataFrame:
    """Accuracy by task and length, with equal weight for every pattern."""
    return table.pivot_table(
        values="accuracy", index=["task", "length"], aggfunc="mean"
    ).reset_index()


def _lines(table: pd.DataFrame, column: str) -> str:
    """A Markdown table of accuracy in percent: a row for each value of `column`, a column for each band of lengths."""
    lines = [
        f"| {column} | " + " | ".join(f"{a}–{b}" for a, b in BANDS) + " |",
        "|---|" + "---:|" * len(BANDS),
    ]
    for name in dict.fromkeys(table[column]):
        own = table.query(f"{column} == @name")
        cells = [own.query("@a <= length <= @b")["accuracy"].mean() for a, b in BANDS]
        lines.append(
            f"| {name} | " + " | ".join(f"{100 * c:.1f}" for c in cells) + " |"
        )
    return "\n".join(lines)


def targets(table: pd.DataFrame) -> str:
    """The accuracy targets and the lowest accuracy over lengths, as Markdown."""
    lengths, lines = by_length(table), []
    for names, top, target in (
        (("count",), 32, 95),
        (("first", "last"), MAX_TRAINED, 99),
    ):
        part = lengths.query("task in @names and length <= @top")
        worst = part.nsmallest(1, "accuracy").iloc[0]
        every, short = (
            len(set(t["length"]))
            for t in (part, part.query("accuracy * 100 < @target"))
        )
        verdict = "met" if not short else f"**missed at {short} of {every} lengths**"
        lines.append(
            f"- {' and '.join(names)}, every length up to {top}: target ≥ {target} %; mean "
            f"{100 * part['accuracy'].mean():.1f} %, lowest {100 * worst['accuracy']:.1f} % "
            f"({worst['task']}, length {int(worst['length'])}): {verdict}."
        )
    copied = lengths.query("task == 'copy' and length <= @MAX_TRAINED")["accuracy"]
    lines.append(
        f"- copy: no target was set; mean over lengths up to {MAX_TRAINED} {100 * copied.mean():.1f} %. "
        "Read its row before drawing on it."
    )
    return "\n".join(lines)


def card(table: pd.DataFrame, samples: int) -> str:
    """The model card as Markdown: description, training, accuracy, and limits of what can be concluded."""
    return CARD.format(
        first=CYCLES[0],
        second=CYCLES[1],
        batch=BATCH,
        seed=SEED,
        trained=MAX_TRAINED,
        samples=samples,
        table=_lines(by_length(table), "task"),
        patterns=_lines(table.query("task == 'count'"), "pattern"),
        floors=targets(table),
    )


CARD = """---
license: mit
library_name: transformers
pipeline_tag: text-generation
tags: [squashlens, gemma, synthetic]
---

# tiny-gemma

> A Gemma of 1.1 million parameters, trained to count ones and to copy digits in sequences of up to {trained} digits.

A real `GemmaForCausalLM` (RMSNorm with gain 1 + w, GeGLU, rotary positions, embeddings scaled by √d, one key/value
head for four query heads; 6 blocks, d = 128), made so that squashlens has a *trained* model to measure where no
other can be had. The weights are fp32.

## What it was taught

Prompts are a short question, a sequence of digits, the end marker `=`, and the answer:

    How many ones are in the following sequence? 1101 = 3 <eos>

| task | question | answer |
|---|---|---|
| count | How many ones are in the following sequence(s)? / Please count the number of ones in … | number of ones |
| sum | Please perform the following sum: (sequences of 0 and 1) | number of ones |
| last, first | What is the last (first) digit in this sequence? | that digit |
| copy | Can you copy the following number? | the sequence |

The digits are repeated ones, alternating, Bernoulli (p = 0.7, or p itself drawn), uniform over 0–9, `1…10`, or
`01…1`; about half of the prompts have a comma after every third digit. Training ends at {trained} digits.

Words and every digit and mark are one token each; a word outside the vocabulary is an error. The vocabulary covers
the paper's prompts (appendix C.1, figure 5), but **only the questions above were trained**: the other words of
appendix C.1 have embeddings that no training example ever used.

## How it was trained

`python -m training.gemma.train --out tiny-gemma`, seed {seed}, on two CPU cores: AdamW in two cycles, each with a
cosine schedule, {batch} sequences a step. In the first, {first:,} steps, all patterns are alike and a sequence is asked
about once; in the second, {second:,} steps, most sequences are irregular and are asked about at up to eight lengths at
once. The loss is on the answer's tokens and `<eos>` alone. Retraining on another machine need not give the same bits.

## What it can do

Exact-match accuracy in percent by number of digits, {samples} fresh prompts for each task, pattern and length, half
of them with commas, every pattern counting alike (`python -m training.gemma.evaluate`; every length is in
`accuracy.csv`). **Training ended at {trained} digits**: what follows is out of range, and its failure is what
squashlens is for.

{table}

Counting ones, by pattern:

{patterns}

{floors}

## What it must not be used for

It says nothing about Gemma's weights, about language, or about how large models count. That a quantity behaves in
some way here shows that it *can*, in Gemma's architecture, on these tasks; not that it does in Gemma.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.gemma.evaluate", description=__doc__
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("runs/tiny-gemma"),
        help="model folder (%(default)s)",
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=SAMPLES,
        help="prompts for each task, pattern, length (%(default)s)",
    )
    args = parser.parse_args()
    table = evaluate(args.folder, args.samples)
    table.to_csv(args.folder / "accuracy.csv", index=False, float_format="%.4f")
    (args.folder / "README.md").write_text(card(table, args.samples), encoding="utf-8")
    print(
        by_length(table)
        .pivot(index="length", columns="task", values="accuracy")
        .round(3)
        .to_string()
    )
    print(targets(table))


if __name__ == "__main__":
    main()
