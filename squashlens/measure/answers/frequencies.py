"""Answers to questions as a labelled result: parsed, compared with the right answers, and counted.

Answers to short questions say whether a model can do a task at all, against chance, with an exact interval. Only then
can wrong answers to longer questions be an effect of the length.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
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
from squashlens.measure.variables import variables_of
from squashlens.records.joining import without_padding
from squashlens.records.labels import Variable, dataset_of
from squashlens.records.provenance import joined_along, provenance
from squashlens.remarks import remark
from squashlens.tasks import Question, Task
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


LENIENT = "share of right answers (lenient); unread answers are wrong"
STRICT = "share of right answers in the requested form"
UNREAD = tuple(why for why in WHY if why != "read")
CELL = ("mode", "length")
BY_MODE = "mode length"
BY_SEED = "mode length seed"
BASELINE = "share of right answers to short questions"
CHANCE = "largest share of the short questions that a constant answer gets right"
TABLE = {
    "prompt": (BY_SEED, "prompt", "text"),
    "answer": (BY_SEED, "answer of the model", "text"),
    "value": (BY_SEED, "value parsed from the answer; empty if none", "text"),
    "truth": (BY_SEED, "right answer", "text"),
    "reading": (BY_SEED, "'read', or the reason why no value was parsed", "text"),
    "ended": (BY_SEED, "whether the answer ended, by itself or at a new question", "1"),
    "as_asked": (
        BY_SEED,
        "whether a value was parsed and given in the requested form",
        "1",
    ),
    "right": (BY_SEED, "whether the parsed value is the right answer", "1"),
    "error": (BY_SEED, "|parsed value − right answer|", "items"),
    "prompt_tokens": (BY_SEED, "tokens of the prompt", "tokens"),
    "answer_tokens": (BY_SEED, "tokens of the answer", "tokens"),
    "mean_error": (BY_MODE, "mean error of the parsed answers", "items"),
    "median_error": (BY_MODE, "median error of the parsed answers", "items"),
    "error_q1": (BY_MODE, "first quartile of the error of the parsed answers", "items"),
    "error_q3": (BY_MODE, "third quartile of the error of the parsed answers", "items"),
    "prompts": (BY_MODE, "number of distinct prompts", "prompts"),
    "unread": (
        "mode length why",
        "share of answers without a parsed value, by reason",
        "1",
    ),
    "able_reason": ("mode", "what decides whether the model can do the task", "text"),
    "baseline": ("mode", BASELINE, "1"),
    "baseline_low": ("mode", f"{BASELINE}, lower end of its 95 % interval", "1"),
    "baseline_high": ("mode", f"{BASELINE}, upper end of its 95 % interval", "1"),
    "chance": ("mode", CHANCE, "1"),
    "baseline_questions": ("mode", "number of different short questions", "questions"),
}


def score_answers(
    task: Task,
    answers: Mapping[Question, Answer],
    facts: Mapping[str, Any],
    *,
    prefill: bool = False,
    short: Mapping[Question, Answer] | None = None,
) -> xr.Dataset:
    """The Dataset of `evaluate_task` from one answer for each mode, length and seed, in that order.

    `facts` are those of the provenance. `prefill` says that the prompts end with the first words of the answer, which
    are parsed with it. `short` has the answers to the short questions of the baseline; if it is None, these are the
    short questions of `answers`.
    """
    coords = _axes_of(answers)
    shape = tuple(map(len, coords.values()))  # (mode, length, seed)
    opening = f"{task.opening} " if prefill and task.opening else ""
    scored = [
        _scored(task, question, answer, opening) for question, answer in answers.items()
    ]
    columns = pd.DataFrame(scored)
    values = {name: columns[name].to_numpy().reshape(shape) for name in columns}
    variables = variables_of(TABLE, values) | _summaries(values)
    if short is None:
        short = {q: answer for q, answer in answers.items() if q.length <= SHORT}
    abilities = _abilities(task, short, opening, coords["mode"])
    of_modes = pd.DataFrame(abilities).drop(columns="able")  # that is a coordinate
    variables |= variables_of(
        TABLE, {name: of_modes[name].to_numpy() for name in of_modes}
    )
    if not (values["reading"] == "read").any():
        _remark_unread(task, answers, values)
    labels: dict[str, Any] = {
        **coords,
        "why": list(UNREAD),
        "able": ("mode", [ability.able for ability in abilities]),
    }
    facts = {**facts, "task": describe(task)}
    return dataset_of(f"answers to {task.name}", labels, variables, facts)


def _axes_of(answers: Mapping[Question, Answer]) -> dict[str, list[Any]]:
    """The modes, lengths and seeds of the questions; raises unless there is one answer for each, in that order."""
    table: Any = pd.DataFrame(
        list(answers), columns=[field.name for field in fields(Question)]
    )
    cells = table[BY_SEED.split()]  # the mode, length and seed of each question
    axes = {name: cells[name].unique().tolist() for name in cells}
    all_cells = pd.MultiIndex.from_product(list(axes.values()))
    if not answers or cells.to_records(index=False).tolist() != all_cells.tolist():
        raise InputError(
            "answers= does not have one answer for each mode, length and seed, in that order.",
            "Give an answer for every question, in order.",
        )
    return axes


def _scored(
    task: Task, question: Question, answer: Answer, opening: str
) -> dict[str, Any]:
    """An answer and what is read in it, by the names of `TABLE`; `opening` has the words that its prompt ends with."""
    text = opening + answer.text
    reading = task.understood(question, text, answer.ended)
    _, has_ended = task.answer_in(question, text, answer.ended)
    error = np.nan
    if task.numeric and reading.value:
        error = float(abs(int(reading.value) - int(question.truth)))
    return {
        "prompt": question.prompt,
        # Files of results cannot store a NUL character.
        "answer": answer.text.replace("\0", "␀"),
        "value": reading.value,
        "truth": question.truth,
        "reading": reading.why,
        "ended": has_ended,
        "as_asked": reading.as_asked,
        "right": reading.why == "read" and reading.value == question.truth,
        "error": error,
        "prompt_tokens": answer.prompt_tokens,
        "answer_tokens": answer.answer_tokens,
    }


def _summaries(values: Mapping[str, np.ndarray]) -> dict[str, Variable]:
    """Accuracy, errors and unread answers over modes and lengths, from `values` over (mode, length, seed).

    Errors are of the parsed answers alone: those of the others are NaN, which pandas leaves out.
    """
    right = values["right"]
    n_seeds = right.shape[-1]
    # Tables with a row for each seed, and a column for each mode and length.
    errors = pd.DataFrame(values["error"].reshape(-1, n_seeds).T)
    prompts = pd.DataFrame(values["prompt"].reshape(-1, n_seeds).T)
    q1, median, q3 = errors.quantile([0.25, 0.5, 0.75]).to_numpy()
    of_columns = {
        "mean_error": errors.mean(),
        "median_error": median,
        "error_q1": q1,
        "error_q3": q3,
        # A task may draw one sequence for several seeds.
        "prompts": prompts.nunique(),
    }
    cells: dict[str, np.ndarray] = {}
    for name, of_column in of_columns.items():
        cells[name] = np.reshape(np.asarray(of_column), right.shape[:2])
    reading = values["reading"][..., None]  # (mode, length, seed, reason)
    cells["unread"] = (reading == np.array(UNREAD)).mean(axis=2)
    strict = right & values["as_asked"]
    variables = with_ends("accuracy", CELL, _share(right), LENIENT)
    variables |= with_ends("accuracy_strict", CELL, _share(strict), STRICT)
    return variables | variables_of(TABLE, cells)


def _abilities(
    task: Task, short: Mapping[Question, Answer], opening: str, modes: Iterable[str]
) -> list["Ability"]:
    """Whether the model can do the task in each mode, from the answers to different short questions."""
    abilities = []
    for mode in modes:
        # By prompt, so that equal questions count once.
        truths: dict[str, str] = {}
        right: dict[str, bool] = {}
        for question, answer in short.items():
            if question.mode == mode:
                reading = task.understood(question, opening + answer.text, answer.ended)
                truths[question.prompt] = question.truth
                right[question.prompt] = reading.value == question.truth
        abilities.append(
            judge_ability(np.array(list(right.values())), list(truths.values()))
        )
    return abilities


def _remark_unread(
    task: Task, answers: Mapping[Question, Answer], values: Mapping[str, np.ndarray]
) -> None:
    """Print a remark that no answer could be read, with the first one as an example, and what may help."""
    question, answer = next(iter(answers.items()))
    why = WHY[values["reading"].flat[0]]
    longer = ""
    if not values["ended"].all():
        longer = "a larger max_new_tokens= (not all answers ended), "
    remark(
        f"No answer to the task {task.name!r} could be read. After {short_repr(question.prompt)} the model said "
        f"{short_repr(answer.text)}, which is read as: {why}. Use {longer}n_examples=, prefill=True, or a task in the "
        "words that this model was trained on, of `squashlens.tasks.names()` or a `Task` of your own."
    )


def describe(task: Task) -> dict[str, Any]:
    """The facts that the provenance states about a task."""
    # A reader that is no function has no name; the memory address in its repr changes between runs.
    without_address = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(task.read))
    reader = getattr(task.read, "__name__", None) or without_address
    return {
        "name": task.name,
        "template": task.template,
        "opening": task.opening,
        "source": task.source,
        "read_as": reader,
        "examples": task.examples,
    }


HALF = 1 / 2  # least share of right answers with which a model is able; our choice
# What follows for longer questions.
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


def judge_ability(right: np.ndarray, truths: Sequence[str]) -> Ability:
    """The verdict from different short questions: whether each was answered correctly, and its right answer.

    Chance is the largest share of the questions with one right answer, which a constant answer gets. The model is able
    if the whole interval of Clopper and Pearson is above both chance and one half, and not if it is below one half, or
    if a constant answer is right more often by the exact sign test, at 2.5 % divided by the number of constant answers.
    """
    if not len(right):
        reason = f"No short questions were asked: {THEN['undecided']}"
        return Ability("undecided", reason, np.nan, np.nan, np.nan, np.nan, 0)
    # Over (constant answer, question): whether the constant is right.
    constant = np.array(truths) == np.unique(truths)[:, None]
    chance = float(constant.mean(axis=1).max())
    ends = torch.stack(share_interval(torch.from_numpy(right).double()))
    share, low, high = ends.tolist()
    # For each constant answer: the questions that it alone gets right, and those that the model alone gets right.
    lost = (constant & ~right).sum(axis=1)
    gained = (right & ~constant).sum(axis=1)
    # That the model gains so few of the lost + gained if each is as likely; times the number of tests (Bonferroni).
    p_of_constant = special.bdtr(gained, lost + gained, HALF).min() * len(constant)
    if low > max(chance, HALF):
        able = "yes"
    elif high < HALF or p_of_constant < (1 - LEVEL) / 2:
        able = "no"
    else:
        able = "undecided"
    reason = (
        f"{right.sum()} of {len(right)} short questions are answered correctly (95 % interval {low:.2f} to {high:.2f}; "
        f"the best constant answer is right for {chance:.2f}): {THEN[able]}"
    )
    return Ability(able, reason, share, low, high, chance, len(right))


FREQUENCIES = {
    "said": "share of all questions of a mode that were answered with the value",
    "truth": "share of all questions of a mode whose right answer is the value",
    "unread": "share of all questions of a mode whose answer has no parsed value",
}


@validated
def answer_frequencies(result: xr.Dataset) -> xr.Dataset:
    """How often each value was answered, and how often it was the right answer (figures 4 and 7).

    Args:
        result: result of `evaluate_task`, or of a log of a hosted model.

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
    >>> found = sl.evaluate_task(model, task, lengths=[5, 10], seeds=4)
    >>> shares = sl.results.answer_frequencies(found)
    >>> float(shares["said"].sum() + shares["unread"].sum())
    1.0
    """
    result = without_padding(result)
    needed = dims_by_name(["value truth: mode length seed", "mode: mode"])
    require(result, "result", "squashlens.evaluate_task", needed, joined_along(result))
    facts = provenance(result)
    modes = result["mode"].values
    said = result["value"].values.reshape(len(modes), -1)
    truth = result["truth"].values.reshape(len(modes), -1)
    # Lengths that were joined may have different numbers of seeds, and no question in some places.
    n_questions = (truth != "").sum(axis=1)
    different = np.unique(np.concatenate([said, truth], axis=None).astype(str))
    # An empty value is that of an answer without one, or of a place without a question.
    values = np.array(sorted(set(different.tolist()) - {""}, key=_by_size))
    shares = {
        "said": (said[..., None] == values).sum(axis=1) / n_questions[:, None],
        "truth": (truth[..., None] == values).sum(axis=1) / n_questions[:, None],
        "unread": (n_questions - (said != "").sum(axis=1)) / n_questions,
    }
    variables: dict[str, Variable] = {}
    for name, share in shares.items():
        dims = ("mode", "value")[: share.ndim]  # `unread` is over modes alone
        variables[name] = (dims, share, FREQUENCIES[name], "1")
    coords = {"mode": modes, "value": values}
    return dataset_of("frequencies of answers", coords, variables, facts)


def _share(right: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The share of right answers over seeds, and Wilson's interval."""
    share = right.mean(axis=-1)
    low, high = wilson(share, right.shape[-1])
    return share, low, high


def _by_size(value: str) -> tuple[int, int, str]:
    """A sort key: numbers by size, then other answers by name."""
    return (0, int(value), "") if is_number(value) else (1, 0, value)
