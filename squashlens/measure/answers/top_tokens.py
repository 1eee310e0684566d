"""The most likely tokens after a prompt."""

from typing import Any

import numpy as np
import xarray as xr

from squashlens._typing import Bridge, positive
from squashlens.measure.registration import measurement, this_call
from squashlens.model.anatomy import n_outcomes, outputs_are_tokens
from squashlens.run.captured import PromptOrCapture
from squashlens.run.forward import next_logits
from squashlens.run.run import Run


@measurement("top_tokens", prompts="equal")
def top_tokens(model: Bridge, prompt: PromptOrCapture, *, k: int = 3) -> xr.DataArray:
    """The `k` most likely next tokens after a prompt, and their probabilities.

    Args:
        model: the model to measure, a `TransformerBridge` from `load` or your own.
        prompt: one or several prompts as text or token ids, or a `capture` of prompts of equal length.
        k: number of tokens, from 1 to the size of the vocabulary; 3 by default.

    Returns:
        DataArray (rank), or (prompt, rank) for several prompts, dimensionless: the probabilities in decreasing order,
        with the coordinates `token` and `token_id`.

    Raises:
        InputError: a `k` above the size of the vocabulary.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> str(sl.top_tokens(model, "What is the last digit in this sequence? 0007 =")["token"].values[0])
    '7'
    """
    run = Run.of(model, prompt, **this_call())
    positive(k, "k", "a number of tokens", most=n_outcomes(run.model))
    logits = next_logits(run, run.ids)
    best = logits.double().softmax(dim=-1).topk(k)
    rows = best.indices.tolist()
    if outputs_are_tokens(run.model):
        texts = run.tokens_of(best.indices)
    else:  # those of a compiled program have no text
        texts = [[f"#{token}" for token in row] for row in rows]
    texts = np.array(texts, dtype=object)  # (prompt, rank)
    token_ids = np.array(rows)
    probabilities = best.values
    dims: tuple[str, ...] = ("prompt", "rank")
    coords: dict[str, Any] = {"rank": np.arange(k)}
    if len(rows) == 1:  # the result of a single prompt has no axis of prompts
        dims = ("rank",)
        texts = texts[0]
        token_ids = token_ids[0]
        probabilities = probabilities[0]
    else:
        coords["prompt"] = np.arange(len(rows))
    coords |= {"token": (dims, texts), "token_id": (dims, token_ids)}
    values = dims, probabilities, "probability of the next token", "1"
    return run.array("top_tokens", coords, values)
