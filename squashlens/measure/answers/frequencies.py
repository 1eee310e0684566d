"""Answers to questions as a labelled result: parsed, compared with the right answers, and counted.

Answers to short questions say whether a model can do a task at all, against chance, with an exact interval. Only then
can wrong answers to longer questions be an effect of the length.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import xarray as xr
from scipy import special

from squashlens._typing import short_repr
from squashlens.checks.arguments import validated
from squashlens.checks.results import dims_by_name, require
from squashlens.errors import InputError
from squashlens.records.joining import without_padding
from squashlens.records.labels import Variable, dataset_of
from squashlens.records.provenance import joined_along, provenance
from squashlens.remarks import remark
from squashlens.tasks import Question, Reading, Task
from squashlens.tasks.reading import WHY, is_number
from squashlens.tasks.task import SHORT
from squashlens.theory.statistics.ranks import LEVEL, share_interval, wilson
from squashlens.theory.statistics.trends import with_ends


@dataclass(frozen=True)
class Answer:
    """The text of an answer, whether the model ended it, and the numbers of tokens of its prompt and of itself."""

    text: str
    ended: bool
    prompt_tokens: int = 0
    answer_tokens: int = 0


UNREAD = tuple(why for why in WHY if why != "read")
OVER = ("mode", "length", "seed")


# More than sixty lines, since most of them are variables of the result.
def score_answers(
    task: Task,
    answers: Mapping[Question, Answer],
    facts: Mapping[str, Any],
    *,
    prefill: bool = False,
    short: Mapping[Question, Answer] | None = None,
) -> xr.Dataset:
    """The Dataset of `evaluate` from one answer for each mode, length and seed, in that order.

    `prefill` says that the prompts end with the first words of the answer, which are parsed with it. `short` has the
    answers to the short questions of the baseline; if it is None, these are the short questions of `answers`.
    """
    modes, lengths, seeds = (
        list(dict.fromkeys(getattr(question, over) for question in answers))
        for over in OVER
    )
    shape = (len(modes), len(lengths), len(seeds))
    if not answers or [(q.mode, q.length, q.seed) for q in answers] != list(
        product(modes, lengths, seeds)
    ):
        raise InputError(
            "answers= does not have one answer for each mode, length and seed, in that order.",
            "Give an answer for every question, in order.",
        )
    lead = f"{task.opening} " if prefill and task.opening else ""

    def understood(question: Question, answer: Answer) -> Reading:
        return task.understood(question, lead + answer.text, answer.ended)

    readings = [understood(question, answer) for question, answer in answers.items()]
    few = (
        {q: answer for q, answer in answers.items() if q.length <= SHORT}
        if short is None
        else short
    )
    baseline = {
        (q.mode, q.prompt): (understood(q, answer).value == q.truth, q.truth)
        for q, answer in few.items()
    }
    able = [
        judge_ability([right for (mode, _), right in baseline.items() if mode == one])
        for one in modes
    ]

    def table(values: Iterable[Any], kind: Any = object) -> np.ndarray:
        return np.array(list(values), dtype=kind).reshape(shape)

    said, questions = answers.values(), answers.keys()
    ended = table(
        (
            task.answer_in(q, lead + answer.text, answer.ended)[1]
            for q, answer in answers.items()
        ),
        bool,
    )
    prompts = table(question.prompt for question in questions)
    truth, value = (
        table(question.truth for question in questions),
        table(reading.value for reading in readings),
    )
    why = table(reading.why for reading in readings)
    right = (value == truth) & (why == "read")
    as_asked = table((reading.as_asked for reading in readings), bool)
    error = (
        np.vectorize(_error, otypes=[float])(value, truth)
        if task.numeric
        else np.full(shape, np.nan)
    )
    parsed = pd.DataFrame(
        error.reshape(-1, len(seeds)).T
    )  # in which answers without a value are left out
    first, median, third = (
        parsed.quantile([0.25, 0.5, 0.75]).to_numpy().reshape(3, *shape[:2])
    )
    different = [
        [len(set(cell)) for cell in row] for row in prompts
    ]  # a task may draw one sequence for several seeds
    unread = np.stack([(why == reason).mean(axis=-1) for reason in UNREAD], axis=-1)
    cell, tokens = OVER[:2], "tokens"
    found: dict[str, Variable] = {
        "prompt": (OVER, prompts, "prompt", "text"),
        "answer": (
            OVER,
            table(answer.text.replace("\0", "␀") for answer in said),
            "answer of the model",
            "text",
        ),
        "value": (OVER, value, "value parsed from the answer; empty if none", "text"),
        "truth": (OVER, truth, "right answer", "text"),
        "reading": (OVER, why, "'read', or the reason why no value was parsed", "text"),
        "ended": (
            OVER,
            ended,
            "whether the answer ended, by itself or at a new question",
            "1",
        ),
        "as_asked": (
            OVER,
            as_asked,
            "whether a value was parsed and given in the requested form",
            "1",
        ),
        "right": (OVER, right, "whether the parsed value is the right answer", "1"),
        "error": (OVER, error, "|parsed value − right answer|", "items"),
        "prompt_tokens": (
            OVER,
            table((a.prompt_tokens for a in said), int),
            "tokens of the prompt",
            tokens,
        ),
        "answer_tokens": (
            OVER,
            table((a.answer_tokens for a in said), int),
            "tokens of the answer",
            tokens,
        ),
        **with_ends(
            "accuracy",
            cell,
            _share(right),
            "share of right answers (lenient); unread answers are wrong",
        ),
        **with_ends(
            "accuracy_strict",
            cell,
            _share(right & as_asked),
            "share of right answers in the requested form",
        ),
        "mean_error": (
            cell,
            parsed.mean().to_numpy().reshape(shape[:2]),
            "mean error of the parsed answers",
            "items",
        ),
        "median_error": (cell, median, "median error of the parsed answers", "items"),
        "error_q1": (
            cell,
            first,
            "first quartile of the error of the parsed answers",
            "items",
        ),
        "error_q3": (
            cell,
            third,
            "third quartile of the error of the parsed answers",
            "items",
        ),
        "unread": (
            (*cell, "why"),
            unread,
            "share of answers without a parsed value, by reason",
            "1",
        ),
        "prompts": (cell, different, "number of distinct prompts", "prompts"),
        **ability_variables(able, OVER[:1]),
    }
    if not (why == "read").any():
        asked, told = next(iter(answers.items()))
        longer = (
            "" if ended.all() else "a larger max_new_tokens= (not all answers ended), "
        )
        remark(
            f"No answer to the task {task.name!r} could be read. After {short_repr(asked.prompt)} the model said "
            f"{short_repr(told.text)}, which is read as: {WHY[readings[0].why]}. Use {longer}n_examples=, "
            "prefill=True, or a task in the words that this model was trained on, of `squashlens.tasks.names()` or a "
            "`Task` of your own."
        )
    coords: dict[str, Any] = {
        "mode": modes,
        "length": lengths,
        "seed": seeds,
        "why": list(UNREAD),
    }
    coords["able"] = ("mode", [one.able for one in able])
    return dataset_of(
        f"answers to {task.name}", coords, found, {**facts, "task": describe(task)}
    )


def describe(task: Task) -> dict[str, Any]:
    """The facts that the provenance states about a task."""
    own = {
        "name": task.name,
        "template": task.template,
        "opening": task.opening,
        "source": task.source,
    }
    # A reader that is no function has no name; the memory address in its repr changes between runs.
    reader = getattr(task.read, "__name__", None) or re.sub(
        r" at 0x[0-9a-fA-F]+", "", repr(task.read)
    )
    return own | {"read_as": reader, "examples": task.examples}


HALF = (
    1 / 2
)  # least share of right answers with which a model counts as able; our choice
THEN = {
    "yes": "the model can do this task at short lengths.",
    "no": "the model cannot do this task at short lengths, so that longer lengths cannot be judged.",
    "undecided": "it is undecided whether the model can do this task at short lengths, so that longer lengths cannot "
    "be judged.",
}


class Ability(NamedTuple):
    """The verdict and its reason; the share of right answers with its interval, the chance level, and the number."""

    able: str
    able_reason: str
    baseline: float
    baseline_low: float
    baseline_high: float
    chance: float
    baseline_questions: int


def judge_ability(answered: Sequence[tuple[bool, str]]) -> Ability:
    """The verdict from different short questions: whether each was answered correctly, and its right answer.

    Chance is the largest share of the questions with one right answer, which a constant answer gets. The model is able
    if the whole interval of Clopper and Pearson is above both chance and one half, and not if it is below one half, or
    if a constant answer is right more often by the exact sign test, at 2.5 % divided by the number of constant answers.
    """
    if not answered:
        reason = f"No short questions were asked: {THEN['undecided']}"
        return Ability("undecided", reason, np.nan, np.nan, np.nan, np.nan, 0)
    right, truths = map(np.array, zip(*answered, strict=True))
    constant = (
        truths == np.unique(truths)[:, None]
    )  # over (constant answer, question): whether it is right
    chance = float(constant.mean(axis=1).max())
    share, low, high = map(float, share_interval(torch.from_numpy(right).double()))
    lost, gained = (constant & ~right).sum(axis=1), (right & ~constant).sum(axis=1)
    beaten = (
        special.bdtr(gained, lost + gained, HALF).min() * len(constant)
        < (1 - LEVEL) / 2
    )
    able = (
        "yes"
        if low > max(chance, HALF)
        else "no"
        if high < HALF or beaten
        else "undecided"
    )
    reason = (
        f"{sum(right)} of {len(right)} short questions are answered correctly (95 % interval {low:.2f} to {high:.2f}; "
        f"the best constant answer is right for {chance:.2f}): {THEN[able]}"
    )
    return Ability(able, reason, share, low, high, chance, len(right))


def ability_variables(
    found: Sequence[Ability], over: tuple[str, ...]
) -> dict[str, Variable]:
    """The variables of a result, but for the verdict: it is a coordinate, so that every row of a table has it."""
    _, reason, *ends, chance, questions = (
        np.array(part) for part in zip(*found, strict=True)
    )
    return {
        "able_reason": (
            over,
            reason.astype(object),
            "what decides whether the model can do the task",
            "text",
        ),
        **with_ends(
            "baseline", over, ends, "share of right answers to short questions"
        ),
        "chance": (
            over,
            chance,
            "largest share of the short questions that a constant answer gets right",
            "1",
        ),
        "baseline_questions": (
            over,
            questions,
            "number of different short questions",
            "questions",
        ),
    }


@validated
def answer_frequencies(result: xr.Dataset) -> xr.Dataset:
    """How often each value was answered, and how often it was the right answer (figures 4 and 7).

    Args:
        result: result of `evaluate`, or of a log of a hosted model.

    Returns:
        Dataset, dimensionless. Over (mode, value): `said` and `truth`, the shares of all questions of a mode that were
        answered with this value, and whose right answer it is. Over (mode): `unread`, the share of questions whose
        answers have no parsed value.

    Raises:
        InputError: a result of another measurement.

    Source: Barbero et al. 2024, figures 4 and 7.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> task = sl.tasks.find("taught_count_bernoulli")
    >>> found = sl.evaluate(model, task, lengths=[5, 10], seeds=4)
    >>> shares = sl.results.answer_frequencies(found)
    >>> float(shares["said"].sum() + shares["unread"].sum())
    1.0
    """
    result = without_padding(result)
    needed = dims_by_name(["value truth: mode length seed", "mode: mode"])
    require(result, "result", "squashlens.evaluate", needed, joined_along(result))
    facts = provenance(result)
    values = sorted(
        {*result["value"].values.flat, *result["truth"].values.flat} - {""},
        key=_by_size,
    )
    flat = [
        result[name].values.reshape(len(result["mode"]), -1, 1)
        for name in ("value", "truth")
    ]
    asked = (flat[1] != "").sum(
        axis=1
    )  # lengths that were joined may have different numbers of seeds
    said, truth = ((each == np.array(values)).sum(axis=1) / asked for each in flat)
    text, silent = (
        "share of all questions of a mode",
        ((asked - (flat[0] != "").sum(axis=1)) / asked)[:, 0],
    )
    return dataset_of(
        "frequencies of answers",
        {"mode": result["mode"].values, "value": np.array(values)},
        {
            "said": (
                ("mode", "value"),
                said,
                f"{text} that were answered with the value",
                "1",
            ),
            "truth": (
                ("mode", "value"),
                truth,
                f"{text} whose right answer is the value",
                "1",
            ),
            "unread": (
                ("mode",),
                silent,
                f"{text} whose answer has no parsed value",
                "1",
            ),
        },
        facts,
    )


def _share(right: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The share of right answers over seeds, and Wilson's interval."""
    share = right.mean(axis=-1)
    return share, *wilson(share, right.shape[-1])


def _error(value: str, truth: str) -> float:
    """The absolute difference of a parsed value and the right answer; NaN if nothing was parsed."""
    return float(abs(int(value) - int(truth))) if value else np.nan


def _by_size(value: str) -> tuple[int, int, str]:
    """A sort key: numbers by size, then other answers by name."""
    return (0, int(value), "") if is_number(value) else (1, 0, value)
