"""What a probe finds, beside what it finds without training: R² in every split, and intervals over splits."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import stats

from squashlens._typing import Direction
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.measure._splits import Answers, Split
from squashlens.theory.ridge import ridge

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Scores:
    """Of a model's layers, over (split, layer, length): R² of the right answer and of the control, and the share of
    right predictions; over (split, layer), R² over all lengths together; over (length, seed), the mean prediction of
    the last layer. NaN: not probed."""

    r2: np.ndarray
    control: np.ndarray
    right: np.ndarray
    overall: np.ndarray
    prediction: np.ndarray


def scored(
    layers: np.ndarray, data: Answers, direction: Direction, numbers: range, label: str, progress: bool
) -> Scores:
    """Probes of features (layer, length · seed, d): one of each layer and length in each split of these numbers."""
    from threadpoolctl import threadpool_limits

    if not np.isfinite(layers).all():
        raise InputError(
            "Some representations are NaN or infinite: nothing can be fitted to them.",
            "Load the model with dtype='float32', and look for hooks or weights that are not finite.",
        )
    rows = layers.reshape(len(layers), *data.truth.shape, -1)
    r2, control, right = np.full((3, len(numbers), len(layers), len(data.lengths)), np.nan)
    missed, spread = np.zeros((2, len(numbers), len(layers)))
    total, times = np.zeros(data.truth.shape), np.zeros(data.truth.shape)
    shown = bar(numbers, desc=label, unit="split", progress=progress)
    with threadpool_limits(1):  # many small fits: threads would wait for each other
        for place, number in enumerate(shown):
            for layer, at, split, targets, predicted in _predicted(rows, data, direction, number):
                lost, around = _sums(targets, predicted, split.weight)
                here = place, layer, at
                r2[here], control[here] = 1 - _ratio(lost, around)
                right[here] = np.average(np.rint(predicted[:, 0]) == targets[:, 0], weights=split.weight)
                missed[place, layer] += lost[0]
                spread[place, layer] += around[0]
                if layer == len(layers) - 1:
                    said = data.of_draws(at, split.test, predicted[:, 0])
                    total[at] += np.nan_to_num(said)
                    times[at] += ~np.isnan(said)
    return Scores(r2, control, right, 1 - _ratio(missed, spread), _ratio(total, times))


def of_length(data: Answers) -> np.ndarray:
    """R² of the right answer from the number of tokens alone, (split, length): the mean of the answers of that many
    tokens among the prompts fitted to, between such numbers along a straight line."""
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
    """Mean and the middle 95 % over splits (the first axis); NaN where half of the splits or more say nothing."""
    known = np.isnan(values).mean(axis=0) < 1 / 2
    out = (1 - CONFIDENCE) / 2
    ends = np.full((3, *values.shape[1:]), np.nan)
    if known.any():
        kept = values[:, known]
        ends[:, known] = np.nanmean(kept, axis=0), *np.nanquantile(kept, [out, 1 - out], axis=0)
    return ends[0], ends[1], ends[2]


def gains(r2: np.ndarray, others: np.ndarray, twin: np.ndarray, many: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """R² less that of the best baseline, (split, …): its mean, and the ends of its 95 % interval.

    `others` has the best of the baselines that need no twin, `twin` the R² in split s of twin s mod `many`. The
    interval allows for another draw of random weights. With g_t the mean of R² − max(0, R²_twin) over the splits of
    twin t, and s the standard deviation of g_t over T twins, the R² of one more twin lies within
    t_{0.975, T−1} · s · √(1 + 1/T) of their mean; twins count as better by that for the lower end, and as worse by that
    for the upper end. One twin has no s, and no twin no R²: then there is no lower end (NaN), and the upper end is that
    of the gain over the other baselines.
    """
    if not many:
        _, _, high = interval(r2 - others)
        return np.full_like(high, np.nan), np.full_like(high, np.nan), high
    twin = np.maximum(twin, 0)
    middle, _, high = interval(r2 - np.fmax(others, twin))
    if many == 1:
        return middle, np.full_like(high, np.nan), interval(r2 - others)[2]
    each = np.stack([interval(r2[t::many] - twin[t::many])[0] for t in range(many)])
    reach = stats.t.ppf((1 + CONFIDENCE) / 2, many - 1) * each.std(axis=0, ddof=1) * np.sqrt(1 + 1 / many)
    low, high = (interval(r2 - np.fmax(others, twin + way * reach))[end] for way, end in ((1, 1), (-1, 2)))
    return middle, low, high


def _predicted(
    rows: np.ndarray, data: Answers, direction: Direction, number: int
) -> Iterator[tuple[int, int, Split, np.ndarray, np.ndarray]]:
    """Of each layer and each length that can be probed: its split, and targets and predictions, (prompt, target), of
    the prompts to test on."""
    splits = [data.split(at, number) for at in data.probed]
    targets = [data.targets(at, number) for at in data.probed]
    first = [data.different[at][0] for at in data.probed]
    for layer, features in enumerate(rows):
        seen = [features[at, own[s.train]] for at, own, s in zip(data.probed, first, splits, strict=True)]
        unseen = [features[at, own[s.test]] for at, own, s in zip(data.probed, first, splits, strict=True)]
        told = [own[s.train] for own, s in zip(targets, splits, strict=True)]
        if direction == "own":
            predicted = [ridge(*parts) for parts in zip(seen, told, unseen, strict=True)]
        else:
            predicted = _shared(seen, told, unseen)
        for at, split, own, said in zip(data.probed, splits, targets, predicted, strict=True):
            yield layer, at, split, own[split.test], said


def _shared(seen: list[np.ndarray], told: list[np.ndarray], unseen: list[np.ndarray]) -> list[np.ndarray]:
    """Predictions by length from one direction for all, each length about its own mean."""
    offset, level = ([part.mean(axis=0) for part in parts] for parts in (seen, told))

    def centred(parts: list[np.ndarray], means: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([part - mean for part, mean in zip(parts, means, strict=True)])

    predicted = ridge(centred(seen, offset), centred(told, level), centred(unseen, offset))
    ends = np.cumsum([len(part) for part in unseen])[:-1]
    return [mean + part for mean, part in zip(level, np.split(predicted, ends), strict=True)]


def _sums(targets: np.ndarray, predicted: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By target: weighted sums of (truth − prediction)² and of (truth − mean truth)²."""
    around = targets - np.average(targets, axis=0, weights=weight)
    return weight @ (targets - predicted) ** 2, weight @ around**2


def _ratio(above: np.ndarray | float, below: np.ndarray | float) -> np.ndarray:
    """above ÷ below, NaN where below is 0."""
    above, below = np.asarray(above, dtype=float), np.asarray(below, dtype=float)
    return np.divide(above, below, out=np.full(below.shape, np.nan), where=below > 0)
