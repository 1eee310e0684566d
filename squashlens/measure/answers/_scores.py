"""The scores of probes and their baselines: R² in each split of the prompts, and intervals over splits."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special  # `scipy.stats` takes a second to import

from squashlens._typing import Direction
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.sequences import Ids
from squashlens.tasks import Question, Task
from squashlens.tasks.reading import is_number
from squashlens.theory.statistics.ranks import LEVEL
from squashlens.theory.statistics.ridge import ridge

N_TRAIN = 64  # prompts of a length that each probe is fitted to
TESTED = 16  # least number of prompts to test on; with fewer, R² is mostly chance
SPLITS = 100  # number of random splits, enough to estimate the 2.5 % quantiles


@dataclass(frozen=True)
class Split:
    """The training and test prompts of one length, as indices of distinct prompts, with weights of the test prompts.

    The weight of a test prompt is how often it was drawn, times how often the resampling of this split contains it.
    """

    train: np.ndarray
    test: np.ndarray
    weight: np.ndarray


@dataclass(frozen=True)
class Answers:
    """The right answers of questions, and how probes are fitted to them.

    Over (length, seed): `truth`, `prompt` (an index that equal prompts share) and `tokens`, the number of tokens.
    `items` has the items of each question as numbers, (seed, place) for each length.
    """

    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    truth: np.ndarray
    prompt: np.ndarray
    tokens: np.ndarray
    items: tuple[np.ndarray, ...]
    n_train: int = N_TRAIN
    splits: int = SPLITS

    @classmethod
    def of(
        cls,
        task: Task,
        questions: tuple[Question, ...],
        ids: list[Ids],
        n_train: int,
        splits: int = SPLITS,
    ) -> "Answers":
        """The answers of questions. Raises for answers that are not numbers, unless they are all the same."""
        one = (
            len({q.truth for q in questions}) == 1
        )  # then it may be a word, since nothing can be learned about it
        if not one and not (
            task.numeric and all(is_number(q.truth) for q in questions)
        ):
            raise InputError(
                f"The right answers of the task {task.name!r} are not numbers.",
                "Probe a task whose answers are counts or digits.",
            )
        lengths, seeds = (
            tuple(dict.fromkeys(getattr(q, part) for q in questions))
            for part in ("length", "seed")
        )
        shape = (len(lengths), len(seeds))
        truth = np.array(
            [0 if one else int(q.truth) for q in questions], dtype=float
        ).reshape(shape)
        _, prompt = np.unique([q.prompt for q in questions], return_inverse=True)
        kinds = {
            item: place
            for place, item in enumerate(
                sorted({item for q in questions for item in q.items})
            )
        }
        rows = [[kinds[item] for item in q.items] for q in questions]
        items = tuple(
            np.array(rows[at * shape[1] : (at + 1) * shape[1]])
            for at in range(shape[0])
        )
        return cls(
            lengths,
            seeds,
            truth,
            prompt.reshape(shape),
            np.array(list(map(len, ids))).reshape(shape),
            items,
            n_train,
            splits,
        )

    @property
    def prompts(self) -> list[int]:
        """The number of distinct prompts at each length."""
        return [len(np.unique(row)) for row in self.prompt]

    @property
    def needed(self) -> int:
        """The number of distinct prompts that a probe needs at one length."""
        return self.n_train + TESTED

    @cached_property
    def varied(self) -> list[bool]:
        """Whether the right answer varies between samples, for each length."""
        return [bool(np.ptp(row) > 0) for row in self.truth]

    @cached_property
    def probed(self) -> list[int]:
        """The indices of the lengths with enough distinct prompts and varying answers."""
        return [
            at
            for at, many in enumerate(self.prompts)
            if many >= self.needed and self.varied[at]
        ]

    @cached_property
    def different(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each length: the first sample of each distinct prompt, the prompt of each sample, and their counts."""
        return [
            np.unique(row, return_index=True, return_inverse=True, return_counts=True)[
                1:
            ]
            for row in self.prompt
        ]

    def split(self, at: int, number: int) -> Split:
        """A numbered split at a length, the same for the model, the random models and the control task.

        Of the shuffled samples the first `n_train` distinct prompts train; all others test, resampled with replacement.
        """
        _, prompt, drawn = self.different[at]
        rng = np.random.default_rng([number, self.lengths[at]])
        order = prompt[rng.permutation(len(prompt))]
        distinct, first = np.unique(order, return_index=True)
        order = distinct[np.argsort(first)]
        train, test = order[: self.n_train], order[self.n_train :]
        again = np.bincount(
            rng.integers(len(test), size=len(test)), minlength=len(test)
        )
        return Split(train, test, drawn[test] * again)

    def control(self, at: int, number: int) -> np.ndarray:
        """The target of the control task for each distinct prompt: Σ_i c(i, x_i), with each c(i, x) from N(0, 1)."""
        rng = np.random.default_rng([number, self.lengths[at], 1])
        items = self.items[at][self.different[at][0]]
        places = np.arange(items.shape[1])
        table = rng.standard_normal(
            (items.shape[1], max(part.max() for part in self.items) + 1)
        )
        return table[places, items].sum(axis=1)

    def targets(self, at: int, number: int) -> np.ndarray:
        """The targets of distinct prompts, (prompt, target): the right answer, and that of the control task."""
        return np.stack(
            [self.truth[at, self.different[at][0]], self.control(at, number)], axis=1
        )

    def of_samples(self, at: int, test: np.ndarray, values: np.ndarray) -> np.ndarray:
        """The values of some distinct prompts, for each sample; NaN for samples of the other prompts."""
        first, prompt, _ = self.different[at]
        by_prompt = np.full(len(first), np.nan)
        by_prompt[test] = values
        return by_prompt[prompt]


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


def score_probes(
    layers: np.ndarray, data: Answers, direction: Direction, numbers: range, label: str
) -> Scores:
    """The scores of probes on features of shape (layer, length · seed, d), for the splits with these numbers."""
    from threadpoolctl import threadpool_limits

    if not np.isfinite(layers).all():
        raise InputError(
            "Some representations are NaN or infinite, so that no probe can be fitted.",
            "Load the model with dtype='float32', and check its hooks and weights for values that are not finite.",
        )
    rows = layers.reshape(len(layers), *data.truth.shape, -1)
    r2, control, right = np.full(
        (3, len(numbers), len(layers), len(data.lengths)), np.nan
    )
    residual, variation = np.zeros((2, len(numbers), len(layers)))
    total, times = np.zeros(data.truth.shape), np.zeros(data.truth.shape)
    progress_bar = bar(numbers, desc=label, unit="split")
    with threadpool_limits(
        1
    ):  # with many small fits, several threads are slower than one
        for place, number in enumerate(progress_bar):
            for layer, at, split, targets, predicted in _predict(
                rows, data, direction, number
            ):
                squares, about_mean = _sums(targets, predicted, split.weight)
                here = place, layer, at
                r2[here], control[here] = 1 - _ratio(squares, about_mean)
                right[here] = np.average(
                    np.rint(predicted[:, 0]) == targets[:, 0], weights=split.weight
                )
                residual[place, layer] += squares[0]
                variation[place, layer] += about_mean[0]
                if layer == len(layers) - 1:
                    by_sample = data.of_samples(at, split.test, predicted[:, 0])
                    total[at] += np.nan_to_num(by_sample)
                    times[at] += ~np.isnan(by_sample)
    return Scores(
        r2, control, right, 1 - _ratio(residual, variation), _ratio(total, times)
    )


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
            found[number, at] = (
                1
                - _ratio(*_sums(truth[split.test][:, None], predicted, split.weight))[0]
            )
    return found


def interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and ends of the middle 95 % over splits (the first axis); NaN where at least half of the splits are NaN."""
    known = np.isnan(values).mean(axis=0) < 1 / 2
    out = (1 - LEVEL) / 2
    ends = np.full((3, *values.shape[1:]), np.nan)
    if known.any():
        kept = values[:, known]
        ends[:, known] = (
            np.nanmean(kept, axis=0),
            *np.nanquantile(kept, [out, 1 - out], axis=0),
        )
    return ends[0], ends[1], ends[2]


def gains(
    r2: np.ndarray, others: np.ndarray, r2_random: np.ndarray, many: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """R² minus that of the best baseline: its mean over splits, and the ends of its 95 % interval.

    `others` is the best R² of the baselines that need no random model; `r2_random` is that of random model s mod `many`
    in split s. The interval allows for further draws of random weights: with g_t the mean of R² − max(0, R²_random)
    over the splits of random model t, and s their standard deviation, g of one more random model is within t_{0.975,
    T−1} · s · √(1 + 1/T) of the mean. The R² of random models is raised by this amount for the lower end, and reduced
    by it for the upper. With fewer than two random models the lower end is NaN, and the upper end is that of the gain
    over the other baselines.
    """
    if not many:
        _, _, high = interval(r2 - others)
        return np.full_like(high, np.nan), np.full_like(high, np.nan), high
    r2_random = np.maximum(r2_random, 0)
    middle, _, high = interval(r2 - np.fmax(others, r2_random))
    if many == 1:
        return middle, np.full_like(high, np.nan), interval(r2 - others)[2]
    each = np.stack(
        [interval(r2[t::many] - r2_random[t::many])[0] for t in range(many)]
    )
    reach = (
        special.stdtrit(many - 1, (1 + LEVEL) / 2)
        * each.std(axis=0, ddof=1)
        * np.sqrt(1 + 1 / many)
    )
    low, high = (
        interval(r2 - np.fmax(others, r2_random + way * reach))[end]
        for way, end in ((1, 1), (-1, 2))
    )
    return middle, low, high


def _predict(
    rows: np.ndarray, data: Answers, direction: Direction, number: int
) -> Iterator[tuple[int, int, Split, np.ndarray, np.ndarray]]:
    """For each layer and probed length: the split, and targets and predictions (prompt, target) of its test set."""
    each = [
        (at, data.split(at, number), data.targets(at, number), data.different[at][0])
        for at in data.probed
    ]
    fitted = [own[split.train] for _, split, own, _ in each]
    for layer, features in enumerate(rows):
        seen = [features[at, first[split.train]] for at, split, _, first in each]
        unseen = [features[at, first[split.test]] for at, split, _, first in each]
        if direction == "own":
            predicted = [
                ridge(*parts) for parts in zip(seen, fitted, unseen, strict=True)
            ]
        else:
            predicted = _predict_shared(seen, fitted, unseen)
        for (at, split, own, _), values in zip(each, predicted, strict=True):
            yield layer, at, split, own[split.test], values


def _predict_shared(
    seen: list[np.ndarray], targets: list[np.ndarray], unseen: list[np.ndarray]
) -> list[np.ndarray]:
    """Predictions for each length from one direction that all lengths share, with an offset for each length."""
    offset, level = ([part.mean(axis=0) for part in parts] for parts in (seen, targets))

    def centre(parts: list[np.ndarray], means: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(
            [part - mean for part, mean in zip(parts, means, strict=True)]
        )

    predicted = ridge(
        centre(seen, offset), centre(targets, level), centre(unseen, offset)
    )
    ends = np.cumsum([len(part) for part in unseen])[:-1]
    return [
        mean + part for mean, part in zip(level, np.split(predicted, ends), strict=True)
    ]


def _sums(
    targets: np.ndarray, predicted: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Weighted sums of (truth − prediction)² and of (truth − mean truth)², for each target."""
    about_mean = targets - np.average(targets, axis=0, weights=weight)
    return weight @ (targets - predicted) ** 2, weight @ about_mean**2


def _ratio(
    numerator: np.ndarray | float, denominator: np.ndarray | float
) -> np.ndarray:
    """The quotient of two arrays, NaN where the denominator is 0."""
    above, below = (
        np.asarray(numerator, dtype=float),
        np.asarray(denominator, dtype=float),
    )
    return np.divide(above, below, out=np.full(below.shape, np.nan), where=below > 0)
