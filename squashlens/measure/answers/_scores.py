"""The scores of probes and their baselines: R² in each split of the prompts, and intervals over splits."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import special  # `scipy.stats` takes a second to import

from squashlens._typing import Direction
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.measure.answers._splits import Answers, Split
from squashlens.theory.statistics.ridge import ridge

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Scores:
    """The scores of probes on the layers of one model; NaN where nothing was probed.

    Over (split, layer, length): `r2` and `control`, R² of the right answer and of the control task, and `right`, the
    share of correct predictions. Over (split, layer): `overall`, R² over all lengths together. Over (length, seed):
    `prediction`, the mean prediction from the last layer.
    """

    r2: np.ndarray
    control: np.ndarray
    right: np.ndarray
    overall: np.ndarray
    prediction: np.ndarray


def scored(
    layers: np.ndarray, data: Answers, direction: Direction, numbers: range, label: str, progress: bool
) -> Scores:
    """The scores of probes on features of shape (layer, length · seed, d), for the splits with these numbers."""
    from threadpoolctl import threadpool_limits

    if not np.isfinite(layers).all():
        raise InputError(
            "Some representations are NaN or infinite, so that no probe can be fitted.",
            "Load the model with dtype='float32', and check its hooks and weights for values that are not finite.",
        )
    rows = layers.reshape(len(layers), *data.truth.shape, -1)
    r2, control, right = np.full((3, len(numbers), len(layers), len(data.lengths)), np.nan)
    residual, variation = np.zeros((2, len(numbers), len(layers)))
    total, times = np.zeros(data.truth.shape), np.zeros(data.truth.shape)
    progress_bar = bar(numbers, desc=label, unit="split", progress=progress)
    with threadpool_limits(1):  # with many small fits, several threads are slower than one
        for place, number in enumerate(progress_bar):
            for layer, at, split, targets, predicted in _predicted(rows, data, direction, number):
                squares, about_mean = _sums(targets, predicted, split.weight)
                here = place, layer, at
                r2[here], control[here] = 1 - _ratio(squares, about_mean)
                right[here] = np.average(np.rint(predicted[:, 0]) == targets[:, 0], weights=split.weight)
                residual[place, layer] += squares[0]
                variation[place, layer] += about_mean[0]
                if layer == len(layers) - 1:
                    by_sample = data.of_samples(at, split.test, predicted[:, 0])
                    total[at] += np.nan_to_num(by_sample)
                    times[at] += ~np.isnan(by_sample)
    return Scores(r2, control, right, 1 - _ratio(residual, variation), _ratio(total, times))


def of_length(data: Answers) -> np.ndarray:
    """R² of the training prompts' mean answer at a number of tokens, interpolated between numbers, (split, length)."""
    found = np.full((data.splits, len(data.lengths)), np.nan)
    for number in range(data.splits):
        for at in data.probed:
            split, first = data.split(at, number), data.different[at][0]
            tokens, truth = data.tokens[at, first], data.truth[at, first]
            seen, which = np.unique(tokens[split.train], return_inverse=True)
            means = np.bincount(which, weights=truth[split.train]) / np.bincount(which)
            predicted = np.interp(tokens[split.test], seen, means)[:, None]
            found[number, at] = 1 - _ratio(*_sums(truth[split.test][:, None], predicted, split.weight))[0]
    return found


def interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and ends of the middle 95 % over splits (the first axis); NaN where at least half of the splits are NaN."""
    known = np.isnan(values).mean(axis=0) < 1 / 2
    out = (1 - CONFIDENCE) / 2
    ends = np.full((3, *values.shape[1:]), np.nan)
    if known.any():
        kept = values[:, known]
        ends[:, known] = np.nanmean(kept, axis=0), *np.nanquantile(kept, [out, 1 - out], axis=0)
    return ends[0], ends[1], ends[2]


def gains(
    r2: np.ndarray, others: np.ndarray, r2_random: np.ndarray, many: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """R² minus that of the best baseline: its mean over splits, and the ends of its 95 % interval.

    `others` is the best R² of the baselines that need no random model; `r2_random` is the R² of random model s mod
    `many` in split s. The interval allows for further draws of random weights: let g_t be the mean of
    R² − max(0, R²_random) over the splits of random model t, and s the standard deviation of g_t over T random models.
    Then g of one more random model is within t_{0.975, T−1} · s · √(1 + 1/T) of the mean. The R² of random models is
    raised by this amount for the lower end, and reduced by it for the upper end. With fewer than two random models
    there is no s: the lower end is NaN, and the upper end is that of the gain over the other baselines.
    """
    if not many:
        _, _, high = interval(r2 - others)
        return np.full_like(high, np.nan), np.full_like(high, np.nan), high
    r2_random = np.maximum(r2_random, 0)
    middle, _, high = interval(r2 - np.fmax(others, r2_random))
    if many == 1:
        return middle, np.full_like(high, np.nan), interval(r2 - others)[2]
    each = np.stack([interval(r2[t::many] - r2_random[t::many])[0] for t in range(many)])
    reach = special.stdtrit(many - 1, (1 + CONFIDENCE) / 2) * each.std(axis=0, ddof=1) * np.sqrt(1 + 1 / many)
    low, high = (interval(r2 - np.fmax(others, r2_random + way * reach))[end] for way, end in ((1, 1), (-1, 2)))
    return middle, low, high


def _predicted(
    rows: np.ndarray, data: Answers, direction: Direction, number: int
) -> Iterator[tuple[int, int, Split, np.ndarray, np.ndarray]]:
    """For each layer and probed length: the split, and targets and predictions (prompt, target) of its test set."""
    splits = [data.split(at, number) for at in data.probed]
    targets = [data.targets(at, number) for at in data.probed]
    first = [data.different[at][0] for at in data.probed]
    for layer, features in enumerate(rows):
        seen = [features[at, own[s.train]] for at, own, s in zip(data.probed, first, splits, strict=True)]
        unseen = [features[at, own[s.test]] for at, own, s in zip(data.probed, first, splits, strict=True)]
        fitted = [own[s.train] for own, s in zip(targets, splits, strict=True)]
        if direction == "own":
            predicted = [ridge(*parts) for parts in zip(seen, fitted, unseen, strict=True)]
        else:
            predicted = _shared(seen, fitted, unseen)
        for at, split, own, values in zip(data.probed, splits, targets, predicted, strict=True):
            yield layer, at, split, own[split.test], values


def _shared(seen: list[np.ndarray], targets: list[np.ndarray], unseen: list[np.ndarray]) -> list[np.ndarray]:
    """Predictions for each length from one direction that all lengths share, with an offset for each length."""
    offset, level = ([part.mean(axis=0) for part in parts] for parts in (seen, targets))

    def centred(parts: list[np.ndarray], means: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([part - mean for part, mean in zip(parts, means, strict=True)])

    predicted = ridge(centred(seen, offset), centred(targets, level), centred(unseen, offset))
    ends = np.cumsum([len(part) for part in unseen])[:-1]
    return [mean + part for mean, part in zip(level, np.split(predicted, ends), strict=True)]


def _sums(targets: np.ndarray, predicted: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weighted sums of (truth − prediction)² and of (truth − mean truth)², for each target."""
    about_mean = targets - np.average(targets, axis=0, weights=weight)
    return weight @ (targets - predicted) ** 2, weight @ about_mean**2


def _ratio(numerator: np.ndarray | float, denominator: np.ndarray | float) -> np.ndarray:
    """The quotient of two arrays, NaN where the denominator is 0."""
    above, below = np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)
    return np.divide(above, below, out=np.full(below.shape, np.nan), where=below > 0)
