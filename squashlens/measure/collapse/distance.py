"""Representational collapse (Theorem 4.2, figure 5): the distance between a sequence v and its pair v*.

v* is the sequence with its last token repeated. The distance is measured at each layer and length, and compared with
baseline distances and a noise floor.

A distance may be large in a coordinate that no logit reads, and small in one that decides the answer. The next token is
therefore compared too, in units of its own.
"""

from collections.abc import Collection, Iterable
from functools import partial

import numpy as np
import torch
import xarray as xr
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from squashlens._typing import (
    Baselines,
    Bridge,
    Distance,
    Heads,
    Passes,
    Scale,
    dtype_name,
)
from squashlens.measure.collapse import metric as metrics
from squashlens.measure.collapse.metric import Metric, layer_by_layer
from squashlens.measure.registration import measurement, this_call
from squashlens.measure.variables import variables_of, with_y
from squashlens.model.anatomy import known_windows
from squashlens.records.labels import MODEL_UNITS, Variable
from squashlens.run.captures.pairs import (
    PairCapture,
    Pairs,
    SequenceOrCapture,
    head_site,
)
from squashlens.run.forward import logits_of, rows_together
from squashlens.run.run import Run
from squashlens.sequences import GrowingSequence
from squashlens.theory import distances
from squashlens.theory.statistics.laws import log_slope
from squashlens.theory.statistics.trends import association

TOGETHER = 32  # lengths whose logits are computed at once: a vocabulary may have 262,144 tokens
Y = Float[Tensor, "branch d"]
LogP = Float[Tensor, "branch outcome"]
BY_LENGTH = "layer length"
BY_DRAW = "draw layer length"
OF_CONTRAST = "distance of v and v with another last token"
OF_UNRELATED = "distance of v and a sequence with other content"
KL = "Kullback–Leibler divergence of the next token, v from v*"
LOG_ODDS = "largest change of the log odds of two next tokens"
COMPARED = {
    "probability_l1": ("length", "total variation of the next token", "1"),
    "kl": ("length", KL, "nats"),
    "largest_log_odds_change": ("length", LOG_ODDS, "nats"),
    "same_argmax": ("length", "whether the most likely next token is the same", "1"),
}


@measurement(
    "collapse_curve",
    "collapse_heatmap",
    captured=True,
    cheaper="Fewer lengths= or baselines= takes less.",
)
def collapse(
    model: Bridge,
    sequence: SequenceOrCapture,
    *,
    norm: Distance = "linf",
    scale: Scale = "absolute",
    by_head: Heads | None = None,
    lengths: Iterable[int] | None = None,
    baselines: Baselines = (),
    n_samples: int = 3,
    noise_lengths: int = metrics.REPLAYED,
    passes: Passes = "auto",
    seed: int = 0,
) -> xr.Dataset:
    """The distance ``D_ℓ(n) = ‖v_n⁽ℓ⁾ − v*⁽ℓ⁾_{n+1}‖`` between a sequence and its pair, at each layer and length.

    v is the sequence with n content tokens, and v* the same with its last content token repeated. Both are followed by
    the suffix, if there is one, and both are read at their last token. A sequence whose tail is constant takes one
    forward pass for all lengths. Other sequences take a second pass, which runs the remaining tokens of all lengths on
    the cache of the shared tokens.

    Args:
        model: the model to measure, a `TransformerBridge` from `load` or your own.
        sequence: a growing sequence from `squashlens.prompts`; or a `capture` of one, which is not run again. The
            capture determines the lengths, the baselines and the noise floor.
        norm: norm of the distance: ``"linf"`` (the default), the largest coordinate, as in figure 5; ``"l1"``, as in
            Theorem B.3, which is Theorem 4.2 in full; or ``"l2"``.
        scale: ``"absolute"`` (the default), the model's units; ``"relative"``, divided by the root mean square of v's
            coordinates, which accounts for residual streams that grow with depth.
        by_head: what distances per attention head compare: ``"value"``, the output of each head (`hook_z`), or
            ``"slice"``, the residual stream cut into as many equal slices as there are heads; the paper's "averaged
            over each head" may mean either. No distances per head by default.
        lengths, baselines, n_samples, noise_lengths, passes, seed: as in `capture`; for a sequence only.

    Returns:
        Dataset. Over (layer, length): `distance`, in the model's units, or dimensionless if relative; `ulps`, |Δ| in
        units in the last place at the coordinate that attains L∞; `relative_median`, the median over coordinates of
        |Δ_c| ÷ max(|v_c|, |v*_c|), which no single coordinate rules; `bit_identical`, the share of coordinates that are
        equal; `rms`, the root mean square of v's coordinates, by which a relative distance is divided. Over (layer):
        `length_slope`, the least-squares slope of log D over log length, NaN with a D of 0 or fewer than two lengths;
        `length_trend`, Spearman's ρ of D with the length; `length_trend_low` and `length_trend_high`, the ends of its
        95 % interval, which allows for dependence between neighbouring lengths; `length_trend_p`, the p-value of no
        trend, not corrected for the number of layers. Each of these also has a variable with `_y`, for y.

        Over (length), for the next token: `probability_l1` (0 to 2), `kl` from v to v* (nats),
        `largest_log_odds_change`, the largest change of the log odds of two tokens (nats), and `same_argmax`. With
        `by_head`: `head_distance`, and `head_mean`, `head_min` and `head_max` over heads. If captured: `contrast`, over
        (layer, length); `unrelated`, over (draw, layer, length); and `noise_floor`, over (layer, replayed), with the
        lengths that were replayed. It is ‖v − ṽ‖ + ‖v* − ṽ*‖, where ṽ and ṽ* come from a second run, and each term is
        at least half a unit in the last place: how far rounding can move D. The coordinate `tokens` is the number of
        tokens in a prompt, and `before_separator` says whether a separator follows its last content token.
        `window_edge` is the position of a token that is in the window of some block for v and not for v*, and not the
        same as the repeated one; −1 if there is none. D may jump there: compare `squashlens.hooks.lift_windows`.

    Raises:
        InputError: something that is not a sequence or its capture, a capture without what `by_head` needs, or
            coordinates that cannot be cut into equal slices.

    Source: Barbero et al. 2024, Theorem 4.2, figure 5.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> ones = sl.prompts.repeated(model, "1", 32, prefix="How many ones are in the following sequences?")
    >>> last = sl.collapse(model, ones, baselines=["contrast"]).sel(layer=6, length=32)
    >>> bool(last["distance"] < last["contrast"])
    True
    """
    metric = Metric(norm, scale)
    wanted = Pairs(
        lengths=lengths,
        baselines=baselines,
        n_samples=n_samples,
        noise_lengths=noise_lengths,
        passes=passes,
        seed=seed,
    )
    run = Run.open(model, **this_call())
    run, pairs = metrics.take_pairs(run, sequence, wanted, patterns=by_head == "value")
    pairs = pairs.on(run.device)
    gaps = metric.between(pairs).cpu()
    variables = _distances(metric, pairs, gaps)
    variables |= _trend(metric, pairs.lengths, gaps)
    variables |= _precision(run.dtype, pairs)
    if metrics.next_token_is_known(run):
        compared = _compare(run, pairs.v.values[-1], pairs.star.values[-1])  # by y
        variables |= variables_of(COMPARED, compared)
    if by_head:
        n_heads = int(run.model.cfg.n_heads)
        variables |= _by_head(metric, n_heads, by_head, pairs)
    coords = metrics.coords(pairs)
    windows = {window for window in known_windows(run.model) if window is not None}
    edges = [edge(pairs.sequence, length, windows) for length in pairs.lengths]
    coords["window_edge"] = ("length", np.array(edges, dtype=np.int64))
    if pairs.replay is not None:
        coords["replayed"] = np.take(pairs.lengths, pairs.replay.places)
    return run.dataset("representational collapse", coords, variables)


def _distances(
    metric: Metric, pairs: PairCapture, gaps: Float[Tensor, "layer length"]
) -> dict[str, Variable]:
    """The variables of distances: D (`gaps`), the rms of v, and what was captured of baselines and the noise floor."""
    v = pairs.v.values
    distances_of = {"distance": gaps, "rms": metric.size(v)}
    if pairs.contrast is not None:
        distances_of["contrast"] = metric.gap(v, pairs.contrast.values)
    if pairs.unrelated:
        draws = [metric.gap(v, other.values) for other in pairs.unrelated]
        distances_of["unrelated"] = torch.stack(draws)  # (draw, layer, length)
    if pairs.replay is not None:
        distances_of["noise_floor"] = metric.noise(pairs.v, pairs.star, pairs.replay)
    table = {
        "distance": (BY_LENGTH, metric.distance("distance of v and v*"), metric.units),
        "contrast": (BY_LENGTH, metric.distance(OF_CONTRAST), metric.units),
        "unrelated": (BY_DRAW, metric.distance(OF_UNRELATED), metric.units),
        "noise_floor": ("layer replayed", metric.derived(metrics.NOISE), metric.units),
        "rms": (BY_LENGTH, "root mean square of the coordinates of v", MODEL_UNITS),
    }
    return with_y(variables_of(table, distances_of))


def _trend(
    metric: Metric, lengths: tuple[int, ...], gaps: Float[Tensor, "layer length"]
) -> dict[str, Variable]:
    """How D changes with the length at each layer: Spearman's ρ, and the slope of log D over log length."""
    # Of the lengths only the order matters for ρ.
    order = torch.arange(len(lengths), dtype=torch.float64)
    text = metric.derived("Spearman correlation of D with the length")
    correlation = association(gaps, order).variables("length_trend", text, "layer")
    slopes: list[float] = []
    for of_layer in gaps:
        slope_of_layer, _, _ = log_slope(lengths, of_layer.tolist())
        slopes.append(slope_of_layer)
    text = metric.derived("slope of log D over log length")
    slope = {"length_slope": (("layer",), torch.tensor(slopes), text, "1")}
    return with_y(correlation | slope)


def _precision(dtype: torch.dtype, pairs: PairCapture) -> dict[str, Variable]:
    """Differences between v and v* in units in the last place, and the share of coordinates that are bit-identical."""
    compared = {
        "ulps": partial(distances.ulps, dtype=dtype),
        "relative_median": distances.relative_median,
        "bit_identical": partial(distances.identical, dtype=dtype),
    }
    values: dict[str, Tensor] = {}
    for name, compare in compared.items():
        values[name] = layer_by_layer(compare, pairs.v.values, pairs.star.values)
    largest = "|Δ| at the coordinate that attains L∞"
    median = "median over coordinates of |Δ| ÷ the larger of |v| and |v*|"
    table = {
        "ulps": (BY_LENGTH, largest, f"ulp ({dtype_name(dtype)})"),
        "relative_median": (BY_LENGTH, median, "1"),
        "bit_identical": (
            BY_LENGTH,
            "share of coordinates that are bit-identical",
            "1",
        ),
    }
    return with_y(variables_of(table, values))


def _differences(log_p: LogP, log_q: LogP) -> dict[str, Float[Tensor, " branch"]]:
    """The differences of two next-token distributions, from their log-probabilities."""
    return {
        "probability_l1": distances.total_variation(log_p.exp(), log_q.exp()),
        "kl": distances.divergence(log_p, log_q),
        "largest_log_odds_change": distances.log_odds(log_p, log_q),
        "same_argmax": log_p.argmax(dim=-1) == log_q.argmax(dim=-1),
    }


def _compare(run: Run, y: Y, other: Y) -> dict[str, Float[Tensor, " branch"]]:
    """How the next token's distributions from y and from `other` differ, for each row, with the names of `COMPARED`.

    Logits of equal rows are computed once: where a sequence ends in equal tokens, v* of one length is v of the next.
    """
    # Filled in place: results that stay among freed logits would keep the allocator from using that room again.
    compared = {name: y.new_empty(len(y), dtype=torch.float64) for name in COMPARED}
    start = 0
    for some, others in zip(y.split(TOGETHER), other.split(TOGETHER), strict=True):
        both = torch.cat([some.double(), others.double()])
        rows, row_of = both.unique(dim=0, return_inverse=True)
        logits = logits_of(run, rows)
        # The rows of y, and those of `other`.
        pairs_of_rows = row_of.to(logits.device).view(2, -1)
        # A few at a time: log-probabilities of all rows in float64 would leave the cache.
        for first, second in pairs_of_rows.split(rows_together(run), dim=1):
            log_p = logits[first].double().log_softmax(dim=-1)
            log_q = logits[second].double().log_softmax(dim=-1)
            stop = start + len(first)
            for name, values in _differences(log_p, log_q).items():
                compared[name][start:stop] = values
            start = stop
    compared["same_argmax"] = compared["same_argmax"].bool()
    return {name: values.cpu() for name, values in compared.items()}


def _by_head(
    metric: Metric, n_heads: int, heads: Heads, pairs: PairCapture
) -> dict[str, Variable]:
    """Distances per head, with their mean, minimum and maximum over heads.

    For ``"slice"`` a head is a slice of the residual stream at each layer; for ``"value"`` it is the output of an
    attention head of each block.
    """
    if heads == "slice":
        axis = "layer"
        text = "distance of v and v* in one slice of the residual stream"
        cut = partial(rearrange, pattern="layer n (h e) -> layer h n e", h=n_heads)
        v = cut(pairs.v.values[:-1])  # without y
        star = cut(pairs.star.values[:-1])
    else:
        axis = "block"
        text = "distance of the outputs of one head for v and v*"
        sites = [head_site(block) for block in pairs.layers[:-1]]
        # (block, length, head, coordinate) becomes (block, head, length, coordinate)
        v = metrics.activations_at(pairs.v, sites).transpose(1, 2)
        star = metrics.activations_at(pairs.star, sites).transpose(1, 2)
    gaps = layer_by_layer(metric.gap, v, star)
    text = metric.distance(text)
    units = metric.units
    over = (axis, "length")
    return {
        "head_distance": ((axis, "head", "length"), gaps, text, units),
        "head_mean": (over, gaps.mean(dim=1), f"{text}: mean over heads", units),
        "head_min": (over, gaps.amin(dim=1), f"{text}: min over heads", units),
        "head_max": (over, gaps.amax(dim=1), f"{text}: max over heads", units),
    }


def edge(sequence: GrowingSequence, length: int, windows: Collection[int]) -> int:
    """The first position that a block with one of these windows sees in v and not in v*; −1 if there is none.

    A window includes the token itself.

    v's token at position p, the last content token or one of the suffix, sees the positions from p − w + 1 on. The same
    token of v*, at p + 1, sees those from p − w + 2 on, so the token at p − w + 1 has left for v* alone. In its place
    v* sees the repeated token once more, so nothing has changed if these two are the same. Nor if the window begins in
    the suffix: then both see the same tokens of it.
    """
    ids = np.array(sequence.plain(length).ids(sequence.trunk))  # of v
    last_content = len(ids) - 1 - len(sequence.suffix)
    queries = np.arange(last_content, len(ids))
    sizes = np.array(list(windows), dtype=int)
    edges = queries[:, None] - sizes + 1  # (query, window): p − w + 1
    edges = edges[(edges >= 0) & (edges < last_content)]
    changed = edges[ids[edges] != ids[last_content]]
    return int(changed.min()) if changed.size else -1
