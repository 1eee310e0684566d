"""The paths that the bound sums over, one by one and by kind; and what becomes of them with depth."""

import math

import numpy as np
import torch
import xarray as xr

from squashlens._typing import AttentionKind, Bos, Bridge, Target, one_of, positive
from squashlens.errors import InputError
from squashlens.measure._attention import one_hot, patterns_of, written_out
from squashlens.measure._session import Session
from squashlens.model.anatomy import n_blocks
from squashlens.model.capture import Given
from squashlens.model.registry import measured
from squashlens.theory.paths import by_hops, strongest, sweep


@measured
def hops(
    model: Bridge,
    prompt: Given,
    *,
    attention: AttentionKind = "model",
    query: int = -1,
    source: int = 0,
    target: Target = "y",
    bos: Bos = "family",
) -> xr.DataArray:
    """Which share of the attention paths goes through attention how often, and from which token: (hop, position).

    The coefficient of t^k in row n of ``∏ (tA + I)``, divided by its value at t = 1: 0 hops stay in the
    residual stream of the query, L hops attend in every block. Sums to 1 over hops and positions; over hops
    alone it is the path bound with constants 1, normalised. The coordinate `null` has the same shares under uniform
    attention: what causality alone would give.

    One prompt. Dimensionless, float64. Source: the path sum of Theorem 5.1.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> shares = sl.hops(model, "How many ones are in the following sequence? 110 =")
    >>> (64 * shares.sum("position")).round(3).values.tolist()   # binomial: attention rows sum to 1
    [1.0, 6.0, 15.0, 20.0, 15.0, 6.0, 1.0]
    """
    one_of(attention, AttentionKind, "attention")
    session = _one_prompt(model, prompt, bos, "hops", attention=attention, query=query, source=source, target=target)
    (top,) = session.spans(source, target).values()
    patterns = patterns_of(session, attention, range(source, top))
    counts = by_hops(one_hot(session, query), [patterns[b] for b in reversed(range(source, top))])[:, 0]
    dims, coords = session.coords()
    variables = {"hops": (("hop", *dims), counts / counts.sum(), "share of attention paths", "1")}
    uniform = patterns_of(session, "uniform", range(source, top))
    null = by_hops(one_hot(session, query), [uniform[b] for b in reversed(range(source, top))])[:, 0]
    coords |= {"hop": np.arange(len(counts)), "null": (("hop", *dims), (null / null.sum()).numpy())}
    return session.dataset("attention paths by hops", coords, variables)["hops"]


@measured
def strongest_paths(
    model: Bridge,
    prompt: Given,
    *,
    k: int = 10,
    attention: AttentionKind = "model",
    query: int = -1,
    source: int = 0,
    target: Target = "y",
    bos: Bos = "family",
) -> xr.Dataset:
    """The k heaviest single paths into the query: where each stands in every layer, its weight and its share.

    A path is a walk over positions, one a layer; its weight is the product of ᾱ_ji = α_ji + δ_ji (constants 1,
    attention averaged over heads), its `share` that weight over the sum of all. Found exactly (k-best Viterbi).

    Returns:
        Dataset: `position_at` (path, layer), a position of the prompt; `weight`, `share` and `over_null` (path): the
        weight relative to that of the same walk under uniform attention. Layers run from `source` to the target;
        fewer than k paths where there are fewer.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> best = sl.strongest_paths(model, "How many ones are in the following sequence? 110 =", k=3)
    >>> best["position_at"].sel(layer=6).values.tolist()   # all end at the query
    [13, 13, 13]
    """
    one_of(attention, AttentionKind, "attention")
    positive(k, "k", "a number of paths")
    session = _one_prompt(
        model, prompt, bos, "strongest_paths", k=k, attention=attention, query=query, source=source, target=target
    )
    (top,) = session.spans(source, target).values()
    patterns = patterns_of(session, attention, range(source, top))
    down = [written_out(session, patterns[b]) for b in reversed(range(source, top))]
    *_, everything = one_hot(session, query), *sweep(one_hot(session, query), down)
    if down:
        weights, walks = strongest(down, session.query(query), k)
    else:
        weights, walks = torch.ones(1, dtype=torch.float64), torch.tensor([[session.query(query)]])
    null = torch.ones(len(weights), dtype=torch.float64)
    uniform, same = patterns_of(session, "uniform", range(source, top)), walks[:, 1:] == walks[:, :-1]
    for step, block in enumerate(range(source, top)):
        alpha = written_out(session, uniform[block])[walks[:, step + 1], walks[:, step]]
        null *= alpha + same[:, step].double()
    _, coords = session.coords()
    coords |= {"path": np.arange(len(weights)), "layer": np.arange(source, top + 1)}
    return session.dataset(
        "strongest attention paths into the query",
        coords,
        {
            "position_at": (("path", "layer"), walks, "position of the path in each layer", "token"),
            "weight": (("path",), weights, "product of attention and residual weights", "1"),
            "share": (("path",), weights / everything.sum(), "share of all paths' weight", "1"),
            "over_null": (("path",), weights / null, "weight over that of the same walk under uniform attention", "1"),
        },
    )


@measured
def depth_limit(
    model: Bridge,
    prompt: Given,
    *,
    depth: int = 64,
    query: int = -1,
    bos: Bos = "family",
) -> xr.Dataset:
    """What one block's attention, repeated, would do to the paths (Proposition 5.2 / B.8): all end at the first token.

    For each block, row n of ``(½(Λ + I))^k`` for k = 0 … `depth`. Λ is triangular, so its eigenvalues are its
    diagonal; every one below 1 decays, and the slowest sets the rate ``(1 + max_{i>1} α_ii) / 2``. Repeated
    diagonal entries may add a polynomial factor: the limit stands, the rate is reached later.

    Returns:
        Dataset: `first_share` and `rest` (block, depth), the mass at the first token and elsewhere;
        `predicted_rate` and `observed_rate` (block), the factor by which the rest shrinks with a block, the
        latter over the last quarter of the depths that stand above rounding; `absorbing` (block), how many
        later tokens attend to themselves alone, which breaks the premise: mass that reaches them stays.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> ds = sl.depth_limit(model, "How many ones are in the following sequence? 110 =")
    >>> bool((ds["first_share"].diff("depth") >= -1e-12).all())   # mass never leaves the first token
    True
    """
    positive(depth, "depth", "a number of layers")
    if depth < 4:
        raise InputError(f"depth={depth!r} is too shallow for a rate.", "Give a whole number of at least 4.")
    session = _one_prompt(model, prompt, bos, "depth_limit", depth=depth, query=query)
    last, blocks = session.query(query), range(n_blocks(session.model))
    patterns = {b: written_out(session, p) for b, p in patterns_of(session, "model", blocks).items()}
    shares, rest, predicted, observed, absorbing = [], [], [], [], []
    for block in blocks:
        row = one_hot(session, query)
        rows = torch.cat([row, *sweep(row, [patterns[block]] * depth, gain=0.5)])
        shares.append(rows[:, 0])
        rest.append(rows[:, 1:].sum(dim=-1))  # not 1 − the first: rows of float32 sum to 1 only so far
        own = patterns[block].diagonal()[1 : last + 1].double()
        alone = own > 1 - SELF
        absorbing.append(int(alone.sum()))
        below = own[~alone]
        predicted.append((1 + below.max().item()) / 2 if len(below) else math.nan)
        observed.append(_rate(rest[-1]))
    return session.dataset(
        "depth limit of repeated attention",
        {"block": list(blocks), "depth": np.arange(depth + 1)},
        {
            "first_share": (("block", "depth"), torch.stack(shares), "mass of the paths at the first token", "1"),
            "rest": (("block", "depth"), torch.stack(rest), "mass of the paths elsewhere", "1"),
            "predicted_rate": (("block",), np.array(predicted), "(1 + largest self-attention) / 2", "1"),
            "observed_rate": (("block",), np.array(observed), "factor on the rest of the mass, per block", "1"),
            "absorbing": (("block",), np.array(absorbing), "later tokens that attend to themselves alone", "1"),
        },
    )


SELF = 1e-6  # float32 rows sum to 1 within this
ROUNDING = 1e-10  # a remainder below this is arithmetic


def _rate(rest: torch.Tensor) -> float:
    """The factor by which what is left shrinks a step, over the last quarter of what stands above rounding."""
    clear = int((rest > ROUNDING).sum())
    if clear < 4:
        return math.nan
    start = clear - 1 - max(1, clear // 4)
    return float((rest[clear - 1] / rest[start]) ** (1 / (clear - 1 - start)))


def _one_prompt(model: Bridge, prompt: Given, bos: Bos, function: str, **arguments: object) -> Session:
    session = Session.start(model, prompt, bos, function, **arguments)
    if len(session.ids) != 1:
        raise InputError(f"{function} looks at one prompt.", "Call it for each prompt.")
    return session
