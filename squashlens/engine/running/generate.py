"""Generate text, greedily or sampled with a separate random generator for each prompt.

The loop is that of transformers, on the bridge, so hooks act in it and every end-of-text token of the model counts.
Prompts of equal length run in one batch, without padding. With hooks on the model there is no cache, since an edit by
position would act on other tokens if one token is run at a time. If rotary frequencies depend on the length of a pass
(`engine.anatomy`), results with and without a cache differ, as in transformers: cached keys are not rotated again.
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
from squashlens.engine.anatomy import context_length, device_of, dtype_of, n_blocks
from squashlens.engine.budget import pass_bytes, queries_and_keys
from squashlens.engine.hooking.hook import checking_results
from squashlens.engine.hooking.standing import ambient
from squashlens.engine.memory import available
from squashlens.engine.native import is_native, n_outcomes, outputs_are_tokens
from squashlens.engine.running.forward import require_numbers, run
from squashlens.engine.running.last_tokens import batches
from squashlens.engine.running.repeatable import repeatable
from squashlens.errors import InputError
from squashlens.sequences import Ids

MEMORY = 1e9  # bytes for a batch on the CPU; on CUDA, a quarter of the free memory


@dataclass(frozen=True)
class Prompt:
    """Token ids to continue, the largest number of new tokens, and the text that seeds the sampling."""

    ids: Ids
    max_new_tokens: int
    seed: str = ""


@dataclass(frozen=True)
class Continuation:
    """The generated tokens without the end-of-text token, and whether the model ended the text itself."""

    ids: Ids
    ended: bool


def generate(
    model: Bridge, prompts: Sequence[Prompt], *, temperature: float = 0.0, batch_size: int | None = None
) -> Iterator[dict[int, Continuation]]:
    """Continue each prompt; yields one dict for each batch, from the prompt's index to its continuation.

    At temperature 0 each token is the most likely one, whatever the checkpoint's generation settings say. Otherwise it
    is drawn from the softmax of logits / temperature with the prompt's own seed.
    """
    limit = context_length(model)
    for prompt in prompts:
        if limit is not None and len(prompt.ids) + prompt.max_new_tokens > limit:
            raise InputError(
                f"A prompt of {len(prompt.ids)} tokens and {prompt.max_new_tokens} new tokens do not fit into the "
                f"model's context of {limit}.",
                "Use shorter lengths or a smaller max_new_tokens.",
            )
    kinds = ((len(prompt.ids), prompt.max_new_tokens) for prompt in prompts)
    for (_, max_new_tokens), part in batches(kinds, lambda kind: batch_size or _batch_size(model, sum(kind))):
        yield dict(
            zip(part, _batch(model, [prompts[place] for place in part], max_new_tokens, temperature), strict=True)
        )


def _batch(model: Bridge, prompts: Sequence[Prompt], max_new_tokens: int, temperature: float) -> list[Continuation]:
    from transformers import GenerationConfig, LogitsProcessorList

    plain: Any = model.original_model
    if is_native(model):
        return _step_by_step(model, prompts, max_new_tokens, temperature)
    ends = _ends(plain)
    ids = torch.tensor([prompt.ids for prompt in prompts], device=device_of(model))
    config = GenerationConfig(
        do_sample=False, max_new_tokens=max_new_tokens, eos_token_id=sorted(ends) or None,
        pad_token_id=min(ends, default=0), use_cache=not ambient(model),
    )  # fmt: skip
    steps: list[Any] = [_RequireNumbers(model)]
    if temperature:
        steps.append(_Gumbel([prompt.seed for prompt in prompts], temperature, len(prompts[0].ids)))
    with (
        torch.inference_mode(False), torch.no_grad(), repeatable(model, ids, run),
        _without_generation_settings(plain), checking_results(model),
    ):  # fmt: skip
        out = plain.generate(
            ids, attention_mask=torch.ones_like(ids), generation_config=config,
            logits_processor=LogitsProcessorList(steps),
        )  # fmt: skip
    return [_until_end(row, ends) for row in out[:, ids.shape[1] :].tolist()]


def _step_by_step(
    model: Bridge, prompts: Sequence[Prompt], max_new_tokens: int, temperature: float
) -> list[Continuation]:
    """Continue prompts of a model that is not from transformers, with a whole pass for every token."""
    if not outputs_are_tokens(model):
        raise InputError(
            f"This model reads {int(model.cfg.d_vocab)} tokens and puts out {n_outcomes(model)} outcomes, so its "
            "output cannot be its next input.",
            "Use `top_tokens`, which gives one distribution over its outcomes.",
        )
    ends = {model.tokenizer.eos_token_id} - {None} if model.tokenizer is not None else set()
    ids = torch.tensor([prompt.ids for prompt in prompts], device=device_of(model))
    start, noise = ids.shape[1], _Gumbel([prompt.seed for prompt in prompts], temperature, ids.shape[1])
    with torch.inference_mode(False), torch.no_grad():
        for _ in range(max_new_tokens):
            with repeatable(model, ids, run):
                logits = run(model, ids)
            logits = noise(ids, logits) if temperature else logits
            ids = torch.cat([ids, logits.argmax(dim=-1, keepdim=True)], dim=1)
            if all(ends & set(row) for row in ids[:, start:].tolist()):
                break
    return [_until_end(row, ends) for row in ids[:, start:].tolist()]


def _until_end(row: list[int], ends: set[int]) -> Continuation:
    stop = next((place for place, token in enumerate(row) if token in ends), None)
    return Continuation(tuple(row[:stop]), stop is not None)


def _ends(plain: Any) -> set[int]:
    """All tokens that end a text; instruct models have several."""
    given = getattr(plain.generation_config, "eos_token_id", None)
    given = plain.config.eos_token_id if given is None else given
    return set() if given is None else set(given) if isinstance(given, list | tuple) else {int(given)}


@contextmanager
def _without_generation_settings(plain: Any) -> Iterator[None]:
    """Run the body without the generation settings of the checkpoint, which would fill in unset options."""
    from transformers import GenerationConfig

    own = plain.generation_config
    plain.generation_config = GenerationConfig()
    try:
        yield
    finally:
        plain.generation_config = own


class _RequireNumbers:
    """Raises an error for NaN in the logits, which greedy decoding would take for the largest."""

    def __init__(self, model: Bridge) -> None:
        self.model = model

    def __call__(
        self, ids: Int[Tensor, "branch position"], logits: Float[Tensor, "branch outcome"]
    ) -> Float[Tensor, "branch outcome"]:
        require_numbers(self.model, logits)
        return logits


class _Gumbel:
    """Adds Gumbel noise −log(−log u), u uniform, to logits / T, so that the argmax is a draw from their softmax."""

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


def _batch_size(model: Bridge, n: int) -> int:
    """The number of prompts in a batch that fit: a pass, its keys and values, and three copies of a block's pattern."""
    kept = n_blocks(model) * queries_and_keys(model, 1, n)
    each = pass_bytes(model, 1, n) + kept + 3 * int(model.cfg.n_heads) * n * n * dtype_of(model).itemsize
    device = device_of(model)
    memory = MEMORY if device.type == "cpu" else available(device) / 4
    return max(1, int(memory / each))
