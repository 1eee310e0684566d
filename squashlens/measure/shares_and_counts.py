"""Proposition B.9 (6.1) on a real model: without positions and without a mask it knows shares, and no counts."""

from collections.abc import Sequence

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import Bridge, positive
from squashlens.errors import InputError
from squashlens.measure._pairs import with_y
from squashlens.measure._session import Session
from squashlens.model.anatomy import device_of, n_blocks, residual_sites, windows
from squashlens.model.branches import Ids, causal, context
from squashlens.model.forward import forward
from squashlens.model.proof import require_sound
from squashlens.model.registry import measured
from squashlens.prompts import Token, one_token
from squashlens.theory.distances import distance, rms

MASKS, POSITIONS = ("causal", "none"), ("kept", "none")


@measured
def shares_and_counts(model: Bridge, content: Sequence[Token] = ("1", "0"), *, times: int = 2) -> xr.Dataset:
    """How far apart representations of `content` and of each token in it `times` in a row are, as of 10 and 1100, with
    and without the model's mask and its positions.

    Without both they are one at every layer, up to rounding, since softmax leaves only ratios of counts; with either
    they part. Of a causal mask the last tokens alone would not tell: behind one block they have seen all.

    Positions are taken away by giving every token the same position id, the mask by letting every token see every
    other; nothing stands before the content, BOS neither, as that would be a token whose share changes. A model whose
    positions do not follow from position ids (ALiBi) keeps them.

    Returns:
        Dataset over (mask, positions, layer): `distance`, L∞ between the first token of a kind in the shorter and any
        of that kind in either, the largest over kinds, ÷ the rms of the first (dimensionless); with `distance_y`.

    Source: Barbero et al. 2024, Proposition B.9; it means without *both*, as its proof permutes tokens.

    Refuses: `times` below 2, an empty content, more tokens than a sliding window of the model holds.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> ds = sl.shares_and_counts(model)
    >>> bool(ds["distance_y"].sel(mask="none", positions="none") < 1e-4), bool(ds["distance_y"].max() > 0.1)
    (True, True)
    """
    positive(times, "times", "a number of repeats")
    if times < 2 or not content:
        raise InputError(f"{times} times {len(content)} tokens is no other count.", "Repeat some, twice or more.")
    sound = require_sound(model)
    ids = tuple(one_token(sound, token) for token in content)
    longer = tuple(token for token in ids for _ in range(times))
    window = min((w for w in windows(sound) if w is not None), default=len(longer))
    if len(longer) > window:
        raise InputError(
            f"{len(longer)} tokens do not fit in this model's window of {window}, which is a mask too.",
            "Give fewer tokens, or repeat them less often.",
        )
    session = Session.start(
        sound, torch.tensor(longer), "as-given", "shares_and_counts", content=list(map(str, content)), times=times
    )
    gaps = torch.stack(
        [torch.stack([_apart(sound, ids, longer, mask, kept) for kept in POSITIONS]) for mask in MASKS]
    )  # fmt: skip
    text = "distance of tokens of a kind among as many and among more"
    found = with_y("distance", gaps, text, "1", ("mask", "positions", "layer"))
    layers = np.arange(n_blocks(sound) + 1)
    return session.dataset(
        "shares and counts", {"mask": list(MASKS), "positions": list(POSITIONS), "layer": layers}, found
    )


def _apart(model: Bridge, ids: Ids, longer: Ids, mask: str, positions: str) -> Float[Tensor, " layer"]:
    """By layer, then y: the largest distance over kinds of token."""
    few, many = (_streams(model, one, mask, positions) for one in (ids, longer))
    first = few[:, [ids.index(token) for token in (*ids, *longer)]]
    both = torch.cat([few, many], dim=1)
    return torch.stack([(distance(a, b, "linf") / rms(a)).max() for a, b in zip(first, both, strict=True)])


def _streams(model: Bridge, ids: Ids, mask: str, positions: str) -> Float[Tensor, "layer position d"]:
    n = len(ids)
    place = torch.arange(n) if positions == "kept" else torch.zeros(n, dtype=torch.long)
    visible = causal(n) if mask == "causal" else torch.ones(n, n, dtype=torch.bool)
    seen: dict[str, Tensor] = {}
    sites = residual_sites(model)

    def keep(site: str):
        return lambda stream: seen.update({site: stream[0].detach().float().cpu()})

    with torch.inference_mode(False), torch.no_grad():
        given = torch.tensor([ids], device=device_of(model))
        forward(model, given, [(site, keep(site)) for site in sites], context(model, place, place, visible))
    return torch.stack([seen[site] for site in sites])
