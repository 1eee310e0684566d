"""Train tiny-prose: `torchrun --nproc-per-node 2 -m training.prose.train`, or without torchrun on one core.

Every batch is determined by (seed, step), so an interrupted run continues from its checkpoint exactly as if it had not
stopped. A step's gradient is the sum of two halves, whether one process computes both or two processes one each, so
the number of processes changes no bit either.

The learning rate rises during the warm-up, stays, and falls to zero between `--decay-from` and `--steps`. Until the
fall begins, neither number matters: a run can be stopped, and resumed with the numbers that the remaining time allows.
"""

import argparse
import itertools
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from tqdm.auto import tqdm
from transformers import AutoTokenizer, Gemma2Config, Gemma2ForCausalLM

from training.gemma.train import export, save_atomically
from training.prose.corpus import MANIFEST
from training.prose.tokenizer import CONTEXT, TOKENIZER, TOKENS, VOCABULARY

PAD, EOS, BOS = 0, 1, 2
HALVES = 2
HISTORY = "training.json"


@dataclass(frozen=True)
class Recipe:
    """What determines the weights, besides the text."""

    seed: int = 20240607
    steps: int = 1700
    decay_from: int = 1100
    tokens: int = 4096  # in one step
    first_length: int = (
        256  # tokens in a row until the decay, and from then on the whole context
    )
    matrix_rate: float = (
        0.02  # peak learning rate of Muon, for the matrices of the blocks
    )
    rate: float = 3e-3  # peak learning rate of AdamW, for the embedding and the gains
    weight_decay: float = 0.1
    warmup: int = 40

    def factor(self, step: int) -> float:
        """The learning rate of a step as a share of the peak."""
        rise = min(1.0, (step + 1) / self.warmup)
        fall = (
            (self.steps - step) / (self.steps - self.decay_from)
            if step >= self.decay_from
            else 1.0
        )
        return rise * fall


def config() -> Gemma2Config:
    """The model's configuration: Gemma 2 with 6 blocks, of which every second attends to a window of 64 tokens."""
    return Gemma2Config(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=448,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=48,
        query_pre_attn_scalar=48,
        sliding_window=64,
        max_position_embeddings=CONTEXT,
        initializer_range=0.05,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
        attn_implementation="eager",  # pyright: ignore[reportCallIssue]  (it alone computes the soft-caps)
    )


class Rows:
    """The documents in a random order as one stream, cut into rows that each start with `<bos>`."""

    def __init__(self, tokens: NDArray[np.uint16], seed: int) -> None:
        starts = [*np.flatnonzero(tokens == BOS).tolist(), len(tokens)]
        documents = [tokens[a:b] for a, b in itertools.pairwise(starts)]
        Random(f"{seed}:documents").shuffle(documents)
        self._stream = np.concatenate(documents)
        self._seed = seed
        self._orders: dict[tuple[int, int], list[int]] = {}

    def batch(self, first: int, count: int, length: int) -> Int[Tensor, "row place"]:
        """`count` rows of `length` tokens, the `first`-th and the next; after the last row comes another order."""
        each = len(self._stream) // (length - 1)
        rows = []
        for number in range(first, first + count):
            epoch, place = divmod(number, each)
            start = self._order(epoch, length, each)[place] * (length - 1)
            rows.append(
                np.concatenate(([BOS], self._stream[start : start + length - 1]))
            )
        return torch.from_numpy(np.stack(rows).astype(np.int64))

    def _order(self, epoch: int, length: int, count: int) -> list[int]:
        if (epoch, length) not in self._orders:
            order = list(range(count))
            Random(f"{self._seed}:{epoch}:{length}").shuffle(order)
            self._orders = {(epoch, length): order}
        return self._orders[epoch, length]


def halves_of(step: int, rows: Rows, recipe: Recipe) -> list[Int[Tensor, "row place"]]:
    """The two halves of a step's batch."""
    decaying = step >= recipe.decay_from
    length = CONTEXT if decaying else recipe.first_length
    count = recipe.tokens // length // HALVES
    first = (step - recipe.decay_from * decaying) * count * HALVES
    return [rows.batch(first + half * count, count, length) for half in range(HALVES)]


def loss_of(model: Gemma2ForCausalLM, ids: Int[Tensor, "row place"]) -> Tensor:
    """The mean cross-entropy of the next token, in nats, with products in bfloat16."""
    with torch.autocast(ids.device.type, torch.bfloat16):
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def optimizers_of(
    model: Gemma2ForCausalLM, recipe: Recipe
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks; AdamW for the embedding and the gains, which it does not decay."""
    matrices = [
        p for name, p in model.named_parameters() if p.ndim == 2 and "layers" in name
    ]
    others = [
        p for name, p in model.named_parameters() if p.ndim < 2 or "layers" not in name
    ]
    return [
        torch.optim.Muon(
            matrices, lr=recipe.matrix_rate, weight_decay=recipe.weight_decay
        ),
        torch.optim.AdamW(others, lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def train(
    corpus: Path, out: Path, checkpoint: Path, recipe: Recipe, every: int = 25
) -> None:
    """Train, resuming from `checkpoint` if there is one, and save a Hugging Face folder.

    A checkpoint is saved after every `every` steps.
    """
    rank, workers = (
        (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    )
    torch.manual_seed(recipe.seed)
    model = Gemma2ForCausalLM(config()).train()
    rows = Rows(np.load(corpus / TOKENS), recipe.seed)
    optimizers = optimizers_of(model, recipe)
    losses: list[float] = []
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        _check(state, recipe, checkpoint)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        losses = state["losses"]
    todo = range(len(losses), recipe.steps)
    bar = tqdm(
        todo,
        initial=len(losses),
        total=recipe.steps,
        desc="train",
        mininterval=10,
        disable=rank > 0,
    )
    for step in bar:
        losses.append(
            backward(model, halves_of(step, rows, recipe)[rank::workers], workers)
        )
        for optimizer, peak in zip(
            optimizers, (recipe.matrix_rate, recipe.rate), strict=True
        ):
            for group in optimizer.param_groups:
                group["lr"] = peak * recipe.factor(step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        bar.set_postfix(loss=f"{np.mean(losses[-20:]):.3f}", refresh=False)
        if rank == 0 and (len(losses) % every == 0 or len(losses) == recipe.steps):
            state = {
                "model": model.state_dict(),
                "optimizers": [o.state_dict() for o in optimizers],
            }
            save_atomically(
                {**state, "losses": losses, "recipe": asdict(recipe)}, checkpoint
            )
    if rank == 0:
        export(model, AutoTokenizer.from_pretrained(corpus / TOKENIZER), out)
        history = {
            "recipe": asdict(recipe),
            "losses": [round(loss, 4) for loss in losses],
        }
        (out / HISTORY).write_text(json.dumps(history) + "\n", encoding="utf-8")
        shutil.copy(corpus / MANIFEST, out / MANIFEST)


def backward(
    model: Gemma2ForCausalLM, halves: list[Int[Tensor, "row place"]], workers: int
) -> float:
    """Leave the gradient of both halves in the parameters, of which this process has `halves`; return the loss."""
    loss = torch.zeros(())
    for ids in halves:
        part = loss_of(model, ids) / HALVES
        part.backward()
        loss += part.detach()
    if workers > 1:
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        flat = torch.cat(
            [loss.reshape(1), *(gradient.flatten() for gradient in gradients)]
        )
        dist.all_reduce(flat)
        loss = flat[0]
        for gradient, summed in zip(
            gradients, flat[1:].split([g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(summed.view_as(gradient))
    return loss.item()


def _check(state: dict, recipe: Recipe, checkpoint: Path) -> None:
    """Refuse a checkpoint of another recipe; the end of the run may still be moved until the decay has begun."""
    old, new = state["recipe"], asdict(recipe)
    step = len(state["losses"])
    movable = (
        {"steps", "decay_from"}
        if step <= min(old["decay_from"], new["decay_from"])
        else set()
    )
    for name in new.keys() - movable:
        if old[name] != new[name]:
            raise SystemExit(
                f"{checkpoint} was saved after {step} steps with {name} {old[name]}, and this run has {new[name]}. "
                "Use the same value, give another --checkpoint, or delete that file."
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m training.prose.train", description=__doc__
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        default=Path("runs/prose"),
        help="folder of the text (%(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/tiny-prose"),
        help="folder to write (%(default)s)",
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=Path("runs/tiny-prose.pt"),
        help="file to save progress to and resume from (%(default)s)",
    )
    standard = Recipe()
    parser.add_argument(
        "--steps",
        type=int,
        default=standard.steps,
        help="number of training steps (%(default)s)",
    )
    parser.add_argument(
        "--decay-from",
        type=int,
        default=standard.decay_from,
        help="step from which the learning rate falls and rows have 512 tokens (%(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=standard.seed, help="random seed (%(default)s)"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
        if dist.get_world_size() > HALVES:
            raise SystemExit(
                f"{dist.get_world_size()} processes were started, and a step has {HALVES} halves. Use 2."
            )
    train(
        args.corpus,
        args.out,
        args.checkpoint,
        Recipe(args.seed, args.steps, args.decay_from),
    )
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
