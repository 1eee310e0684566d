"""What a model goes on to say: greedily, or sampled with a generator of its own for each prompt.

The loop is that of transformers, on the bridge, so that hooks act in it and every end-of-text token of the model is
known; prompts of one length go side by side, never padded. Where hooks stand nothing is cached: an edit by position
means another token when one token is run at a time. With frequencies that depend on the length of the pass
(`model.positions`) the two differ, as they do in transformers: keys that were kept are not rotated anew.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.errors import InputError
from squashlens.model.anatomy import context_length, device_of, dtype_of, n_blocks
from squashlens.model.branches import Ids
from squashlens.model.budget import pass_bytes, queries_and_keys
from squashlens.model.ends import side_by_side
from squashlens.model.forward import require_numbers, run
from squashlens.model.hooks import ambient
from squashlens.model.memory import available
from squashlens.model.native import is_native, outcomes, says_tokens
from squashlens.model.plain import checked

MEMORY = 1e9  # bytes that the prompts of one batch may take on the CPU; on CUDA, a quarter of what is free


@dataclass(frozen=True)
class Prompt:
    """Token ids to go on from, at most how far, and the text that seeds what is drawn if anything is."""

    ids: Ids
    room: int
    seed: str = ""


@dataclass(frozen=True)
class Said:
    """The tokens a model said, without the one that ended them, and whether it ended by itself."""

    ids: Ids
    ended: bool


def generate(
    model: Bridge, prompts: Sequence[Prompt], *, temperature: float = 0.0, chunk: int | None = None
) -> Iterator[dict[int, Said]]:
    """What the model says behind each prompt, batch by batch, by the prompt's place in `prompts`.

    At temperature 0 each token is the likeliest one, without the penalties and bans that a checkpoint may come with;
    above it, tokens are drawn from the softmax of logits ÷ temperature, by each prompt's own seed, so that what is
    drawn depends on no other prompt. A batch has prompts of one length and one room, `chunk` of them at most.
    """
    limit = context_length(model)
    for prompt in prompts:
        if limit is not None and len(prompt.ids) + prompt.room > limit:
            raise InputError(
                f"A prompt of {len(prompt.ids)} tokens and {prompt.room} for the answer do not fit the context "
                f"of {limit}.",
                "Ask at shorter lengths, or leave less room for the answer.",
            )
    kinds = ((len(prompt.ids), prompt.room) for prompt in prompts)
    for (_, room), part in side_by_side(kinds, lambda kind: chunk or _chunk(model, sum(kind))):
        yield dict(zip(part, _batch(model, [prompts[place] for place in part], room, temperature), strict=True))


def _batch(model: Bridge, prompts: Sequence[Prompt], room: int, temperature: float) -> list[Said]:
    from transformers import GenerationConfig, LogitsProcessorList

    plain: Any = model.original_model
    if is_native(model):
        return _step_by_step(model, prompts, room, temperature)
    ends = _ends(plain)
    ids = torch.tensor([prompt.ids for prompt in prompts], device=device_of(model))
    config = GenerationConfig(
        do_sample=False, max_new_tokens=room, eos_token_id=sorted(ends) or None, pad_token_id=min(ends, default=0),
        use_cache=not ambient(model),
    )  # fmt: skip
    steps: list[Any] = [_Numbers(model)]
    if temperature:
        steps.append(_Gumbel([prompt.seed for prompt in prompts], temperature, len(prompts[0].ids)))
    with _defaults_aside(plain), torch.inference_mode(False), torch.no_grad(), checked(model):
        out = plain.generate(
            ids, attention_mask=torch.ones_like(ids), generation_config=config,
            logits_processor=LogitsProcessorList(steps),
        )  # fmt: skip
    return [_until_end(row, ends) for row in out[:, ids.shape[1] :].tolist()]


def _step_by_step(model: Bridge, prompts: Sequence[Prompt], room: int, temperature: float) -> list[Said]:
    """The same for a model that is none of transformers': a whole pass for every token."""
    if not says_tokens(model):
        raise InputError(
            f"This model has {int(model.cfg.d_vocab)} tokens and {outcomes(model)} outcomes, so what it says cannot be "
            "its next input.",
            "Use `next_token`, which gives one distribution over its outcomes.",
        )
    ends = {model.tokenizer.eos_token_id} - {None} if model.tokenizer is not None else set()
    ids = torch.tensor([prompt.ids for prompt in prompts], device=device_of(model))
    start, noise = ids.shape[1], _Gumbel([prompt.seed for prompt in prompts], temperature, ids.shape[1])
    with torch.inference_mode(False), torch.no_grad():
        for _ in range(room):
            logits = run(model, ids)
            logits = noise(ids, logits) if temperature else logits
            ids = torch.cat([ids, logits.argmax(dim=-1, keepdim=True)], dim=1)
            if all(ends & set(row) for row in ids[:, start:].tolist()):
                break
    return [_until_end(row, ends) for row in ids[:, start:].tolist()]


def _until_end(row: list[int], ends: set[int]) -> Said:
    stop = next((place for place, token in enumerate(row) if token in ends), None)
    return Said(tuple(row[:stop]), stop is not None)


def _ends(plain: Any) -> set[int]:
    """Every token that ends a text: instruct models have several."""
    given = getattr(plain.generation_config, "eos_token_id", None)
    given = plain.config.eos_token_id if given is None else given
    return set() if given is None else set(given) if isinstance(given, list | tuple) else {int(given)}


@contextmanager
def _defaults_aside(plain: Any) -> Iterator[None]:
    """A checkpoint's own ways of decoding fill in whatever a call leaves open; here they would change the question."""
    from transformers import GenerationConfig

    own = plain.generation_config
    plain.generation_config = GenerationConfig()
    try:
        yield
    finally:
        plain.generation_config = own


class _Numbers:
    """Refuses logits that are NaN, which greedy decoding would take for the largest."""

    def __init__(self, model: Bridge) -> None:
        self.model = model

    def __call__(
        self, ids: Int[Tensor, "branch position"], logits: Float[Tensor, "branch outcome"]
    ) -> Float[Tensor, "branch outcome"]:
        require_numbers(self.model, logits)
        return logits


class _Gumbel:
    """Adds to logits ÷ T what makes their argmax a draw from softmax(logits ÷ T): −log(−log u), u uniform."""

    def __init__(self, seeds: Sequence[str], temperature: float, prompt: int) -> None:
        self.seeds, self.temperature, self.prompt = seeds, temperature, prompt

    def __call__(
        self, ids: Int[Tensor, "branch position"], logits: Float[Tensor, "branch outcome"]
    ) -> Float[Tensor, "branch outcome"]:
        step = ids.shape[1] - self.prompt
        noise = torch.stack([self._noise(seed, step, logits.shape[1]) for seed in self.seeds])
        return logits.double() / self.temperature + noise.to(logits.device)

    @staticmethod
    def _noise(seed: str, step: int, size: int) -> Float[Tensor, " outcome"]:
        digest = hashlib.sha256(f"{seed} {step}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
        return -torch.empty(size, dtype=torch.float64).exponential_(generator=generator).log()


def _chunk(model: Bridge, n: int) -> int:
    """Prompts that fit side by side: a pass, the keys and values it leaves, and three copies of a block's pattern."""
    kept = n_blocks(model) * queries_and_keys(model, 1, n)
    each = pass_bytes(model, 1, n) + kept + 3 * int(model.cfg.n_heads) * n * n * dtype_of(model).itemsize
    device = device_of(model)
    room = MEMORY if device.type == "cpu" else available(device) / 4
    return max(1, int(room / each))
