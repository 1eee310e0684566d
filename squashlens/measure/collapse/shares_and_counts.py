"""Proposition 6.1 (B.9) on a real model: without positions and without a mask it represents shares, not counts."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge, short_repr
from squashlens.errors import InputError, SquashlensError, UnsoundModelError
from squashlens.measure.collapse.metric import layer_by_layer
from squashlens.measure.variables import with_y
from squashlens.model.anatomy import windows
from squashlens.model.proof import public
from squashlens.prompts import Token, one_token
from squashlens.run.activations import streams_at
from squashlens.run.forward import causal, context
from squashlens.run.run import Run
from squashlens.sequences import Ids
from squashlens.theory.distances import distance, rms

MASKS = ("causal", "none")
POSITIONS = ("kept", "none")


@public
def shares_and_counts(
    model: Bridge, content: Sequence[Token] = ("1", "0"), *, times: int = 2
) -> xr.Dataset:
    """Distance of the representations of two prompts with equal token shares and different counts, such as 10 and 1100.

    The longer prompt repeats each token of `content` `times` in a row. The distance is measured with and without the
    causal mask, and with and without positions. Without both, the two prompts have the same representations at every
    layer, up to rounding, because the softmax depends only on ratios of counts. With either one they differ. All
    tokens are compared, not only the last ones: under a causal mask the last token sees all tokens, so that the last
    tokens alone could not show the effect of the mask in the first block.

    Positions are removed by giving all tokens the same position id, and the mask by letting every token attend to
    every other token. Nothing precedes the content, not even a BOS token, because the share of that token would change.
    A model that does not use position ids (MPT, which has ALiBi) keeps its positions; a model that does not take a mask
    raises an error.

    Args:
        model: the model to measure, a `TransformerBridge` from `load` or your own.
        content: the tokens of the shorter prompt, as texts that are one token each or as ids; 1 and 0 by default.
        times: how often each token occurs in a row in the longer prompt, at least 2; 2 by default.

    Returns:
        Dataset over (mask, positions, layer): `distance`, and over (mask, positions) `distance_y`. For each kind of
        token, the L∞ distance between its first occurrence in the shorter prompt and any occurrence in either prompt,
        divided by the rms of the first; the result is the largest over kinds (dimensionless).

    Raises:
        InputError: `times` below 2, empty content, or more tokens than fit into a sliding window of the model.
        UnsoundModelError: the model does not take a mask and position ids (BLOOM, Falcon with ALiBi).

    Source: Barbero et al. 2024, Proposition 6.1 (B.9). Its proof permutes tokens, so that it needs both a model
    without positions and a model without a causal mask.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> ds = sl.theorems.shares_and_counts(model)
    >>> bool(ds["distance_y"].sel(mask="none", positions="none") < 1e-4), bool(ds["distance_y"].max() > 0.1)
    (True, True)
    """
    if times < 2 or not content:
        raise InputError(
            f"times={times} of content={short_repr(content)} makes no prompt with other counts.",
            "Give at least one token in content=, and times= of at least 2.",
        )
    run = Run.open(model, "shares_and_counts")
    ids = tuple(one_token(run.model, token) for token in content)
    longer = tuple(np.repeat(ids, times).tolist())
    narrowest = len(longer)
    for window in windows(run.model):
        if window is not None:
            narrowest = min(narrowest, window)
    if len(longer) > narrowest:
        raise InputError(
            f"{len(longer)} tokens do not fit into this model's sliding window of {narrowest}, which is a mask too.",
            "Give fewer tokens in content=, or a smaller times=.",
        )
    run = run.with_prompts(
        torch.tensor(longer),
        content=list(map(str, content)),
        times=times,
        token_ids=list(longer),
    )
    gaps: list[Tensor] = []
    for mask, positions in product(MASKS, POSITIONS):
        gaps.append(_largest_distance(run, ids, longer, mask, positions))
    by_case = torch.stack(gaps).unflatten(0, (len(MASKS), len(POSITIONS)))
    text = "distance of tokens of one kind in prompts with equal shares and different counts"
    dims = ("mask", "positions", "layer")
    variables = with_y({"distance": (dims, by_case, text, "1")})
    coords = {
        "mask": list(MASKS),
        "positions": list(POSITIONS),
        "layer": np.arange(run.n_blocks + 1),
    }
    return run.dataset("shares and counts", coords, variables)


def _largest_distance(
    run: Run, ids: Ids, longer: Ids, mask: str, positions: str
) -> Float[Tensor, " layer"]:
    """The largest ‖u − v‖∞ ÷ rms(u) over all tokens v of both prompts, at each layer and then for y.

    u is the first token of the shorter prompt, `ids`, with the same id as v.
    """
    of_shorter = _streams_with(run, ids, mask, positions)
    of_longer = _streams_with(run, longer, mask, positions)
    tokens = torch.cat([of_shorter, of_longer], dim=1)  # v, (layer, token, d)
    # u for each v
    first_places = [ids.index(token) for token in ids + longer]
    firsts = of_shorter[:, first_places]

    def largest(first: Tensor, token: Tensor) -> Tensor:
        return (distance(first, token, "linf") / rms(first)).max()

    return layer_by_layer(largest, firsts, tokens)


def _streams_with(
    run: Run, ids: Ids, mask: str, positions: str
) -> Float[Tensor, "layer position d"]:
    """The residual streams of a prompt at each layer, then y, in a pass with this mask and these positions.

    `mask` is one of `MASKS`, and `positions` one of `POSITIONS`.
    """
    n = len(ids)
    place = torch.arange(n)
    if positions == "none":
        place = torch.zeros_like(place)  # the same position id for all
    visible = causal(n)
    if mask == "none":
        visible = torch.ones_like(visible)
    sites = run.sites()
    prompt = torch.tensor([ids], device=run.device)
    try:
        streams = streams_at(run, prompt, sites, context(run, place, place, visible))
    except SquashlensError:
        raise
    except ValueError as error:
        # Models with ALiBi compute biases from a mask of another shape.
        raise UnsoundModelError(
            f"{run.architecture} does not accept a mask over queries and keys "
            f"({error}), so its causal mask and positions cannot be removed.",
            "Use a model that takes position ids and a mask, such as Gemma, Llama, Qwen or GPT-2.",
        ) from error
    return torch.stack([streams[site][0].float().cpu() for site in sites])
