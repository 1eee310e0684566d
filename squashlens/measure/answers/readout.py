"""The most likely next tokens of a prompt."""

import numpy as np
import torch
import xarray as xr

from squashlens._typing import Bos, Bridge
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.engine.native import n_outcomes, outputs_are_tokens
from squashlens.engine.running.forward import next_logits
from squashlens.engine.text.tokens import display_tokens
from squashlens.errors import InputError
from squashlens.measure.measurement import measurement
from squashlens.measure.session import Session
from squashlens.records.results import attributes, sealed


@measurement("top_tokens")
def top_tokens(model: Bridge, prompt: PromptOrCapture, *, k: int = 3, bos: Bos = "family") -> xr.DataArray:
    """The `k` most likely next tokens after a prompt, and their probabilities.

    Args:
        model: the model to measure, a `TransformerBridge` from `load` or your own.
        prompt: the prompt as text or token ids of shape (position), or a `capture` of it; a single prompt.
        k: number of tokens, from 1 to the size of the vocabulary; 3 by default.
        bos: as in `path_bound`.

    Returns:
        DataArray (rank), dimensionless: the probabilities in decreasing order, with the coordinates `token` and
        `token_id`.

    Raises:
        InputError: several prompts, or a `k` above the size of the vocabulary.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> str(sl.top_tokens(model, "What is the last digit in this sequence? 0007 =")["token"].values[0])
    '7'
    """
    session = Session.start(model, prompt, bos, "top_tokens", k=k)
    if len(session.ids) != 1:
        raise InputError(
            f"top_tokens takes a single prompt, and {len(session.ids)} were given.", "Call top_tokens for each prompt."
        )
    most = n_outcomes(session.model)
    if not 1 <= k <= most:
        raise InputError(f"k={k!r} is not a number of tokens of this model.", f"Give a number from 1 to {most}.")
    with torch.no_grad():
        logits = next_logits(session.model, session.ids)
    best = logits[0].double().softmax(dim=-1).topk(k)
    ids = best.indices[None]
    known = outputs_are_tokens(session.model)  # those of a compiled program are not, and have no text
    texts = display_tokens(session.model, ids)[0] if known else [f"#{int(i)}" for i in ids[0]]
    found = xr.DataArray(
        best.values.cpu().numpy(),
        dims=("rank",),
        coords={
            "rank": np.arange(k),
            "token": ("rank", np.array(texts, dtype=object)),
            "token_id": ("rank", ids[0].cpu().numpy()),
        },
        name="top_tokens",
        attrs=attributes("probability of the next token", "1"),
    )
    return sealed(found, session.facts)
