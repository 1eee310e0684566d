"""What became of an answer, as far as the evidence decides it: one rule, by intervals, in one order.

Every step asks whether an interval lies on one side of a bar. Where it does not, the verdict is *undecided*, and the
reason says what would decide it. So two runs with different numbers of draws may differ in whether they decide, not in
what they decide, but for the errors that a 95 % interval allows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from squashlens.measure._splits import Answers
from squashlens.measure.answers import interval as wilson

READ, COLLAPSED, LENGTH, REPRESENTED, PARTLY, BASELINE, UNDECIDED = VERDICTS = (
    "read out",
    "collapsed",
    "given by length",
    "represented, not read out",
    "partly represented, not read out",
    "no more than a baseline",
    "undecided",
)
MARGIN = 0.05  # R² above the best baseline from which on a probe shows something; ours
HALF = 1 / 2
Said = tuple[str, str]  # verdict and reason


@dataclass(frozen=True)
class Evidence:
    """At one length: right answers of how many, pairs with the same bits of those with different right answers, and a
    function from names of probe variables (`r2_low`, …) to their values, NaN where there are none."""

    right: int
    draws: int
    same_bits: int
    pairs: int
    drawn: bool
    constant: bool
    prompts: int
    needed: int
    fit: int
    twins: int
    probe: Callable[[str], float]


def judged(evidence: Evidence, decodable: float) -> Said:
    """The first step that decides, or the first that cannot."""
    steps = (_read, _collapsed, _given, _represented)
    return next(said for step in steps if (said := step(evidence, decodable)) is not None)


def share(count: int, total: int, drawn: bool) -> tuple[float, float]:
    """Wilson's 95 % interval of a share; the share itself where nothing is drawn, so that every repetition is equal."""
    if not drawn:
        return count / total, count / total
    low, high = wilson(np.array([count / total]), total)
    return low.item(), high.item()


def _read(e: Evidence, decodable: float) -> Said | None:
    low, high = share(e.right, e.draws, e.drawn)
    said = f"{e.right} of {e.draws} answers are right"
    if low >= HALF:
        return READ, f"{said}."
    if high >= HALF:
        return UNDECIDED, f"{said}; the interval {_range(low, high)} includes 1/2: more draws would decide."
    return None


def _collapsed(e: Evidence, decodable: float) -> Said | None:
    if not e.pairs:
        return None
    low, high = share(e.same_bits, e.pairs, e.drawn)
    said = f"{e.same_bits} of {e.pairs} pairs with different right answers have the same bits"
    if low >= HALF:
        return COLLAPSED, f"{said}."
    if high >= HALF:
        return UNDECIDED, f"{said}; the interval {_range(low, high)} includes 1/2: more draws would decide."
    return None


def _given(e: Evidence, decodable: float) -> Said | None:
    if e.constant:
        if not e.drawn or e.draws >= e.fit:
            return LENGTH, "All prompts of this length have one right answer: what finds it shows nothing."
        return UNDECIDED, f"All {e.draws} draws have one right answer: {e.fit} draws would decide whether all have."
    low, high = e.probe("r2_length_low"), e.probe("r2_length_high")
    if low >= decodable:
        return LENGTH, f"The number of tokens alone predicts the answer (R² is {_range(low, high)})."
    if high >= decodable:
        return UNDECIDED, (
            f"R² from the number of tokens alone is {_range(low, high)}: whether it reaches {decodable:g} takes more "
            "draws."
        )
    return None


def _represented(e: Evidence, decodable: float) -> Said:
    low, high = e.probe("gain_low"), e.probe("gain_high")
    if np.isnan(e.probe("r2")):
        few = f"{e.prompts} different prompts among {e.draws} draws; a probe takes {e.needed}"
        rare = "Nearly all prompts have one right answer, so that R² is not known in half of the splits"
        return (
            UNDECIDED,
            f"{few if e.prompts < e.needed else rare}. More draws, longer sequences or a smaller fit= help.",
        )
    r2 = f"R² is {_range(e.probe('r2_low'), e.probe('r2_high'))}"
    if high < MARGIN:
        least = "" if np.isnan(low) else f"{_range(low, high)}, "
        return BASELINE, f"{r2}; less the best baseline's it is {least}below {MARGIN}."
    if not low > MARGIN:
        if e.twins < 2:
            return UNDECIDED, f"{r2}, with {e.twins} twins: at least 2 are needed to say how much of it is the model's."
        return UNDECIDED, (
            f"{r2}; less the best baseline's it is {_range(low, high)}, which includes {MARGIN}: more draws or more "
            "twins would decide."
        )
    said = f"{r2}; less the best baseline's it is {_range(low, high)}, above {MARGIN}"
    if e.probe("r2_low") >= decodable:
        return REPRESENTED, f"{said}."
    if e.probe("r2_high") < decodable:
        return PARTLY, f"{said}."
    return UNDECIDED, f"{said}. Whether R² reaches {decodable:g} takes more draws."


def _range(low: float, high: float) -> str:
    """Two numbers to two places, no zero with a minus sign."""
    return " to ".join(f"{value + 0:.2f}".replace("-", "−").replace("−0.00", "0.00") for value in (low, high))


def verdicts(
    data: Answers, right: np.ndarray, same_bits: np.ndarray, differ: np.ndarray, drawn: bool, twins: int,
    probe: Mapping[str, np.ndarray], decodable: float,
) -> list[Said]:  # fmt: skip
    """A verdict and its reason for each length; `right`, `same_bits`, `differ` (right answers) are (length, seed)."""

    def at_length(at: int) -> Callable[[str], float]:
        return lambda name: float(probe[name][at]) if name in probe else float("nan")

    return [
        judged(
            Evidence(
                int(right[at].sum()), right.shape[1], int((same_bits & differ)[at].sum()), int(differ[at].sum()), drawn,
                not data.varied[at], data.prompts[at], data.needed, data.fit, twins, at_length(at),
            ),
            decodable,
        )
        for at in range(len(data.lengths))
    ]  # fmt: skip
