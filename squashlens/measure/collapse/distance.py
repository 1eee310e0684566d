"""Representational collapse (Theorem 4.2, figure 5): the distance between a sequence v and its pair v*.

v* is the sequence with its last token repeated. The distance is measured at each layer and length, and compared with
baseline distances and a noise floor.

A distance may be large in a coordinate that no logit reads, and small in one that decides the answer. The next token is
therefore compared too, in units of its own. Its noise is what two runs of one prompt differ by: by the triangle
inequality, the noise of v plus that of v* bounds how far rounding moves the difference of v and v*.
"""

from collections.abc import Callable, Collection, Iterable

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
from squashlens.errors import InputError
from squashlens.measure.collapse.metric import (
    NOISE,
    Dtype,
    Metric,
    coords,
    find_dtype,
    next_token_is_known,
    take_pairs,
    with_y,
)
from squashlens.measure.registration import measurement
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
from squashlens.theory.distances import (
    divergence,
    identical,
    log_odds,
    relative_median,
    total_variation,
    ulp,
    ulps,
)
from squashlens.theory.statistics.laws import log_slope
from squashlens.theory.statistics.trends import association

Rows = Float[Tensor, "branch d"]
# How the distributions of the next token are compared, from their log-probabilities; what that is, and its unit.
COMPARISONS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str, str]] = {
    "total_variation": (
        lambda p, q: total_variation(p.exp(), q.exp()),
        "total variation of the next token",
        "1",
    ),
    "kl": (
        divergence,
        "Kullback–Leibler divergence of the next token, v from v*",
        "nats",
    ),
    "log_odds": (log_odds, "largest change of the log odds of two next tokens", "nats"),
    "same_argmax": (
        lambda p, q: p.argmax(dim=-1) == q.argmax(dim=-1),
        "whether the most likely next token is the same",
        "1",
    ),
}
TOGETHER = 64  # lengths whose logits are computed at once
MOVED = {
    "total_variation": ("total variation", "1"),
    "log_odds": ("log odds", "nats"),
}  # by rounding


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
    round_to: Dtype | None = None,
    lengths: Iterable[int] | None = None,
    baselines: Baselines = (),
    n_samples: int = 3,
    noise_lengths: int = 0,
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
        round_to: dtype to which representations are rounded before they are compared, such as ``"bfloat16"`` or
            `torch.bfloat16`; no rounding by default. To run the model itself in another dtype, load it in that dtype.
        lengths, baselines, n_samples, passes, seed: as in `capture`; for a sequence only.
        noise_lengths: as in `capture`, for a sequence only; 0, no noise floor, by default.

    Returns:
        Dataset. Over (layer, length): `distance`, in the model's units, or dimensionless if relative; `ulps`, |Δ| in
        units in the last place at the coordinate that attains L∞; `ulps_median`, the median over coordinates;
        `relative_median`, the median over coordinates of |Δ_c| ÷ max(|v_c|, |v*_c|), which no single coordinate rules;
        `bit_identical`, the share of coordinates that are equal; `rms`, the root mean square of v's coordinates, by
        which a relative distance is divided. Over (layer): `length_slope`, the least-squares slope of log D over log
        length, NaN with a D of 0 or fewer than two lengths; `length_trend`, Spearman's ρ of D with
        the length; `length_trend_low` and `length_trend_high`, the ends of its 95 % interval, which allows for
        dependence between neighbouring lengths; `length_trend_p`, the p-value of no trend, not corrected for the
        number of layers. Each of these also has a variable with `_y`, for y.

        Over (length), for the next token: `total_variation` (0 to 2), `kl` from v to v* (nats), `log_odds`, the largest
        change of the log odds of two tokens (nats), and `same_argmax`. If lengths were replayed:
        `total_variation_noise` and `log_odds_noise` over (replayed), how far rounding can move these two. With
        `by_head`: `head_distance`, and `head_mean`, `head_min` and `head_max` over heads. If captured: `contrast`, over
        (layer, length); `unrelated`, over (draw, layer, length); and `noise_floor`, over (layer, replayed), with the
        lengths that were replayed. It is ‖v − ṽ‖ + ‖v* − ṽ*‖, where ṽ and ṽ* come from a second run, and each term is
        at least half a unit in the last place: how far rounding can move D. The coordinate `tokens` is the number of
        tokens in a prompt, and `before_separator` says whether a separator follows its last content token.
        `window_edge` is the position of a token that is in the window of some block for v and not for v*, and not the
        same as the repeated one; −1 if there is none. D may jump there: compare `squashlens.hooks.lifted_windows`.

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
    metric = Metric(norm, scale, find_dtype(round_to))
    wanted = Pairs(
        lengths=lengths,
        baselines=baselines,
        n_samples=n_samples,
        noise_lengths=noise_lengths,
        passes=passes,
        seed=seed,
    )
    run, pairs = take_pairs(
        Run.open(model, "collapse"),
        sequence,
        wanted,
        patterns=by_head == "value",
        **metric.said,
        by_head=by_head,
        round_to=metric.form,
    )
    pairs = pairs.on(run.device)
    gaps = metric.between(pairs).cpu()
    found = with_y(
        "distance", gaps, metric.distance("distance of v and v*"), metric.units
    )
    size = metric.stated("root mean square of the coordinates of v")
    found |= with_y("rms", metric.size(pairs.v.values), size, MODEL_UNITS)
    trend = association(gaps, torch.arange(len(pairs.lengths), dtype=torch.float64))
    correlation = metric.derived("Spearman correlation of D with the length")
    for name, (dims, values, text, units) in trend.variables(
        "length_trend", correlation, "layer"
    ).items():
        found |= with_y(name, values, text, units, dims)
    slopes = torch.tensor(
        [log_slope(pairs.lengths, row.tolist())[0] for row in gaps], dtype=torch.float64
    )
    text = metric.derived("slope of log D over log length")
    found |= with_y("length_slope", slopes, text, "1", ("layer",))
    found |= _precision(metric, run.dtype, pairs)
    found |= _next_token(run, metric, pairs)
    if by_head:
        found |= _by_head(metric, int(run.model.cfg.n_heads), by_head, pairs)
    if pairs.contrast is not None:
        contrast = metric.gap(pairs.v.values, pairs.contrast.values)
        text = metric.distance("distance of v and v with another last token")
        found |= with_y("contrast", contrast, text, metric.units)
    if pairs.unrelated:
        unrelated = torch.stack(
            [metric.gap(pairs.v.values, other.values) for other in pairs.unrelated]
        )
        dims = ("draw", "layer", "length")
        text = metric.distance("distance of v and a sequence with other content")
        found |= with_y("unrelated", unrelated, text, metric.units, dims)
    sizes = {window for window in known_windows(run.model) if window is not None}
    edges = np.array(
        [edge(pairs.sequence, length, sizes) for length in pairs.lengths],
        dtype=np.int64,
    )
    over = coords(pairs) | {"window_edge": ("length", edges)}
    if pairs.replay is not None:
        over["replayed"] = [pairs.lengths[place] for place in pairs.replay.places]
        noise = metric.noise(pairs.v, pairs.star, pairs.replay)
        found |= with_y(
            "noise_floor",
            noise,
            metric.derived(NOISE),
            metric.units,
            ("layer", "replayed"),
        )
    return run.dataset("representational collapse", over, found)


def _precision(
    metric: Metric, own: torch.dtype, pairs: PairCapture
) -> dict[str, Variable]:
    """Differences between v and v* in units in the last place, and the share of coordinates that are bit-identical."""
    dtype = metric.round_to or own
    both = [
        (metric.rounded(a), metric.rounded(b))
        for a, b in zip(pairs.v.values, pairs.star.values, strict=True)
    ]
    widest, median = map(
        torch.stack, zip(*(ulps(a, b, dtype) for a, b in both), strict=True)
    )
    same = torch.stack([identical(a, b, dtype) for a, b in both])
    typical = torch.stack([relative_median(a, b) for a, b in both])
    text = metric.stated("median over coordinates of |Δ| ÷ the larger of |v| and |v*|")
    unit = f"ulp ({dtype_name(dtype)})"
    return {
        **with_y(
            "ulps", widest, metric.stated("|Δ| at the coordinate that attains L∞"), unit
        ),
        **with_y(
            "ulps_median", median, metric.stated("median of |Δ| over coordinates"), unit
        ),
        **with_y("relative_median", typical, text, "1"),
        **with_y(
            "bit_identical",
            same,
            metric.stated("share of coordinates that are bit-identical"),
            "1",
        ),
    }


def _next_token(run: Run, metric: Metric, pairs: PairCapture) -> dict[str, Variable]:
    """Comparisons of the next token after v and v*; empty, with a warning, if the logits cannot be computed from y."""
    if not next_token_is_known(run):
        return {}
    y, star = (metric.rounded(side.values[-1]) for side in (pairs.v, pairs.star))
    found = _compare(run, y, star)
    variables: dict[str, Variable] = {
        name: (("length",), found[name], metric.stated(text), units)
        for name, (_, text, units) in COMPARISONS.items()
    }
    if pairs.replay is None:
        return variables
    places, own = list(pairs.replay.places), metric.round_to or run.dtype
    both = ((y[places], pairs.replay.v[-1]), (star[places], pairs.replay.star[-1]))
    moved = [_noise(run, one, metric.rounded(again), own) for one, again in both]
    for name, (text, units) in MOVED.items():
        label = metric.stated(f"how far rounding can move the {text} of v and v*")
        variables[f"{name}_noise"] = (
            ("replayed",),
            moved[0][name] + moved[1][name],
            label,
            units,
        )
    return variables


def _compare(run: Run, y: Rows, other: Rows) -> dict[str, Tensor]:
    """The differences of the next token's distributions from two representations y, for each row.

    Equal rows are taken once: where a sequence ends in equal tokens, v* of one length is v of the next.
    """
    parts: list[dict[str, Tensor]] = []
    for both in zip(y.split(TOGETHER), other.split(TOGETHER), strict=True):
        rows, numbers = torch.cat([part.double() for part in both]).unique(
            dim=0, return_inverse=True
        )
        logits = logits_of(
            run, rows
        )  # log-probabilities of all rows in float64 would leave the cache
        some, pairs = rows_together(run), numbers.to(logits.device).reshape(2, -1)
        sums = torch.cat(
            [part.double().logsumexp(dim=-1) for part in logits.split(some)]
        )
        for pair in pairs.split(some, dim=1):
            p, q = logits[pair].double() - sums[pair][..., None]
            parts.append(
                {name: measure(p, q) for name, (measure, *_) in COMPARISONS.items()}
            )
    return {
        name: torch.cat([part[name] for part in parts]).cpu() for name in COMPARISONS
    }


def _noise(run: Run, y: Rows, again: Rows, dtype: torch.dtype) -> dict[str, Tensor]:
    """How far rounding moves the next token: by a second run, and at least by one unit in the last place of y.

    Two runs can round to the same numbers by chance. The units have alternating signs.
    """
    signs = 1 - 2 * (torch.arange(y.shape[-1], device=y.device) % 2)
    one, two = (
        _compare(run, y, other) for other in (again, y.double() + signs * ulp(y, dtype))
    )
    return {name: torch.maximum(one[name], two[name]) for name in MOVED}


def _by_head(
    metric: Metric, n_heads: int, heads: Heads, pairs: PairCapture
) -> dict[str, Variable]:
    """Distances per head, with their mean, minimum and maximum over heads."""
    both = (pairs.v, pairs.star)
    if heads == "slice":
        width = pairs.v.values.shape[-1]
        if width % n_heads:
            raise InputError(
                f"{width} coordinates cannot be cut into {n_heads} equal slices.",
                "Use by_head='value'.",
            )
        axis, text = (
            "layer",
            metric.distance("distance of v and v* in one slice of the residual stream"),
        )
        sides = [
            rearrange(s.values[:-1], "layer n (h e) -> layer h n e", h=n_heads)
            for s in both
        ]
    else:
        axis, text = (
            "block",
            metric.distance("distance of the outputs of one head for v and v*"),
        )
        outputs = [
            torch.stack([s.others[head_site(b)] for b in pairs.layers[:-1]])
            for s in both
        ]
        sides = [rearrange(output, "block n h e -> block h n e") for output in outputs]
    gaps = torch.stack([metric.gap(a, b) for a, b in zip(*sides, strict=True)])
    spread = {
        "mean": gaps.mean(dim=1),
        "min": gaps.amin(dim=1),
        "max": gaps.amax(dim=1),
    }
    return {
        "head_distance": ((axis, "head", "length"), gaps, text, metric.units),
        **{
            f"head_{name}": (
                (axis, "length"),
                values,
                f"{text}: {name} over heads",
                metric.units,
            )
            for name, values in spread.items()
        },
    }


def edge(sequence: GrowingSequence, length: int, sizes: Collection[int]) -> int:
    """The first position that a block with one of these windows sees in v and not in v*; −1 if there is none.

    A window includes the token itself.

    v's token at position p, the last content token or one of the suffix, sees the positions from p − w + 1 on. The same
    token of v*, at p + 1, sees those from p − w + 2 on, so the token at p − w + 1 has left for v* alone. In its place
    v* sees the repeated token once more, so nothing has changed if these two are the same. Nor if the window begins in
    the suffix: then both see the same tokens of it.
    """
    v = sequence.plain(length)
    last = len(v) - 1 - len(sequence.suffix)

    def token(place: int) -> int:
        return sequence.trunk[place] if place < v.at else v.tokens[place - v.at]

    left = {p - size + 1 for size in sizes for p in range(last, len(v))}
    return min(
        (place for place in left if 0 <= place < last and token(place) != token(last)),
        default=-1,
    )
