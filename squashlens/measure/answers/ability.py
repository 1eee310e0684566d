"""Whether a model can do a task at all: its answers to short questions, against chance, with an exact interval.

Only then can wrong answers to longer questions be an effect of the length. A model that answers wrongly from the
shortest length on has nothing to lose.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from squashlens.records.results import Variable
from squashlens.theory.statistics.ranks import share_interval
from squashlens.theory.statistics.trends import with_ends

HALF = 1 / 2  # least share of right answers with which a model counts as able; our choice
ABILITY = ("able_reason", "baseline", "baseline_low", "baseline_high", "chance", "baseline_questions")
THEN = {
    "yes": "the model can do this task at short lengths.",
    "no": "the model cannot do this task at short lengths, so that longer lengths cannot be judged.",
    "undecided": "it is undecided whether the model can do this task at short lengths, so that longer lengths cannot "
    "be judged.",
}


class Ability(NamedTuple):
    """The verdict and its reason; the share of right answers with its interval, the chance level, and the number."""

    able: str
    reason: str
    share: float
    low: float
    high: float
    chance: float
    questions: int


def judge_ability(answered: Sequence[tuple[bool, str]]) -> Ability:
    """The verdict from different short questions: whether each was answered correctly, and its right answer.

    Chance is the largest share of the questions with one right answer, which a constant answer gets. The model is able
    if the whole interval of Clopper and Pearson is above both chance and one half, and not if it is below one of them.
    """
    if not answered:
        reason = f"No short questions were asked: {THEN['undecided']}"
        return Ability("undecided", reason, np.nan, np.nan, np.nan, np.nan, 0)
    right, truths = zip(*answered, strict=True)
    chance = max(truths.count(truth) for truth in truths) / len(truths)
    share, low, high = map(float, share_interval(torch.tensor(right).double()))
    needed = max(chance, HALF)
    able = "yes" if low > needed else "no" if high < needed else "undecided"
    reason = (
        f"{sum(right)} of {len(right)} short questions are answered correctly (95 % interval {low:.2f} to {high:.2f}; "
        f"a constant answer is right for {chance:.2f}): {THEN[able]}"
    )
    return Ability(able, reason, share, low, high, chance, len(right))


def ability_variables(found: Sequence[Ability], over: tuple[str, ...]) -> dict[str, Variable]:
    """The variables of a result, for each of several abilities along one dimension; scalars without a dimension.

    The verdict itself is a coordinate, so that every row of a table has it.
    """
    _, reason, *ends, chance, questions = (np.array(part) for part in zip(*found, strict=True))
    variables: dict[str, Variable] = {
        "able_reason": (over, reason.astype(object), "what decides whether the model can do the task", "text"),
        **with_ends("baseline", over, ends, "share of right answers to short questions"),
        "chance": (over, chance, "largest share of the short questions that a constant answer gets right", "1"),
        "baseline_questions": (over, questions, "number of different short questions", "questions"),
    }
    return variables if over else {name: (over, one[1][0], *one[2:]) for name, one in variables.items()}
