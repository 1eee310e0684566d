"""Attention sinks of a prompt, found by a stated rule."""

from collections.abc import Mapping

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge
from squashlens.engine.anatomy import n_blocks, windows
from squashlens.engine.capturing.capture import PromptOrCapture
from squashlens.measure.session import Session, measurement
from squashlens.measure.squashing.walks import patterns_of
from squashlens.theory.bounds.paths import Pattern
from squashlens.theory.sinks import are_sinks, beyond_uniform, received


@measurement("attention_sinks")
def attention_sinks(model: Bridge, prompt: PromptOrCapture) -> xr.DataArray:
    """The attention that each token gets from later tokens, beyond what uniform attention would give it.

    ``e = (a − u)/(1 − u)``: a is the mean attention of all later tokens that see the token, over heads, and u the same
    under uniform attention. A token is a sink if e is above 0.3 in more than half of the blocks
    (`squashlens.theory.sinks` has the reasons).

    Args:
        model: the model to measure, a `TransformerBridge` from `load` or your own.
        prompt: the prompt as text or token ids of shape (position), or a `capture` of it; a single prompt.

    Returns:
        DataArray (block, position), dimensionless: 0 for uniform attention, 1 if a token gets all attention. It is NaN
        for tokens that fewer than four later tokens see. The coordinate `sink` says which tokens are sinks.

    Raises:
        InputError: several prompts, or a capture without the patterns of some block.
        UnsoundModelError: if something besides attention passes between tokens, or attention is in chunks.

    Source: the threshold is that of Gu et al. 2025, arXiv 2410.10781, which has no correction for uniform attention.

    >>> import squashlens as sl
    >>> found = sl.attention_sinks(sl.load("tiny-gemma"), "How many ones are in the following sequence? 110 =")
    >>> found["token"].values[found["sink"].values].tolist()
    []
    """
    session = Session.start(model, prompt, "attention_sinks")
    session.require_one()
    share = shares_beyond_uniform(session, patterns_of(session, "model", range(n_blocks(session.model))))
    dims, coords = session.coords()
    coords |= {"block": np.arange(len(share)), "sink": (dims, are_sinks(share).numpy())}
    text = "attention from later tokens, beyond uniform attention"
    return session.array("attention_sinks", coords, (("block", *dims), share, text, "1"))


def shares_beyond_uniform(session: Session, patterns: Mapping[int, Pattern]) -> Float[Tensor, "block position"]:
    """The share of every token in every block, from the patterns of a session with one prompt."""
    reach = windows(session.model, session.positions)
    return torch.stack([beyond_uniform(received(patterns[block]), reach[block]) for block in patterns])  # pyright: ignore
