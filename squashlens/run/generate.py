"""Generate text, greedily or sampled with a separate random generator for each prompt.

Prompts of equal length, with equally many new tokens, run in batches that fit into memory, without padding. With hooks
on the model there is no cache, since an edit by position would act on other tokens if one token is run at a time. Nor
is there one if rotary frequencies depend on the length of a pass (`model.anatomy`), since cached keys would not be
rotated again.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from squashlens.errors import FAILURES, InputError
from squashlens.model.agreement import agree
from squashlens.model.anatomy import (
    context_length,
    is_native,
    length_dependent_encodings,
    n_outcomes,
    n_tokens,
    outputs_are_tokens,
    text_config,
)
from squashlens.model.applied import probe_ids
from squashlens.model.memory import available
from squashlens.remarks import remark
from squashlens.run.budget import pass_bytes, pattern_bytes, queries_and_keys
from squashlens.run.forward import next_logits, whole_pass
from squashlens.run.passes import batches
from squashlens.run.run import Run
from squashlens.run.users_hooks import users_hooks_tested
from squashlens.sequences import Ids

TAIL = 128  # as many of the last new tokens show whether they are enough
MEMORY = 1e9  # bytes for a batch on the CPU; on CUDA, a quarter of the free memory


@dataclass(frozen=True)
class Prompt:
    """Token ids to continue, the most new tokens, the text that seeds sampling, and whether new tokens are enough."""

    ids: Ids
    max_new_tokens: int
    seed: str = ""
    enough: Callable[[list[int]], bool] = lambda _: False


@dataclass(frozen=True)
class Continuation:
    """The generated tokens without the end-of-text token, and whether that token, or enough of them, ended the text."""

    ids: Ids
    ended: bool


def generate(
    run: Run, prompts: Sequence[Prompt], *, temperature: float = 0.0
) -> Iterator[dict[int, Continuation]]:
    """Continue each prompt; yields one dict for each batch, from the prompt's index to its continuation.

    At temperature 0 each token is the most likely one, whatever the checkpoint's generation settings say. Otherwise it
    is drawn from the softmax of logits / temperature with the prompt's own seed.
    """
    limit = context_length(run.model)
    for prompt in prompts:
        if limit is not None and len(prompt.ids) + prompt.max_new_tokens > limit:
            raise InputError(
                f"Prompt length {len(prompt.ids)} and max_new_tokens={prompt.max_new_tokens} exceed context {limit}.",
                "Use shorter lengths or a smaller max_new_tokens.",
            )

    def batch_size(kind: tuple[int, int]) -> int:
        return _batch_size(run, sum(kind))

    # Prompts of one length with as many new tokens run together.
    kinds = [(len(prompt.ids), prompt.max_new_tokens) for prompt in prompts]
    for (_, max_new_tokens), numbers in batches(kinds, batch_size):
        batch = [prompts[number] for number in numbers]
        continuations = _batch(run, batch, max_new_tokens, temperature)
        yield dict(zip(numbers, continuations, strict=True))


def _batch(
    run: Run, prompts: Sequence[Prompt], max_new_tokens: int, temperature: float
) -> list[Continuation]:
    """Continue prompts of one length together, token by token."""
    if not outputs_are_tokens(run.model):
        raise InputError(
            f"This model reads {n_tokens(run.model)} tokens and puts out {n_outcomes(run.model)} outcomes, so "
            "its output cannot be its next input.",
            "Use `top_tokens`, which gives one distribution over its outcomes.",
        )
    ids = torch.tensor([prompt.ids for prompt in prompts], device=run.device)
    start = ids.shape[1]
    ends = _ends(run)
    cache = empty_cache(run)
    context = None
    if cache is not None:
        context = {"use_cache": True, "past_key_values": cache}
    ended: dict[int, Continuation] = {}
    with users_hooks_tested(run, ids, next_logits):
        for step in range(max_new_tokens):
            # On a cache only the newest token is run.
            is_whole = cache is None or step == 0
            logits = whole_pass(run, ids if is_whole else ids[:, -1:], context)
            if temperature:
                size = logits.shape[1]
                noise = [_gumbel(prompt.seed, step, size) for prompt in prompts]
                logits = logits.double() / temperature
                logits += torch.stack(noise).to(logits.device)
            drawn = logits.argmax(dim=-1, keepdim=True)
            ids = torch.cat([ids, drawn.to(ids.device)], dim=1)
            # A prompt that has ended runs on with the others, and what it adds is left out.
            for row, new in enumerate(ids[:, start:].tolist()):
                if row in ended:
                    continue
                if new[-1] in ends:
                    ended[row] = Continuation(tuple(new[:-1]), ended=True)
                elif prompts[row].enough(new[-TAIL:]):
                    ended[row] = Continuation(tuple(new), ended=True)
            if len(ended) == len(prompts):
                break
    # The others have all the new tokens that they may have.
    rows = enumerate(ids[:, start:].tolist())
    return [ended.get(row, Continuation(tuple(new), ended=False)) for row, new in rows]


def empty_cache(run: Run) -> Any:
    """An empty cache of keys and values; None where a token by itself would be another than in a whole pass."""
    if is_native(run.model) or run.hooks() or length_dependent_encodings(run.model):
        return None
    is_right = run.proof.once("tokens on a cache", lambda: _continues(run))
    return _cache(run) if is_right else None


def _cache(run: Run) -> Any:
    from transformers import DynamicCache

    return DynamicCache(config=text_config(run.model))


def _continues(run: Run) -> bool:
    """Whether a token on a cache has the logits that it has in the whole prompt: the libraries must pass caches on."""
    ids = probe_ids(run.model)
    try:
        context = {"use_cache": True, "past_key_values": _cache(run)}
        whole_pass(run, ids[:, :-1], context)
        last = whole_pass(run, ids[:, -1:], context)
    except torch.OutOfMemoryError:
        raise
    except FAILURES:  # as of a model without attention
        return False
    if agree(last, whole_pass(run, ids), run.dtype):
        return True
    remark(
        "On cached keys and values a token has other logits here than in the whole prompt. So the whole prompt is run "
        f"for each new token, which is slower. transformers {version('transformers')} may be too new for "
        f"TransformerLens {version('transformer-lens')}, which has to pass the cache on."
    )
    return False


def _ends(run: Run) -> set[int]:
    """The ids of all tokens that end a text; instruct models have several."""
    plain: Any = run.model.original_model
    holders = [run.model.tokenizer]
    if not is_native(run.model):
        holders = [plain.generation_config, plain.config]
    for holder in holders:
        ends = getattr(holder, "eos_token_id", None)
        if ends is not None:
            return set(ends) if isinstance(ends, list | tuple) else {int(ends)}
    return set()


def _gumbel(seed: str, step: int, size: int) -> Float[Tensor, " outcome"]:
    """Gumbel noise −log(−log u), u uniform; the argmax of logits / T and it is a draw from their softmax."""
    # Of the prompt's own seed and the step alone, so that batches change no sample.
    digest = hashlib.sha256(f"{seed} {step}".encode()).digest()
    number = int.from_bytes(digest[:8], "big", signed=True)
    generator = torch.Generator().manual_seed(number)
    # −log u is exponentially distributed.
    drawn = torch.empty(size, dtype=torch.float64).exponential_(generator=generator)
    return -drawn.log()


def _batch_size(run: Run, n: int) -> int:
    """The number of prompts in a batch that fit: a pass, its keys and values, and a block's attention patterns."""
    # Estimated by queries and keys, which usually are no fewer numbers.
    cache = run.n_blocks * queries_and_keys(run, 1, n)
    of_prompt = pass_bytes(run, 1, n) + cache + pattern_bytes(run, 1, n)
    device = run.device
    memory = MEMORY if device.type == "cpu" else available(device) / 4
    return max(1, int(memory / of_prompt))
