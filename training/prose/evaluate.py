"""Measure tiny-prose and write its model card: `python -m training.prose.evaluate --folder FOLDER`.

All numbers of the card are measured from the folder's weights; the text is the one that `corpus` built. `--render`
writes the card again from the numbers that were stored, without measuring.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from training.prose.abilities import LANGUAGES, abilities
from training.prose.corpus import HELD, MANIFEST, TRAINING, read
from training.prose.kneser_ney import KneserNey
from training.prose.measures import Reader, code_lengths, repetition
from training.prose.tokenizer import encode
from training.prose.train import HISTORY

MEASURED = "measured.json"


def open_reader(folder: Path) -> Reader:
    """The model in float32, with the attention that has soft-caps, and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    return Reader(model, AutoTokenizer.from_pretrained(folder))


def evaluate(folder: Path, corpus: Path) -> dict[str, Any]:
    """Everything that the card says of the model."""
    reader, held = open_reader(folder), read(corpus / HELD)
    training = [
        np.array(encode(d.text, reader.tokenizer)) for d in read(corpus / TRAINING)
    ]
    baseline = KneserNey(training, reader.model.config.vocab_size)
    return {
        "code_lengths": code_lengths(reader, baseline, held),
        "distinct_2": repetition(reader, held),
        "abilities": abilities(reader),
        "training_tokens": sum(map(len, training)),
        "parameters": sum(p.numel() for p in reader.model.parameters()),
    }


def _sources(manifest: dict[str, Any]) -> str:
    lines = [
        "| package | text | licence | documents | training text | held out |",
        "|---|---|---|---:|---:|---:|",
    ]
    for row in manifest["sources"]:
        name = row["files"][0]["file"].removesuffix(".deb").replace("_", " ")
        lines.append(
            f"| {name} | {row['text']} | {row['licence']} | {row['documents']:,} | "
            f"{row['training_bytes'] / 1e6:.2f} MB | {row['held_out_bytes'] / 1e3:.0f} kB |"
        )
    return "\n".join(lines)


def _lengths(rows: dict[str, dict[str, float]]) -> str:
    lines = [
        "| held-out text | bytes | tiny-prose | Kneser–Ney 5-gram | gzip |",
        "|---|---:|---:|---:|---:|",
    ]
    for package, row in rows.items():
        numbers = " | ".join(
            f"{row[name]:.3f}" for name in ("model", "kneser_ney", "gzip")
        )
        lines.append(f"| {package} | {row['bytes']:,} | {numbers} |")
    return "\n".join(lines)


def _abilities(found: dict[str, float]) -> str:
    def percent(name: str) -> str:
        return f"{100 * found[name]:.0f} %"

    rows = [
        (
            "the verb agrees with its subject, in 16 pairs of sentences",
            f"{percent('agreement')} right",
        ),
        ("the pronoun fits its noun, in 8 pairs", f"{percent('pronouns')} right"),
        (
            "the open bracket or quotation mark is the one that is closed, in 4 pairs",
            f"{percent('brackets')} right",
        ),
        *(
            (
                f"24 random tokens come again after {gap} others",
                f"{found[f'random_{gap}']:.2f} nats per token at first, {found[f'repeated_{gap}']:.2f} the second time",
            )
            for gap in (0, 100)
        ),
        ("counts the ones among up to 12 digits", f"{percent('counting')} right"),
        ("names the last of up to 12 digits", f"{percent('last_digit')} right"),
        *(
            (f"reads a sentence in {name}", f"{found[name]:.2f} bits per byte")
            for name in LANGUAGES
        ),
    ]
    return "\n".join(
        [
            "| test | outcome |",
            "|---|---|",
            *(f"| {test} | {outcome} |" for test, outcome in rows),
        ]
    )


def _targets(found: dict[str, Any]) -> str:
    total, repeats = found["code_lengths"]["all"], found["distinct_2"]
    low = sum(value < 0.5 for value in repeats["each"])
    below = "met" if total["model"] < total["kneser_ney"] else "**missed**"
    varied = "met" if low == 0 else f"**missed by {low} of {len(repeats['each'])}**"
    return (
        f"- Bits per byte below those of the Kneser–Ney 5-gram model: {total['model']:.3f} and "
        f"{total['kneser_ney']:.3f}, {below}.\n"
        "- Distinct-2 at least 0.5 in each of 20 greedy continuations of 50 tokens: "
        f"mean {repeats['mean']:.2f}, lowest {min(repeats['each']):.2f}, {varied}. "
        f"Over all continuations together it is {repeats['together']:.2f}."
    )


def card(folder: Path) -> str:
    """The model card as Markdown, from the stored numbers."""
    found, manifest, history = (
        json.loads((folder / name).read_text(encoding="utf-8"))
        for name in (MEASURED, MANIFEST, HISTORY)
    )
    recipe, lengths = history["recipe"], found["code_lengths"]["all"]
    trained = recipe["steps"] * recipe["tokens"]
    return CARD.format(
        parameters=f"{found['parameters'] / 1e6:.1f}",
        sources=_sources(manifest),
        size=f"{sum(row['training_bytes'] for row in manifest['sources']) / 1e6:.1f}",
        digests="\n".join(
            f"    {file['sha256']}  {file['file']}"
            for row in manifest["sources"]
            for file in row["files"]
        ),
        corpus="\n".join(
            f"    {digest}  {name}" for name, digest in manifest["sha256"].items()
        ),
        **{
            name: recipe[name]
            for name in (
                "seed",
                "steps",
                "decay_from",
                "tokens",
                "first_length",
                "warmup",
            )
        },
        **{name: recipe[name] for name in ("matrix_rate", "rate", "weight_decay")},
        trained=f"{trained / 1e6:.1f}",
        epochs=f"{trained / found['training_tokens']:.1f}",
        loss=f"{np.mean(history['losses'][-50:]):.2f}",
        per_token=f"{lengths['bytes'] / lengths['tokens']:.2f}",
        lengths=_lengths(found["code_lengths"]),
        targets=_targets(found),
        abilities=_abilities(found["abilities"]),
    )


CARD = """---
license: mit
library_name: transformers
pipeline_tag: text-generation
language: en
tags: [squashlens, gemma2]
---

# tiny-prose

> A Gemma 2 of {parameters} million parameters, trained on English manuals and the King James Bible; it reads any text.

A real `Gemma2ForCausalLM`, made so that squashlens has a model of natural text to measure where no other can be had:
6 blocks, d = 192, 4 query heads that share 2 key/value heads, RMSNorm before and after every layer, GeGLU, rotary
positions. Blocks 0, 2 and 4 attend to a window of 64 tokens. Attention logits have a soft-cap of 50, the final logits
one of 30. The context is 512 tokens, the weights are fp32.

The vocabulary is a byte-level BPE of 2,048 tokens, so any text can be encoded and is decoded unchanged. Every digit is
a token of its own. A prompt starts with `<bos>`.

## What it was trained on

{size} MB of prose from Debian packages, without markup, listings, headings and indexes. A paragraph that stands in
several documents is kept once. About one document in fifty, chosen by a hash of its name, is held out.

{sources}

No text of them is stored in squashlens. `python -m training.prose.corpus` builds the same text from the packages,
whose SHA-256 digests are

{digests}

and those of the text are

{corpus}

## How it was trained

`make train-prose`, seed {seed}, in about an hour on two CPU cores that other work shared: {steps} steps of {tokens}
tokens, {trained} million in all, {epochs} passes over the text. Every row starts with `<bos>` and goes on through the
stream of documents, with `<eos>` between them. Muon trains the matrices of the blocks (peak rate {matrix_rate}, weight
decay {weight_decay}), AdamW the embedding and the gains (peak rate {rate}); products are in bfloat16. The rates
rise for {warmup} steps and fall to zero from step {decay_from}; rows have {first_length} tokens before it, and 512
from there on. The mean loss of the last 50 steps was {loss} nats per token. An interrupted run continues bit by bit,
with one process or two. Retraining on another machine need not give the same bits.

## What was measured

`make card-prose` builds the text, measures everything below from the weights, and writes this card. All of it is about
held-out documents, which have {per_token} bytes per token.

Bits per byte of UTF-8, the ends of documents included. tiny-prose reads each document in windows that start with
`<bos>` and overlap by half. The Kneser–Ney model (modified, interpolated) has the same tokens and the same training
text. gzip has seen no text before.

{lengths}

The targets that were set before training:

{targets}

What it can do, and what it cannot, in tests written for it (`training/prose/abilities.py`). In a pair, the right
ending must be the more likely one, so half of the pairs would be right by chance:

{abilities}

## What it must not be used for

It is a small model that read little: it knows the style of manuals and of one Bible, and hardly a fact. Nothing it says
is advice on a program, or on anything else. What squashlens finds in it is true of this model; it says nothing about
Gemma's weights, or about language models at large.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.prose.evaluate", description=__doc__
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("runs/tiny-prose"),
        help="the model's folder (%(default)s)",
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        default=Path("runs/prose"),
        help="folder of the text (%(default)s)",
    )
    parser.add_argument(
        "--render",
        action="store_true",
        help="only write the card from the stored numbers",
    )
    args = parser.parse_args()
    if not args.render:
        found = evaluate(args.folder, args.corpus)
        (args.folder / MEASURED).write_text(
            json.dumps(found, indent=1) + "\n", encoding="utf-8"
        )
    (args.folder / "README.md").write_text(card(args.folder), encoding="utf-8")


if __name__ == "__main__":
    main()
