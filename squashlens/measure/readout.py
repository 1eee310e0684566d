"""What the model would say next: the most likely tokens at the query."""

import numpy as np
import torch
import xarray as xr

from squashlens._typing import Bos, Bridge
from squashlens.errors import InputError
from squashlens.measure._session import Session
from squashlens.model.capture import Given
from squashlens.model.forward import forward
from squashlens.model.native import outcomes, says_tokens
from squashlens.model.registry import measured
from squashlens.model.tokens import display_tokens
from squashlens.results import attributes


@measured
def next_token(model: Bridge, prompt: Given, *, top: int = 3, bos: Bos = "family") -> xr.DataArray:
    """Probabilities of the `top` most likely next tokens after one prompt, (rank), dimensionless.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> str(sl.next_token(model, "What is the last digit in this sequence? 0007 =")["token"].values[0])
    '7'
    """
    session = Session.start(model, prompt, bos, "next_token", top=top)
    if len(session.ids) != 1:
        raise InputError("next_token reads one prompt.", "Call it for each prompt.")
    most = outcomes(session.model)
    if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= most:
        raise InputError(f"top={top!r} is not a number of tokens.", f"Use 1 to {most}.")
    with torch.no_grad():
        logits = forward(session.model, session.ids, [])
    best = logits[0].double().softmax(dim=-1).topk(top)
    ids = best.indices[None]
    # The outcomes of a compiled program are no tokens, and have no text.
    texts = display_tokens(session.model, ids)[0] if says_tokens(session.model) else [f"#{int(i)}" for i in ids[0]]
    return xr.DataArray(
        best.values.cpu().numpy(),
        dims=("rank",),
        coords={
            "rank": np.arange(top),
            "token": ("rank", np.array(texts, dtype=object)),
            "token_id": ("rank", ids[0].cpu().numpy()),
        },
        name="next_token",
        attrs=attributes("probability of the next token", "1", session.facts),
    )
