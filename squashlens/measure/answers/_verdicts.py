"""The verdict on the answers at one length: a fixed sequence of decisions, each based on an interval.

Each step asks whether an interval is on one side of a threshold. If it includes the threshold, the verdict is
*undecided*, and the reason says what would decide it. Two runs with different numbers of samples may therefore differ
in whether they decide, but not in what they decide, apart from the errors that a 95 % interval allows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from squashlens.measure.answers._scores import Answers
from squashlens.measure.answers.frequencies import interval as wilson

READ, COLLAPSED, LENGTH, REPRESENTED, PARTLY, BASELINE, UNDECIDED = VERDICTS = (
    "read out",
    "collapsed",
    "given by length",
    "represented, not read out",
    "partly represented, not read out",
    "no more than a baseline",
    "undecided",
)
MARGIN = 0.05  # least gain in R² over the best baseline that counts; our choice
HALF = 1 / 2
Judgement = tuple[str, str]  # verdict and reason


@dataclass(frozen=True)
class Evidence:
    """The evidence at one length.

    `right` of `samples` answers are right. Of the `pairs` with different right answers, `same_bits` are bit-identical.
    `random` says whether the task has random items, `constant` whether all right answers are the same. There are
    `prompts` distinct prompts, and a probe needs `needed` of them, including `n_train` for training. `probe` gives the
    value of a probe variable by name (`r2_low`, …), NaN if there is none.
    """

    right: int
    samples: int
    same_bits: int
    pairs: int
    random: bool
    constant: bool
    prompts: int
    needed: int
    n_train: int
    n_random_models: int
    probe: Callable[[str], float]


def judged(evidence: Evidence, r2_threshold: float) -> Judgement:
    """The judgement of the first step that decides, or that is undecided."""
    e, differing = evidence, "pairs with different right answers are bit-identical"
    found = _at_least_half(READ, e.right, e.samples, e.random, "answers are right")
    if found is None and e.pairs:
        found = _at_least_half(COLLAPSED, e.same_bits, e.pairs, e.random, differing)
    return found or _given(e, r2_threshold) or _represented(e, r2_threshold)


def share(count: int, total: int, random: bool) -> tuple[float, float]:
    """Wilson's 95 % interval of a share; the share itself for a task without random items, which always repeats it."""
    if not random:
        return count / total, count / total
    low, high = wilson(np.array([count / total]), total)
    return low.item(), high.item()


def _at_least_half(verdict: str, count: int, total: int, random: bool, what: str) -> Judgement | None:
    """The verdict if the interval of the share is at least 1/2, undecided if it includes 1/2, else None."""
    low, high = share(count, total, random)
    text = f"{count} of {total} {what}"
    if low >= HALF:
        return verdict, f"{text}."
    if high >= HALF:
        return UNDECIDED, f"{text}; the interval {_range(low, high)} includes 1/2. More samples would decide."
    return None


def _given(e: Evidence, r2_threshold: float) -> Judgement | None:
    """Step 3: whether the length determines the right answer."""
    if e.constant:
        if not e.random or e.samples >= e.n_train:
            return LENGTH, "All prompts of this length have the same right answer, so that a probe shows nothing."
        return UNDECIDED, (
            f"All {e.samples} samples have the same right answer. {e.n_train} samples would decide whether all prompts "
            "have it."
        )
    low, high = e.probe("r2_length_low"), e.probe("r2_length_high")
    if low >= r2_threshold:
        return LENGTH, f"The number of tokens alone predicts the answer (R² is {_range(low, high)})."
    if high >= r2_threshold:
        return UNDECIDED, (
            f"R² from the number of tokens alone is {_range(low, high)}. More samples would decide whether it reaches "
            f"{r2_threshold:g}."
        )
    return None


def _represented(e: Evidence, r2_threshold: float) -> Judgement:
    """Steps 4 to 6: whether a probe finds more of the right answer than the best baseline, and how much."""
    low, high = e.probe("gain_low"), e.probe("gain_high")
    if np.isnan(e.probe("r2")):
        why = "Nearly all prompts have the same right answer, so that R² is undefined in at least half of the splits"
        if e.prompts < e.needed:
            why = f"{e.samples} samples have {e.prompts} distinct prompts; a probe needs {e.needed}"
        return UNDECIDED, f"{why}. Use more samples, longer sequences or a smaller n_train=."
    r2 = f"R² is {_range(e.probe('r2_low'), e.probe('r2_high'))}"
    if high < MARGIN:
        ends = "" if np.isnan(low) else f"{_range(low, high)}, "
        return BASELINE, f"{r2}; its gain over the best baseline is {ends}below {MARGIN}."
    if not low > MARGIN:
        if e.n_random_models < 2:
            return UNDECIDED, (
                f"{r2}, with {e.n_random_models} models with random weights; its gain over random weights needs at "
                "least 2."
            )
        return UNDECIDED, (
            f"{r2}; its gain over the best baseline is {_range(low, high)}, which includes {MARGIN}. More samples or "
            "more random models would decide."
        )
    text = f"{r2}; its gain over the best baseline is {_range(low, high)}, above {MARGIN}"
    if e.probe("r2_low") >= r2_threshold:
        return REPRESENTED, f"{text}."
    if e.probe("r2_high") < r2_threshold:
        return PARTLY, f"{text}."
    return UNDECIDED, f"{text}. More samples would decide whether R² reaches {r2_threshold:g}."


def _range(low: float, high: float) -> str:
    """A range with two decimal places, without a minus sign before zero."""
    return " to ".join(f"{value + 0:.2f}".replace("-", "−").replace("−0.00", "0.00") for value in (low, high))


def verdicts(
    data: Answers, right: np.ndarray, same_bits: np.ndarray, differ: np.ndarray, random: bool, n_random_models: int,
    probe: Mapping[str, np.ndarray], r2_threshold: float,
) -> list[Judgement]:  # fmt: skip
    """The verdict and its reason for each length; `right`, `same_bits` and `differ` are over (length, seed)."""

    def at_length(at: int) -> Callable[[str], float]:
        return lambda name: float(probe[name][at]) if name in probe else float("nan")

    return [
        judged(
            Evidence(
                int(right[at].sum()), right.shape[1], int((same_bits & differ)[at].sum()), int(differ[at].sum()),
                random, not data.varied[at], data.prompts[at], data.needed, data.n_train, n_random_models,
                at_length(at),
            ),
            r2_threshold,
        )
        for at in range(len(data.lengths))
    ]  # fmt: skip
