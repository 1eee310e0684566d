"""Train the bundled model: `python -m squashlens.zoo.train --out FOLDER`.

A real `GemmaForCausalLM`, seeded; every batch follows from (seed, step), so an interrupted run goes on
from its checkpoint as if it had not stopped. The loss is the cross-entropy of the answer's tokens and
the `<eos>` behind them, nothing else.
"""

import argparse
import math
import os
from pathlib import Path

import torch
from torch.nn import functional as F
from tqdm import tqdm
from transformers import GemmaConfig, GemmaForCausalLM, PreTrainedTokenizerFast

from squashlens.zoo.curriculum import Example, training_batch
from squashlens.zoo.tokenizer import build_tokenizer, vocabulary

SEED = 20240607
STEPS = 10_000
BATCH = 64
PEAK_LR = 2e-3
WARMUP = 200
WEIGHT_DECAY = 0.05
CHECKPOINT_EVERY = 200  # steps: a few minutes on two cores


def config() -> GemmaConfig:
    """Gemma's architecture, small: 6 blocks, d = 128, 4 query heads on one key/value head."""
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


def encode(examples: list[Example], tokenizer: PreTrainedTokenizerFast) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and targets, (batch, position): the target is −100 wherever no answer token follows."""
    eos, pad = vocabulary()["<eos>"], vocabulary()["<pad>"]
    rows, targets = [], []
    for example in examples:
        prompt = tokenizer(example.prompt)["input_ids"]
        answer = [*tokenizer(example.answer, add_special_tokens=False)["input_ids"], eos]
        rows.append([*prompt, *answer])
        targets.append([-100] * (len(prompt) - 1) + answer)
    width = max(map(len, rows)) - 1  # the last answer token is only ever a target
    ids = torch.tensor([(r[:-1] + [pad] * width)[:width] for r in rows])
    goal = torch.tensor([(t + [-100] * width)[:width] for t in targets])
    return ids, goal


def learning_rate(step: int, total: int) -> float:
    """Linear warm-up, then a cosine down to a hundredth of the peak."""
    if step < WARMUP:
        return PEAK_LR * (step + 1) / WARMUP
    progress = (step - WARMUP) / max(1, total - WARMUP)
    return PEAK_LR * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


def save_atomically(state: dict, path: Path) -> None:
    """Write beside the target, then rename: a killed writer leaves the old checkpoint whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def train(out: Path, checkpoint: Path, steps: int = STEPS, seed: int = SEED, device: str = "cpu") -> None:
    """Train for `steps`, resuming from `checkpoint` if there is one, and save a Hugging Face folder."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer()
    model = GemmaForCausalLM(config())
    model.train().to(torch.device(device))  # pyright: ignore[reportArgumentType]
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=WEIGHT_DECAY)
    start = 0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True, map_location=device)
        if (state["seed"], state["steps"]) != (seed, steps):
            raise SystemExit(
                f"{checkpoint} belongs to seed {state['seed']}, {state['steps']} steps; this run is seed "
                f"{seed}, {steps} steps. Give another --checkpoint, or delete that file."
            )
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"]
    bar = tqdm(range(start, steps), initial=start, total=steps, desc="train", unit="step", mininterval=10)
    smooth = None
    for step in bar:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps)
        ids, goal = (t.to(device) for t in encode(training_batch(step, steps, BATCH, seed), tokenizer))
        logits = model(ids, use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1), goal.flatten(), ignore_index=-100)
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
                    "steps": steps,
                    "seed": seed,
                },
                checkpoint,
            )
    export(model, tokenizer, out)


def export(model: GemmaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """An ordinary Hugging Face folder: config, fp32 safetensors, tokenizer."""
    model.eval().cpu().save_pretrained(out)
    tokenizer.save_pretrained(out)
    print(f"saved to {out}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m squashlens.zoo.train", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("tiny-gemma"), help="folder to write (%(default)s)")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=Path("runs/tiny-gemma.pt"),
        help="where progress is kept and found again (%(default)s)",
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="training steps (%(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of weights and data (%(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads (all)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    train(args.out, args.checkpoint, args.steps, args.seed, args.device)


if __name__ == "__main__":
    main()
