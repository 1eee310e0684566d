"""The scores of probes and their baselines: R² in each split of the prompts, and intervals over splits."""

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import special  # `scipy.stats` takes a second to import

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


class Distinct(NamedTuple):
    """The distinct prompts of a length: the first sample of each, the prompt of each sample, and how often each is."""

    first_sample: np.ndarray
    prompt_of_sample: np.ndarray
    counts: np.ndarray


@dataclass(frozen=True)
class Split:
    """The training and test prompts of one length, as indices of distinct prompts, with weights of the test prompts.

    `at` is the index of the length. The weight of a test prompt is how often it was drawn, times how often the
    resampling of this split contains it. The targets, (prompt, target), are the right answer and that of the control
    task; `samples` has a sample of each distinct prompt.
    """

    at: int
    samples: np.ndarray
    train: np.ndarray
    test: np.ndarray
    weight: np.ndarray
    targets: np.ndarray

    def predict(self, features: np.ndarray) -> np.ndarray:
        """A ridge regression's predictions for the test prompts, (prompt, target), from features (sample, d)."""
        prompts = features[self.samples]
        return ridge(prompts[self.train], self.targets[self.train], prompts[self.test])

    def scores(self, predicted: np.ndarray) -> "Sums":
        """The weighted sums of squares of predictions for the test prompts, (prompt, target)."""
        truth = self.targets[self.test]
        about_mean = truth - np.average(truth, axis=0, weights=self.weight)
        return Sums(self.weight @ (truth - predicted) ** 2, self.weight @ about_mean**2)

    def share_right(self, predicted: np.ndarray) -> float:
        """The weighted share of test prompts whose prediction rounds to the right answer."""
        is_right = np.rint(predicted[:, 0]) == self.targets[self.test, 0]
        return float(np.average(is_right, weights=self.weight))


class Sums(NamedTuple):
    """Sums of (truth − prediction)² and of (truth − mean truth)², for each target."""

    residual: np.ndarray
    variation: np.ndarray

    @property
    def r2(self) -> np.ndarray:
        """1 − the quotient of the sums; NaN where the truth does not vary."""
        return 1 - _ratio(self.residual, self.variation)


@dataclass(frozen=True)
class ProbedAnswers:
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
    ) -> "ProbedAnswers":
        """The answers of questions, given by length and then seed, whose prompts have the token ids `ids`.

        Raises for answers that are not numbers, unless they are all the same.
        """
        table: Any = pd.DataFrame(list(questions))
        truths = table["truth"]
        # If all are the same it may be a word, since nothing can be learned about it.
        if truths.nunique() == 1:
            truths = pd.Series("0", index=table.index)
        elif not task.numeric or not truths.map(is_number).all():
            raise InputError(
                f"The right answers of the task {task.name!r} are not numbers.",
                "Probe a task whose answers are counts or digits.",
            )
        lengths = tuple(table["length"].unique().tolist())
        seeds = tuple(table["seed"].unique().tolist())
        shape = (len(lengths), len(seeds))
        _, prompt = np.unique(table["prompt"].tolist(), return_inverse=True)
        # An item's number is its place among the sorted symbols of all questions.
        symbols = np.unique(np.concatenate(table["items"].tolist()))
        item_numbers = []
        for _, items in table.groupby("length", sort=False)["items"]:
            item_numbers.append(np.searchsorted(symbols, items.tolist()))
        return cls(
            lengths=lengths,
            seeds=seeds,
            truth=truths.to_numpy(dtype=float).reshape(shape),
            prompt=prompt.reshape(shape),
            tokens=np.reshape(list(map(len, ids)), shape),
            items=tuple(item_numbers),
            n_train=n_train,
            splits=splits,
        )

    @property
    def prompts(self) -> np.ndarray:
        """The number of distinct prompts at each length."""
        return np.array([len(np.unique(row)) for row in self.prompt])

    @property
    def needed(self) -> int:
        """The number of distinct prompts that a probe needs at one length."""
        return self.n_train + TESTED

    @cached_property
    def varied(self) -> np.ndarray:
        """Whether the right answer varies between samples, for each length."""
        return np.ptp(self.truth, axis=1) > 0

    @cached_property
    def probed(self) -> list[int]:
        """The indices of the lengths with enough distinct prompts and varying answers."""
        is_probed = (self.prompts >= self.needed) & self.varied
        return np.flatnonzero(is_probed).tolist()

    @cached_property
    def different(self) -> list[Distinct]:
        """The distinct prompts of each length."""
        return [Distinct(*np.unique_all(row)[1:]) for row in self.prompt]

    def split(self, at: int, number: int) -> Split:
        """A numbered split at a length, the same for the model, the random models and the control task.

        Of the shuffled samples the first `n_train` distinct prompts train; all others test, resampled with replacement.
        A prompt that was drawn often comes early more often, and counts as often in the test. `at` is the index of the
        length, here and below.
        """
        distinct = self.different[at]
        rng = np.random.default_rng([number, self.lengths[at]])
        shuffled = rng.permutation(len(distinct.prompt_of_sample))
        order = pd.unique(distinct.prompt_of_sample[shuffled])
        train = order[: self.n_train]
        test = order[self.n_train :]
        resampled = rng.integers(len(test), size=len(test))
        n_resampled = np.bincount(resampled, minlength=len(test))
        truth = self.truth[at, distinct.first_sample]
        return Split(
            at=at,
            samples=distinct.first_sample,
            train=train,
            test=test,
            weight=distinct.counts[test] * n_resampled,
            targets=np.stack([truth, self.control(at, number)], axis=1),
        )

    def control(self, at: int, number: int) -> np.ndarray:
        """The target of the control task for each distinct prompt: Σ_i c(i, x_i), with each c(i, x) from N(0, 1)."""
        # Another stream than that of the split.
        rng = np.random.default_rng([number, self.lengths[at], 1])
        items = self.items[at][self.different[at].first_sample]  # (prompt, item)
        n_items = items.shape[1]
        n_symbols = max(of_length.max() for of_length in self.items) + 1
        c = rng.standard_normal((n_items, n_symbols))
        return c[np.arange(n_items), items].sum(axis=1)

    def of_samples(
        self, at: int, prompts: np.ndarray, values: np.ndarray
    ) -> np.ndarray:
        """The values of some distinct prompts, given by their indices, for each sample; NaN for other samples."""
        distinct = self.different[at]
        by_prompt = np.full(len(distinct.first_sample), np.nan)
        by_prompt[prompts] = values
        return by_prompt[distinct.prompt_of_sample]


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
    layers: np.ndarray, data: ProbedAnswers, numbers: range, label: str
) -> Scores:
    """The scores of probes on features of shape (layer, length · seed, d), for the splits with these numbers.

    The samples are those of `data`; `label` is that of the progress bar.
    """
    from threadpoolctl import threadpool_limits

    if not np.isfinite(layers).all():
        raise InputError(
            "Some representations are NaN or infinite, so that no probe can be fitted.",
            "Load the model with dtype='float32', and check its hooks and weights for values that are not finite.",
        )
    by_length = layers.reshape(
        len(layers), *data.truth.shape, -1
    )  # (…, length, seed, d)
    shape = (len(numbers), len(layers), len(data.lengths))
    r2 = np.full(shape, np.nan)
    control = np.full(shape, np.nan)
    right = np.full(shape, np.nan)
    overall = np.full(shape[:2], np.nan)
    predictions: list[np.ndarray] = []  # of the last layer, over (length, seed)
    # With many small fits, several threads are slower than one.
    with threadpool_limits(1):
        for place, number in enumerate(bar(numbers, desc=label, unit="split")):
            splits = [data.split(at, number) for at in data.probed]
            of_last_layer = np.full(data.truth.shape, np.nan)
            for layer, features in enumerate(by_length):
                sums = []
                for split in splits:
                    predicted = split.predict(features[split.at])
                    sums.append(split.scores(predicted))
                    cell = place, layer, split.at
                    r2[cell], control[cell] = sums[-1].r2
                    right[cell] = split.share_right(predicted)
                    # Each layer replaces what the one before it left here.
                    of_last_layer[split.at] = data.of_samples(
                        split.at, split.test, predicted[:, 0]
                    )
                if sums:  # R² over all lengths has the sums over all of them
                    overall[place, layer] = Sums(*np.sum(sums, axis=0)).r2[0]
            predictions.append(of_last_layer)
    # A split predicts its test prompts only.
    n_predictions = (~np.isnan(predictions)).sum(axis=0)
    mean_prediction = _ratio(np.nansum(predictions, axis=0), n_predictions)
    return Scores(r2, control, right, overall, mean_prediction)


def of_length(data: ProbedAnswers) -> np.ndarray:
    """R² of a prediction from the number of tokens alone, (split, length).

    The prediction is the mean answer of the training prompts with this number of tokens, interpolated between numbers.
    """
    r2 = np.full((data.splits, len(data.lengths)), np.nan)
    for number, at in product(range(data.splits), data.probed):
        split = data.split(at, number)
        tokens = data.tokens[at, split.samples]
        truth = split.targets[split.train, 0]
        mean_truth: Any = pd.Series(truth).groupby(tokens[split.train]).mean()
        predicted = np.interp(tokens[split.test], mean_truth.index, mean_truth)
        # The first target is the right answer.
        r2[number, at] = split.scores(predicted[:, None]).r2[0]
    return r2


def interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and ends of the middle 95 % over splits (the first axis); NaN where at least half of the splits are NaN."""
    is_known = np.isnan(values).mean(axis=0) < 1 / 2
    known = values[:, is_known]
    tail = (1 - LEVEL) / 2
    mean = np.full(values.shape[1:], np.nan)
    low = mean.copy()
    high = mean.copy()
    if is_known.any():
        mean[is_known] = np.nanmean(known, axis=0)
        low[is_known] = np.nanquantile(known, tail, axis=0)
        high[is_known] = np.nanquantile(known, 1 - tail, axis=0)
    return mean, low, high


def gains(
    r2: np.ndarray, others: np.ndarray, r2_random: np.ndarray, many: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """R² minus that of the best baseline: its mean over splits, and the ends of its 95 % interval.

    Arrays have the splits as their first axis, and `many` is the number T of random models. `others` is the best R² of
    the baselines that need no random model; `r2_random` is that of random model s mod `many` in split s. The interval
    allows for further draws of random weights: with g_t the mean of R² − max(0, R²_random) over the splits of random
    model t, and s their standard deviation, g of one more random model is within t_{0.975, T−1} · s · √(1 + 1/T) of the
    mean. The R² of random models is raised by this amount for the lower end, and reduced by it for the upper. With
    fewer than two random models the lower end is NaN, and the upper end is that of the gain over the other baselines.
    """
    # The best baseline is no less than `others`, so that the gain over these is an upper end.
    if not many:
        _, _, high = interval(r2 - others)
        unknown = np.full_like(high, np.nan)
        return unknown, unknown.copy(), high
    r2_random = np.maximum(r2_random, 0)
    mean, _, _ = interval(r2 - np.fmax(others, r2_random))
    if many == 1:
        _, _, high = interval(r2 - others)
        return mean, np.full_like(high, np.nan), high
    gain_of_each = []
    for t in range(many):
        gain, _, _ = interval(r2[t::many] - r2_random[t::many])
        gain_of_each.append(gain)
    # How far one more random model may be from those that were drawn.
    quantile = special.stdtrit(many - 1, (1 + LEVEL) / 2)
    reach = quantile * np.std(gain_of_each, axis=0, ddof=1) * np.sqrt(1 + 1 / many)
    _, low, _ = interval(r2 - np.fmax(others, r2_random + reach))
    _, _, high = interval(r2 - np.fmax(others, r2_random - reach))
    return mean, low, high


def _ratio(
    numerator: np.ndarray | float, denominator: np.ndarray | float
) -> np.ndarray:
    """The quotient of two arrays, NaN where the denominator is 0."""
    numerator = np.asarray(numerator, dtype=float)
    denominator = np.asarray(denominator, dtype=float)
    quotient = np.full(denominator.shape, np.nan)
    return np.divide(numerator, denominator, out=quotient, where=denominator > 0)
