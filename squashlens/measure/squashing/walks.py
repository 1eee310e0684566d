"""Attention patterns: what path bounds multiply; paths by hops, the strongest, their depth limit; attention sinks."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from squashlens._typing import (
    ATTENTION,
    AttentionKind,
    Bridge,
    Target,
    positive,
)
from squashlens.errors import InputError
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.variables import variables_of
from squashlens.model.anatomy import learned_sink, windows
from squashlens.model.memory import require_room, to_cpu
from squashlens.model.premises import require_attention_alone, require_paths
from squashlens.run.captured import PromptOrCapture
from squashlens.run.forward import attention_of, head_mean
from squashlens.run.run import Run
from squashlens.theory.attention import Attention
from squashlens.theory.path_sums import (
    Pattern,
    Uniform,
    Visible,
    by_hops,
    heaviest_paths,
    sweep,
)
from squashlens.theory.spread import are_sinks, beyond_uniform, received

SELF = 1e-6  # rows of float32 attention sum to 1 within this
ROUNDING = 1e-10  # a rest below this may be rounding error
OVER_NULL = "weight over that of the same walk under uniform attention"
TABLE = {
    "position_at": ("path layer", "position of the path in each layer", "position"),
    "weight": ("path", "product of attention and residual weights", "1"),
    "share": ("path", "share of all paths' weight", "1"),
    "over_null": ("path", OVER_NULL, "1"),
    "first_share": ("block depth", "share of paths from the first token", "1"),
    "rest": ("block depth", "share of paths from later tokens", "1"),
    "predicted_rate": ("block", "(1 + largest self-attention) / 2", "1"),
    "observed_rate": ("block", "factor on the rest with each repetition", "1"),
    "absorbing": ("block", "later tokens that attend only to themselves", "1"),
}


def one_hot(run: Run, query: int) -> Float[Tensor, "prompt position"]:
    """A row for each prompt that is 1 at the query and 0 elsewhere."""
    row = torch.zeros(len(run.ids), run.positions, dtype=torch.float64)
    row[:, run.query(query)] = 1.0
    return row


def patterns_of(
    run: Run, attention: AttentionKind, blocks: range
) -> dict[int, Pattern]:
    """The attention of each block, averaged over heads, by block number: that of the model, or of a null.

    If the run has a capture with patterns, those are used; it must then have all of these blocks.
    """
    require_attention_alone(run.model)
    if attention == "topological":
        reach = windows(run.model, run.positions)
        return {block: Visible(reach[block]) for block in blocks}
    if attention == "uniform":
        reach = windows(run.model, run.positions)
        return {block: Uniform(reach[block], has_sink(run, block)) for block in blocks}
    captured = {} if run.capture is None else run.capture.patterns
    if not captured:
        computed = attention_of(run, run.ids, blocks)
        return {block: computed[block] for block in blocks}
    missing = sorted(set(blocks) - set(captured))
    if missing:
        raise InputError(
            f"The capture has no attention patterns of blocks {missing}.",
            "Capture the prompt with layers=None, or with keep='residuals' so that they are computed here.",
        )
    means = to_cpu([head_mean(captured[block]) for block in blocks])
    return dict(zip(blocks, means, strict=True))


def has_sink(run: Run, block: int) -> bool:
    """Whether a block has a learned sink, a key without a value."""
    return learned_sink(run.model, block) is not None


def top_down(
    run: Run, attention: AttentionKind, from_layer: int, top: int
) -> list[Pattern]:
    """The attention patterns between two layers, from the top block down, in the order in which rows are multiplied."""
    require_paths(run.model)
    bottom_up = patterns_of(run, attention, range(from_layer, top))
    return list(reversed(bottom_up.values()))


def written_out(run: Run, pattern: Pattern) -> Float[Tensor, "query key"]:
    """The attention pattern of a run's single prompt as a full n × n matrix on the CPU."""
    n = run.positions
    require_room(
        n * n * 8,
        torch.device("cpu"),
        "A full attention pattern",
        "Use a shorter prompt.",
    )
    if isinstance(pattern, Uniform | Visible):
        return pattern.pushed(torch.eye(n, dtype=torch.float64))  # I A = A
    if isinstance(pattern, Attention):
        pattern = pattern.averaged().cpu()
    # The pattern may have a leading dimension for the one prompt.
    return pattern.reshape(n, n)  # pyright: ignore[reportAttributeAccessIssue]


def of_attention(attention: AttentionKind) -> str:
    """What a long name says of attention weights that are not the model's."""
    return f", {ATTENTION[attention]}" if ATTENTION[attention] else ""


@measurement("hops")
def hops(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    attention: AttentionKind = "model",
    query: int = -1,
    from_layer: int = 0,
    to_layer: Target = "y",
) -> xr.DataArray:
    """The share of attention paths into the query by number of attention steps (hops) and by starting token.

    For k hops it is the coefficient of t^k in row n of ``∏ (tA + I)``, divided by the sum over all k and positions. A
    path with 0 hops stays in the residual stream of the query; a path with L hops attends in every block.

    Args:
        model, attention, query: as in `path_bound`.
        prompt: the prompt as text or token ids of shape (position), or a `capture` of it; a single prompt.
        from_layer: layer whose residual streams the paths start from; 0, the embeddings, by default.
        to_layer: layer where they end, ``"y"`` by default; one, and no list.

    Returns:
        DataArray (hop, position): float64, dimensionless, sums to 1. The coordinate `null` has the same shares under
        uniform attention.

    Raises:
        InputError: several prompts, or a query or layer that does not exist.

    Source: the path sum of Barbero et al. 2024, Theorem 5.1.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> shares = sl.attention_paths.hops(model, "How many ones are in the following sequence? 110 =")
    >>> (64 * shares.sum("position")).round(3).values.tolist()   # binomial: attention rows sum to 1
    [1.0, 6.0, 15.0, 20.0, 15.0, 6.0, 1.0]
    """
    run = Run.of(model, prompt, **this_call())
    run.require_one()
    (top,) = run.spans(from_layer, to_layer).values()
    shares = _shares_by_hop(run, query, attention, from_layer, top)
    null = _shares_by_hop(run, query, "uniform", from_layer, top)
    _, coords = run.coords()
    over = ("hop", "position")
    coords |= {"hop": np.arange(len(shares)), "null": (over, null.numpy())}
    text = f"share of attention paths{of_attention(attention)}"
    return run.array("hops", coords, (over, shares, text, "1"))


def _shares_by_hop(
    run: Run, query: int, attention: AttentionKind, from_layer: int, top: int
) -> Float[Tensor, "hop position"]:
    """The coefficients of t^k in row n = `query` of ``∏ (tA + I)``, divided by their sum over all k and positions."""
    patterns = top_down(run, attention, from_layer, top)
    # (hop, prompt, position) of a single prompt
    weights = by_hops(one_hot(run, query), patterns)[:, 0].cpu()
    return weights / weights.sum()


@measurement("strongest_paths")
def strongest_paths(
    model: Bridge,
    prompt: PromptOrCapture,
    *,
    k: int = 10,
    avoid: Sequence[int] = (),
    attention: AttentionKind = "model",
    query: int = -1,
    from_layer: int = 0,
    to_layer: Target = "y",
) -> xr.Dataset:
    """The k paths of largest weight into the query: their positions in every layer, weights and shares.

    A path visits one position in each layer. Its weight is the product of ᾱ_ji = α_ji + δ_ji along it, with constants
    1 and attention averaged over heads. The search is exact (k-best Viterbi).

    Args:
        model, attention, query: as in `path_bound`.
        prompt, from_layer, to_layer: as in `hops`.
        k: number of paths, 10 by default; fewer are returned if fewer exist.
        avoid: positions that paths may not visit, such as ``[0]``: where BOS is an attention sink, all strongest paths
            start there and say nothing of the other tokens. Shares remain those of all paths.

    Returns:
        Dataset. Over (path, layer), from `from_layer` to the target: `position_at`, the position that the path visits.
        Over (path), float64 and dimensionless: `weight`; `share`, the weight divided by the sum over all paths;
        `over_null`, the weight divided by that of the same path under uniform attention.

    Raises:
        InputError: several prompts, or a query or layer that does not exist.
        CapacityError: the full attention patterns do not fit into memory.

    Source: the path sum of Barbero et al. 2024, Theorem 5.1.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> best = sl.attention_paths.strongest_paths(model, "How many ones are in the following sequence? 110 =", k=3)
    >>> best["position_at"].sel(layer=6).values.tolist()   # all end at the query
    [13, 13, 13]
    """
    positive(k, "k", "a number of paths")
    run = Run.of(model, prompt, **this_call())
    run.require_one()
    n = run.query(query)
    avoided = [run.query(position, "avoid") for position in avoid]
    (top,) = run.spans(from_layer, to_layer).values()
    patterns = written_out_down(run, attention, from_layer, top)
    null = written_out_down(run, "uniform", from_layer, top)
    # The last row: for each position the weight of all paths from it to the query, also those that are avoided.
    *_, all_paths = sweep(one_hot(run, query), patterns)
    paths = strongest(without(patterns, avoided), null, n, k)
    conditions = of_attention(attention)
    if avoided:
        positions = ", ".join(str(position) for position in avoid)
        conditions += f", without positions {positions}"
    _, coords = run.coords()
    coords["path"] = np.arange(len(paths.weights))
    coords["layer"] = np.arange(from_layer, top + 1)
    found = {
        "position_at": paths.positions,
        "weight": paths.weights,
        "share": paths.weights / all_paths.sum(),
        "over_null": paths.weights / paths.null,
    }
    variables = variables_of(TABLE, found, added=conditions)
    return run.dataset("strongest attention paths into the query", coords, variables)


def written_out_down(
    run: Run, attention: AttentionKind, from_layer: int, top: int
) -> list[Float[Tensor, "query key"]]:
    """The full patterns between two layers, from the top block down."""
    patterns = top_down(run, attention, from_layer, top)
    return [written_out(run, pattern) for pattern in patterns]


def without(
    patterns: Sequence[Float[Tensor, "query key"]], positions: Sequence[int]
) -> list[Tensor]:
    """The patterns with weight 0 on these keys, so that no other position attends to them and no path starts there.

    If the query is one of them, a path can still stay there in the residual stream.
    """
    avoided = torch.tensor(positions, dtype=torch.int64)
    remaining: list[Tensor] = []
    for pattern in patterns:
        remaining.append(pattern.index_fill(1, avoided.to(pattern.device), 0))
    return remaining


class Paths(NamedTuple):
    """The strongest paths into a query: their weights, positions, and weights under the null."""

    weights: Float[Tensor, " path"]
    positions: Int[Tensor, "path layer"]
    null: Float[Tensor, " path"]


def strongest(
    down: Sequence[Float[Tensor, "query key"]],
    uniform: Sequence[Float[Tensor, "query key"]],
    query: int,
    k: int,
) -> Paths:
    """The at most k strongest paths into the query, and the weight that each has under uniform attention.

    `down` and `uniform` are the model's patterns and the null's, each from the top block down.
    """
    if not down:  # without a block, the only path stays at the query
        one = torch.ones(1, dtype=torch.float64)
        return Paths(one, torch.tensor([[query]]), one)
    weights, positions = heaviest_paths(down, query, k)
    null = torch.ones(len(weights), dtype=torch.float64)
    # From the bottom up, as the layers of `positions`; a path's weight is the product of α_ji + δ_ji.
    for layer, pattern in enumerate(reversed(uniform)):
        below = positions[:, layer]
        above = positions[:, layer + 1]
        null *= pattern[above, below] + (above == below).double()
    return Paths(weights, positions, null)


@measurement("depth_limit")
def depth_limit(
    model: Bridge, prompt: PromptOrCapture, *, depth: int = 64, query: int = -1
) -> xr.Dataset:
    """The limit of attention paths when one block's attention is repeated: all paths start at the first token.

    For each block with head-averaged attention Λ, it follows row n of ``(½(Λ + I))^k`` for k = 0 … `depth`. Λ is
    triangular, so that its eigenvalues are its diagonal entries. All parts with an eigenvalue below 1 decay, the
    slowest at the rate ``(1 + max_{i>1} α_ii) / 2``, which is reached later if diagonal entries are repeated.

    Args:
        model, query: as in `path_bound`.
        prompt: as in `hops`.
        depth: number of times that each block's attention is repeated; 64 by default.

    Returns:
        Dataset, dimensionless. Over (block, depth): `first_share` and `rest`, the share of paths that start at the
        first token and at later tokens; what they lack to 1 went to the block's learned sink, if it has one. Over
        (block): `predicted_rate`, the rate above, over tokens that are not `absorbing`; `observed_rate`, the factor by
        which the rest shrinks with each repetition, over the last quarter of the depths at which it is above rounding
        error, NaN for fewer than four; `absorbing`, the number of later tokens that attend only to themselves, of which
        the proposition assumes that there are none.

    Raises:
        InputError: several prompts, or a query outside the prompt.
        CapacityError: the full attention patterns do not fit into memory.

    Source: Barbero et al. 2024, Proposition 5.2 (B.8).

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> ds = sl.attention_paths.depth_limit(model, "How many ones are in the following sequence? 110 =")
    >>> bool((ds["first_share"].diff("depth") >= -1e-12).all())   # mass never leaves the first token
    True
    """
    positive(depth, "depth", "a number of layers")
    run = Run.of(model, prompt, **this_call())
    run.require_one()
    blocks = range(run.n_blocks)
    patterns = patterns_of(run, "model", blocks).values()
    row = one_hot(run, query)
    by_block: defaultdict[str, list[Any]] = defaultdict(list)
    for pattern in patterns:
        full = written_out(run, pattern)
        for name, value in _limit_of(full, row, run.query(query), depth).items():
            by_block[name].append(value)
    coords = {"block": list(blocks), "depth": np.arange(depth + 1)}
    variables = variables_of(TABLE, by_block)
    return run.dataset("depth limit of repeated attention", coords, variables)


def _limit_of(
    pattern: Float[Tensor, "query key"],
    row: Float[Tensor, "1 position"],
    query: int,
    depth: int,
) -> dict[str, np.ndarray | float]:
    """The variables of `depth_limit` of one block, whose attention Λ is `pattern`; `row` is 1 at the query.

    The shares are those of row n of ``(½(Λ + I))^k`` for k = 0 … `depth`.
    """
    rows = torch.cat(list(sweep(row, [pattern] * depth, gain=0.5)))
    # Not 1 minus the first share: rows in float32 sum to 1 only roughly.
    rest = rows[:, 1:].sum(dim=-1)
    # Eigenvalues of Λ. What is at a later token with eigenvalue 1, which attends only to itself, never decays.
    self_weight = pattern.diagonal()[1 : query + 1].double()
    is_absorbing = self_weight > 1 - SELF
    slowest = math.nan
    if not is_absorbing.all():
        slowest = self_weight[~is_absorbing].amax()
    return {
        "first_share": rows[:, 0].cpu().numpy(),
        "rest": rest.cpu().numpy(),
        "predicted_rate": float((1 + slowest) / 2),
        "observed_rate": _rate(rest),
        "absorbing": int(is_absorbing.sum()),
    }


def _rate(rest: Float[Tensor, " depth"]) -> float:
    """The factor by which the rest shrinks with each repetition, where it is above rounding error.

    It is the geometric mean over the last quarter of these depths; NaN if there are fewer than four.
    """
    n_clear = int((rest > ROUNDING).sum())  # the first ones, since the rest never grows
    if n_clear < 4:
        return math.nan
    end = n_clear - 1
    start = end - max(1, n_clear // 4)
    return float((rest[end] / rest[start]) ** (1 / (end - start)))


@measurement("attention_sinks")
def attention_sinks(model: Bridge, prompt: PromptOrCapture) -> xr.DataArray:
    """The attention that each token gets from later tokens, beyond what uniform attention would give it.

    ``e = (a − u)/(1 − u)``: a is the mean attention of all later tokens that see the token, over heads, and u the same
    under uniform attention. A token is a sink if e is above 0.3 in more than half of the blocks
    (`squashlens.theory.spread` has the reasons).

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
    run = Run.of(model, prompt, **this_call())
    run.require_one()
    share = shares_beyond_uniform(run, patterns_of(run, "model", range(run.n_blocks)))
    dims, coords = run.coords()
    coords |= {"block": np.arange(len(share)), "sink": (dims, are_sinks(share).numpy())}
    text = "attention from later tokens, beyond uniform attention"
    return run.array("attention_sinks", coords, (("block", *dims), share, text, "1"))


def shares_beyond_uniform(
    run: Run, patterns: Mapping[int, Pattern]
) -> Float[Tensor, "block position"]:
    """The attention to each token beyond uniform attention, as `attention_sinks` defines it, in each of these blocks.

    `patterns` are those of a run with a single prompt, by block number.
    """
    reach = windows(run.model, run.positions)
    totals = to_cpu([received(pattern) for pattern in patterns.values()])  # pyright: ignore[reportArgumentType]
    shares: list[Tensor] = []
    for block, total in zip(patterns, totals, strict=True):
        shares.append(beyond_uniform(total, reach[block], has_sink(run, block)))
    return torch.stack(shares)
