"""What the bundled model can do, by task and length, written into its model card.

`python -m squashlens.zoo.evaluate --folder FOLDER` measures exact-match accuracy: the greedy answer, its
`<eos>` included, equals the right one. Teacher forcing gives the same verdict in one forward pass, since a
greedy answer is right if and only if every token is the most likely one after the right ones before it.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

from squashlens.zoo.curriculum import MAX_TRAINED, TASKS, Example, draw
from squashlens.zoo.train import BATCH, SEED, STEPS, pack

LENGTHS = (*range(1, MAX_TRAINED + 1), 52, 56, 60, 64, 80, 96)
BANDS = ((1, 8), (9, 16), (17, 24), (25, 32), (33, 40), (41, 48), (49, 64), (65, 96))
SAMPLES = 200


def correct(examples: list[Example], model: Any, tokenizer: Any) -> np.ndarray:
    """Whether the greedy answer to each example is exactly right."""
    batch = pack(examples, tokenizer)
    with torch.no_grad():
        best = batch.logits(model).argmax(dim=-1)
    return ((best == batch.targets) | (batch.targets == -100)).all(dim=-1).numpy()


def evaluate(folder: Path, samples: int = SAMPLES, seed: int = 1, lengths: Sequence[int] = LENGTHS) -> pd.DataFrame:
    """Accuracy by task and length over `samples` fresh prompts each, all patterns, half of them with commas."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = []
    for name, task in TASKS.items():
        for length in tqdm(lengths, desc=name, unit="length"):
            rng = Random(f"evaluate:{seed}:{name}:{length}")
            drawn = [draw(task, length, commas=i % 2 == 1, rng=rng) for i in range(samples)]
            hits = [correct(drawn[i : i + 100], model, tokenizer) for i in range(0, samples, 100)]
            rows.append({"task": name, "length": length, "accuracy": np.concatenate(hits).mean()})
    return pd.DataFrame(rows)


def card(table: pd.DataFrame, samples: int) -> str:
    """The model card: what it is, how it was made, what it can do, what not to conclude from it."""
    header = "| task | " + " | ".join(f"{a}–{b}" for a, b in BANDS) + " |"
    rule = "|---|" + "---:|" * len(BANDS)
    lines = []
    for name in TASKS:
        own = table.query("task == @name")
        cells = [own.query("@a <= length <= @b")["accuracy"].mean() for a, b in BANDS]
        lines.append(f"| {name} | " + " | ".join(f"{100 * c:.1f}" for c in cells) + " |")
    floors = []
    for names, top, target in ((("count",), 32, 95), (("first", "last"), MAX_TRAINED, 99)):
        worst = table.query("task in @names and length <= @top").nsmallest(1, "accuracy").iloc[0]
        met = "met" if 100 * worst["accuracy"] >= target else "**missed**"
        floors.append(
            f"- {' and '.join(names)}, every length up to {top}: target ≥ {target} %, lowest "
            f"{100 * worst['accuracy']:.1f} % ({worst['task']}, length {int(worst['length'])}): {met}."
        )
    return CARD.format(
        steps=STEPS, batch=BATCH, seed=SEED, trained=MAX_TRAINED, samples=samples,
        table="\n".join([header, rule, *lines]), floors="\n".join(floors),
    )  # fmt: skip


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
`01…1`; with a comma after every third digit in two prompts of five. Lengths are uniform from 1 to {trained} digits
(the longest grows to that over the first fifth of training).

Words and every digit and mark are one token each; a word outside the vocabulary is an error. The vocabulary covers
the paper's prompts (appendix C.1, figure 5), but **only the questions above were trained**: the other words of
appendix C.1 have embeddings that no training example ever used.

## How it was trained

`python -m squashlens.zoo.train --out tiny-gemma`: {steps} steps of {batch} prompts, AdamW, cosine schedule, seed
{seed}, the loss on the answer's tokens and `<eos>` alone; on two CPU cores. Retraining on another machine need not
give the same bits.

## What it can do

Exact-match accuracy in percent by number of digits, {samples} fresh prompts per task and length, all patterns, half
with commas (`python -m squashlens.zoo.evaluate`; every length is in `accuracy.csv`). **Training ended at {trained}
digits**: what follows is out of range, and its failure is what squashlens is for.

{table}

{floors}

## What it must not be used for

It says nothing about Gemma's weights, about language, or about how large models count. That a quantity behaves in
some way here shows that it *can*, in Gemma's architecture, on these tasks; not that it does in Gemma.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m squashlens.zoo.evaluate", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/tiny-gemma"), help="model folder (%(default)s)")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="prompts per task and length (%(default)s)")
    args = parser.parse_args()
    table = evaluate(args.folder, args.samples)
    table.to_csv(args.folder / "accuracy.csv", index=False, float_format="%.4f")
    (args.folder / "README.md").write_text(card(table, args.samples), encoding="utf-8")
    print(table.pivot(index="length", columns="task", values="accuracy").to_string())


if __name__ == "__main__":
    main()
