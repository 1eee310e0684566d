"""Train the bundled model: `python -m training.gemma.train --out FOLDER`.

The model is a `GemmaForCausalLM` with a random seed. Every batch is determined by (seed, step), so an interrupted run
continues from its checkpoint exactly as if it had not stopped. The loss is the cross-entropy of the answer's tokens and
the `<eos>` after them.
"""

import argparse
import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F
from tqdm.auto import tqdm
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from squashlens.example_models.curriculum import END
from training.gemma.curriculum import CYCLES, Example, cycle_of, training_batch
from training.gemma.tokenizer import build_tokenizer, vocabulary

SEED = 20240607
STEPS = sum(CYCLES)
BATCH = 64
PEAK_LR = 2e-3
WARMUP = 200
WEIGHT_DECAY = 0.05
CHECKPOINT_EVERY = 200  # steps: a few minutes on two cores


def config() -> GemmaConfig:
    """The model's configuration: Gemma with 6 blocks, d = 128, and 4 query heads that share one key/value head."""
    vocab = vocabulary()
    return GemmaConfig(
        vocab_size=len(vocab),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=2048,
        initializer_range=0.05,
        pad_token_id=vocab["<pad>"],
        eos_token_id=vocab["<eos>"],
        bos_token_id=vocab["<bos>"],
    )


@dataclass(frozen=True)
class Packed:
    """Examples as one batch. Each row is a stem, followed by a branch for every cut.

    A branch (end marker, answer) attends to the stem up to its cut and to itself, at the positions it would have if the
    sequence ended there. So one forward pass gives the same as a separate pass for every cut.
    """

    ids: Int[Tensor, "row place"]
    positions: Int[Tensor, "row place"]
    visible: Bool[Tensor, "row 1 place place"]
    targets: Int[Tensor, "row place"]  # the next token of an answer, −100 elsewhere

    def logits(self, model: GemmaForCausalLM) -> Tensor:
        return model(
            self.ids,
            attention_mask=self.visible,
            position_ids=self.positions,
            use_cache=False,
        ).logits

    def to(self, device: str) -> "Packed":
        return Packed(*(getattr(self, f.name).to(device) for f in fields(self)))


def pack(examples: Sequence[Example], tokenizer: PreTrainedTokenizerFast) -> Packed:
    """The examples as stems with branches, padded to the length of the longest row."""

    def ids_of(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]  # pyright: ignore[reportReturnType]

    vocab = vocabulary()
    rows = []
    for example in examples:
        ids = [vocab["<bos>"], *ids_of(example.stem(len(example.digits)))]
        cells = [(token, place, 0, 0, -100) for place, token in enumerate(ids)]
        for branch, cut in enumerate(example.cuts, start=1):
            end = 1 + len(ids_of(example.stem(cut)))
            branch_ids = [*ids_of(END), *ids_of(example.answer(cut)), vocab["<eos>"]]
            for k, (token, target) in enumerate(itertools.pairwise(branch_ids)):
                cells.append((token, end + k, branch, end, target))
        rows.append(cells)
    width = max(map(len, rows))
    padding = (vocab["<pad>"], 0, -1, 0, -100)
    table = torch.tensor([cells + [padding] * (width - len(cells)) for cells in rows])
    ids, positions, branch, end, targets = table.unbind(dim=-1)
    place = torch.arange(width)
    same = branch[:, :, None] == branch[:, None, :]
    stem = (
        (branch[:, None, :] == 0) & (branch[:, :, None] > 0) & (place < end[:, :, None])
    )
    visible = (same | stem) & (place <= place[:, None])
    return Packed(ids, positions, visible[:, None], targets)


def learning_rate(step: int) -> float:
    """The learning rate of a step: in each cycle a linear warm-up, then a cosine down to a hundredth of the peak."""
    number, progress = cycle_of(step)
    warm = WARMUP / CYCLES[number]
    if progress < warm:
        return PEAK_LR * (progress + 1 / CYCLES[number]) / warm
    return PEAK_LR * (
        0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (progress - warm) / (1 - warm)))
    )


def save_atomically(state: dict, path: Path) -> None:
    """Write a checkpoint to a temporary file and rename it, so that a killed writer leaves the old one intact."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def train(
    out: Path,
    checkpoint: Path,
    steps: int = STEPS,
    seed: int = SEED,
    device: str = "cpu",
) -> None:
    """Train for `steps`, resuming from `checkpoint` if there is one, and save a Hugging Face folder."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer()
    model = GemmaForCausalLM(config())
    model.train().to(torch.device(device))  # pyright: ignore[reportArgumentType]
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=WEIGHT_DECAY
    )
    start = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True, map_location=device)
        if state["seed"] != seed:
            raise SystemExit(
                f"{checkpoint} was saved with --seed {state['seed']}, and this run has --seed {seed}. "
                "Give another --checkpoint, or delete that file."
            )
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    bar = tqdm(
        range(start, steps),
        initial=start,
        total=steps,
        desc="train",
        unit="step",
        mininterval=10,
    )
    smooth = None
    for step in bar:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        batch = pack(training_batch(step, BATCH, seed), tokenizer).to(device)
        loss = F.cross_entropy(
            batch.logits(model).flatten(0, 1),
            batch.targets.flatten(),
            ignore_index=-100,
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        smooth = loss.item() if smooth is None else 0.98 * smooth + 0.02 * loss.item()
        bar.set_postfix(loss=f"{smooth:.4f}", refresh=False)
        if (step + 1) % CHECKPOINT_EVERY == 0 or step + 1 == steps:
            save_atomically(
                {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "step": step + 1,
                    "seed": seed,
                },
                checkpoint,
            )
    export(model, tokenizer, out)


def export(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, out: Path
) -> None:
    """Save the model as a Hugging Face folder: configuration, float32 safetensors, tokenizer."""
    model.eval().cpu().save_pretrained(out)
    for local in (
        "is_local",
        "local_files_only",
    ):  # how it was opened here, which is nobody else's concern
        tokenizer.init_kwargs.pop(local, None)
    tokenizer.save_pretrained(out)
    print(f"saved to {out}")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.gemma.train", description=__doc__
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("tiny-gemma"),
        help="folder to write (%(default)s)",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=Path("runs/tiny-gemma.pt"),
        help="file to save progress to and resume from (%(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=STEPS,
        help="number of training steps (%(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=SEED,
        help="random seed of weights and data (%(default)s)",
    )
    parser.add_argument(
        "--device", default="cpu", help="device to train on, cpu or cuda (%(default)s)"
    )
    parser.add_argument(
        "--threads", type=int, default=None, help="number of CPU threads (all)"
    )
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    train(args.out, args.checkpoint, args.steps, args.seed, args.device)


if __name__ == "__main__":
    main()
