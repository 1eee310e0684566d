"""Answers to questions as a labelled result, whoever gave them: read, compared with the truth, counted.

An answer that cannot be read is not right, has no error, and is counted by the reason why. To count as read, it must
also be an answer to its question: an echo of the sequence is no count of it (`Task.understood`).

Two shares are right: `accuracy` of what is unambiguous (lenient), `accuracy_strict` of what was given in the form that
was asked for. A mean error is moved by one answer as far as that goes, so median and quartiles stand beside it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

from squashlens.errors import InputError
from squashlens.given import takes
from squashlens.results import Variable, attributes, provenance, signed
from squashlens.tasks import Question, Task
from squashlens.tasks.reading import WHY, Reader, is_number

Z = 1.959964  # of a 95 % interval


@dataclass(frozen=True)
class Answer:
    """What was said to a question, whether it ended by itself, and how many tokens went in and came out."""

    text: str
    ended: bool
    prompt_tokens: int = 0
    said_tokens: int = 0


UNREAD = tuple(why for why in WHY if why != "read")
OVER = ("mode", "length", "seed")


def scored(
    task: Task, answers: Mapping[Question, Answer], facts: Mapping[str, Any], *, opened: bool = False
) -> xr.Dataset:
    """Answers to one question a mode, length and seed, in that order, as `behave` returns them.

    `opened` says that the prompts ended with the opening words of an answer, so that those belong to what is read. A
    NUL character, which files cannot hold, stands as ␀ in `answer`.
    """
    modes, lengths, seeds = (list(dict.fromkeys(getattr(question, over) for question in answers)) for over in OVER)
    shape = (len(modes), len(lengths), len(seeds))
    if not answers or [(q.mode, q.length, q.seed) for q in answers] != list(product(modes, lengths, seeds)):
        raise InputError(
            "The answers are not one for each mode, length and seed, in that order.", "Answer every question, in order."
        )
    lead = f"{task.opening} " if opened and task.opening else ""
    readings = [task.understood(question, lead + answer.text, answer.ended) for question, answer in answers.items()]

    def table(values: Iterable[Any], kind: Any = object) -> np.ndarray:
        return np.array(list(values), dtype=kind).reshape(shape)

    said, asked = answers.values(), answers.keys()
    prompts = table(question.prompt for question in asked)
    truth, value = table(question.truth for question in asked), table(reading.value for reading in readings)
    why = table(reading.why for reading in readings)
    right = (value == truth) & (why == "read")
    as_asked = table((reading.as_asked for reading in readings), bool)
    error = np.vectorize(_error, otypes=[float])(value, truth) if task.numeric else np.full(shape, np.nan)
    share, (low, high) = right.mean(axis=-1), interval(right.mean(axis=-1), len(seeds))
    strict = (right & as_asked).mean(axis=-1)
    strict_low, strict_high = interval(strict, len(seeds))
    first, median, third = _quartiles(error)
    unread = np.stack([(why == reason).mean(axis=-1) for reason in UNREAD], axis=-1)
    cell, tokens = OVER[:2], "token"
    found: dict[str, Variable] = {
        "prompt": (OVER, prompts, "what was asked", "text"),
        "answer": (OVER, table(answer.text.replace("\0", "␀") for answer in said), "what was said", "text"),
        "value": (OVER, value, "what was read in it; empty if nothing", "text"),
        "truth": (OVER, truth, "the right answer", "text"),
        "reading": (OVER, why, "read, or why not", "text"),
        "ended": (OVER, table((answer.ended for answer in said), bool), "whether the answer ended by itself", "1"),
        "as_asked": (OVER, as_asked, "whether it was read, and given in the form that was asked for", "1"),
        "right": (OVER, right, "whether what was read is the right answer", "1"),
        "error": (OVER, error, "|what was read − the right answer|", "item"),
        "prompt_tokens": (OVER, table((a.prompt_tokens for a in said), int), "tokens of the prompt", tokens),
        "said_tokens": (OVER, table((a.said_tokens for a in said), int), "tokens of the answer", tokens),
        "accuracy": (cell, share, "share answered rightly (lenient); what is not read is not right", "1"),
        "accuracy_low": (cell, low, "lower end of its 95 % interval (Wilson)", "1"),
        "accuracy_high": (cell, high, "upper end of its 95 % interval (Wilson)", "1"),
        "accuracy_strict": (cell, strict, "share answered rightly in the form that was asked for", "1"),
        "accuracy_strict_low": (cell, strict_low, "lower end of its 95 % interval (Wilson)", "1"),
        "accuracy_strict_high": (cell, strict_high, "upper end of its 95 % interval (Wilson)", "1"),
        "mean_error": (cell, _mean(error), "mean error of the answers that were read", "item"),
        "median_error": (cell, median, "median error of the answers that were read", "item"),
        "error_q1": (cell, first, "first quartile of the error of the answers that were read", "item"),
        "error_q3": (cell, third, "third quartile of the error of the answers that were read", "item"),
        "unread": ((*cell, "why"), unread, "share that was not read, by the reason why", "1"),
        "prompts": (cell, _different(prompts), "different prompts among those that were answered", "item"),
    }
    noted = {**facts, "task": described(task)}
    coords = {"mode": modes, "length": lengths, "seed": seeds, "why": list(UNREAD)}
    return signed(f"answers to {task.name}", coords, found, noted)


def described(task: Task) -> dict[str, Any]:
    """What a result says of its task."""
    own = {"name": task.name, "template": task.template, "opening": task.opening, "source": task.source}
    return own | {"read_as": _named(task.read), "examples": task.examples}


def _named(reader: Reader) -> str:
    """A function's name; of any other reader what it says it is, less where it stands in memory, so that a run is the
    same run tomorrow."""
    return getattr(reader, "__name__", None) or re.sub(r" at 0x[0-9a-fA-F]+", "", repr(reader))


def interval(share: np.ndarray, of: int) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's 95 % interval of a share of so many."""
    middle, weight = (share + Z**2 / (2 * of)) / (1 + Z**2 / of), Z / (1 + Z**2 / of)
    half = weight * np.sqrt(share * (1 - share) / of + Z**2 / (4 * of**2))
    return np.clip(middle - half, 0, 1), np.clip(middle + half, 0, 1)


@takes("squashlens.behave", "value truth: mode length seed", "mode: mode")
def answer_frequencies(answers: xr.Dataset) -> xr.Dataset:
    """How often each number was answered, and how often it was the right answer (figures 4 and 7).

    Args:
        answers: from `behave`, or from a log of a hosted model.

    Returns:
        Dataset over (mode, value): `said` and `truth`, shares of all questions of a mode; `unread`, over mode, the
        share that gave no value.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> task = sl.tasks.find("taught_count_bernoulli")
    >>> found = sl.behave(model, task, lengths=[5, 10], seeds=4, progress=False)
    >>> shares = sl.answer_frequencies(found)
    >>> float(shares["said"].sum() + shares["unread"].sum())
    1.0
    """
    facts = provenance(answers)
    values = sorted({*answers["value"].values.flat, *answers["truth"].values.flat} - {""}, key=_by_size)
    flat = {name: answers[name].values.reshape(len(answers["mode"]), -1) for name in ("value", "truth")}
    said, truth = (
        np.stack([(flat[name] == value).mean(axis=-1) for value in values], axis=-1) for name in ("value", "truth")
    )
    text, silent = "share of all questions of a mode", (flat["value"] == "").mean(axis=-1)
    return xr.Dataset(
        {
            "said": (("mode", "value"), said, attributes(f"{text} that were answered so", "1", facts)),
            "truth": (("mode", "value"), truth, attributes(f"{text} whose right answer this is", "1", facts)),
            "unread": (("mode",), silent, attributes(f"{text} whose answer was not read", "1", facts)),
        },
        coords={"mode": answers["mode"].values, "value": np.array(values)},
        attrs=attributes("frequencies of answers", "1", facts),
    )


def _different(prompts: np.ndarray) -> np.ndarray:
    """How many prompts differ over seeds: a task may draw the same sequence for several."""
    return np.array([[len(set(cell)) for cell in row] for row in prompts])


def _error(value: str, truth: str) -> float:
    if not is_number(truth):  # values are: `Task.understood` lets no other pass
        raise InputError(f"{value!r} and {truth!r} have no difference.", "Give the task numeric=False.")
    return float(abs(int(value) - int(truth))) if value else np.nan


def _mean(error: np.ndarray) -> np.ndarray:
    """The mean over seeds of what there is; NaN where there is none."""
    counted = np.isfinite(error).sum(axis=-1)
    return np.where(counted, np.nansum(error, axis=-1) / np.maximum(counted, 1), np.nan)


def _quartiles(error: np.ndarray) -> np.ndarray:
    """First quartile, median and third quartile over seeds of what there is; NaN where there is none."""
    found = np.full((3, *error.shape[:-1]), np.nan)
    for cell in np.argwhere(np.isfinite(error).any(axis=-1)):
        found[:, *cell] = np.nanquantile(error[tuple(cell)], [0.25, 0.5, 0.75])
    return found


def _by_size(value: str) -> tuple[int, int, str]:
    """Numbers by size, then other answers by name."""
    return (0, int(value), "") if is_number(value) else (1, 0, value)
