"""Evaluate hosted models through Inspect AI, with results in the form of `squashlens.evaluate`.

From a shell, `ask` runs any of `squashlens.tasks.names()`::

    inspect eval squashlens/ask --model google/gemini-2.5-pro -T name=count_ones -T lengths=10,50,100 -T mode=cot

In a notebook::

    (log,) = inspect_ai.eval(hosted.inspect_task(my_task, [10, 20]), model="...")
    answers = hosted.from_log(log, task=my_task)  # or the log's file; task= is needed for your own tasks

Seeds replace Inspect's epochs. By default there are 16 if a task draws its items, as in `evaluate`, and 1 if it does
not. If it does not, more seeds sample more answers, at the provider's temperature or `--temperature`.
An answer counts as cut off if the provider says so, because of its length or a content filter. An answer without a
stop reason (`hf` gives none) counts as complete; the provenance counts the reasons.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any

import xarray as xr

from squashlens._typing import several
from squashlens.checks.arguments import validated
from squashlens.errors import InputError, ModelAccessError
from squashlens.records.provenance import versions
from squashlens.tasks import DRAWN_SEEDS, Question, Task, find, names
from squashlens.tasks.task import seeds_of

try:
    from inspect_ai import Task as InspectTask
    from inspect_ai import scorer as scores
    from inspect_ai import task as registered
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.log import EvalLog, EvalSample, read_eval_log
    from inspect_ai.model import ModelOutput, ModelUsage
    from inspect_ai.solver import TaskState, generate
except ImportError as error:
    raise ModelAccessError(
        f"Hosted models need inspect-ai, which cannot be imported ({error}).",
        'pip install "squashlens[eval]"',
    ) from error

Numbers = int | str | Iterable[int | str]
Modes = str | Iterable[str]
LENGTHS = (10, 50, 100, 200, 300)
CUT = (
    "max_tokens",
    "model_length",
    "content_filter",
)  # stop reasons that mean that the answer was cut off

ABOUT = (
    "task",
    "mode",
    "length",
    "seed",
    "items",
    "place",
)  # what a sample stores about its question


@validated
def inspect_task(
    task: Task,
    lengths: Numbers = LENGTHS,
    seeds: Numbers | None = None,
    mode: Modes = "answer_only",
) -> InspectTask:
    """A task for `inspect_ai.eval`, with one sample for each mode, length and seed, and scorers for both readings.

    `lenient` accepts every unambiguous answer, and `strict` only answers in the requested form. Their metrics are
    `accuracy`, `stderr`, and `unread`, the share of answers that the scorer could not read.

    Args:
        task: a task from `squashlens.tasks.find`, or your own.
        lengths: numbers of items, also as text with commas.
        seeds: number of draws, or their random seeds.
        mode: ``"answer_only"``, ``"cot"`` or ``"cot_few_shot"``, or several, also as text with commas.

    Raises:
        InputError: if lengths, seeds or mode are empty or repeat a value.

    >>> import squashlens as sl
    >>> asked = inspect_task(sl.tasks.find("count_word"), "10,20", seeds=3, mode=["answer_only", "cot"])
    >>> len(asked.dataset), asked.dataset[0].id
    (12, 'answer_only-10-0')
    """
    given = seeds if seeds is None or isinstance(seeds, int) else _numbers(seeds)
    numbers = seeds_of(given, DRAWN_SEEDS if task.random else 1)
    chosen: dict[str, list[Any]] = {
        "lengths": _numbers(lengths),
        "seeds": numbers,
        "mode": _list(mode),
    }
    samples = [
        _sample(place, question) for place, question in enumerate(task.asked(**chosen))
    ]
    both = [lenient(task), strict(task)]
    return InspectTask(
        MemoryDataset(samples, task.name),
        solver=generate(),
        scorer=both,
        name=task.name,
    )


@validated
def from_log(log: str | Path | EvalLog, *, task: Task | None = None) -> xr.Dataset:
    """Read the answers in a log of Inspect again, as a Dataset in the form of `squashlens.evaluate`.

    Numbers of tokens are those that the provider counts, with reasoning tokens if it counts them, and 0 if it counts
    none. The provenance has the model, the settings, the name of the answering model, the date, and the stop reasons.

    Args:
        log: a log of a task of this module, or the log's file.
        task: the task that was run, if it is not one of `squashlens.tasks.names()`.

    Returns:
        The Dataset that `squashlens.evaluate` describes.

    Raises:
        InputError: if the log is not of a task of this module, is not finished, or has failed samples or several
            epochs; or if it has several seeds of one prompt at temperature 0, which give the same answer.

    >>> import inspect_ai, tempfile, squashlens as sl
    >>> from inspect_ai.model import ModelOutput, ModelUsage, get_model
    >>> six = ModelOutput.from_content("mock", "6").model_copy(update={"usage": ModelUsage()})
    >>> model = get_model("mockllm/model", custom_outputs=lambda *_: six)
    >>> asked = inspect_task(sl.tasks.find("count_ones"), [6, 7])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (log,) = inspect_ai.eval(asked, model=model, log_dir=folder, display="none")
    ...     from_log(log)["accuracy"].values.tolist()
    [[1.0, 0.0]]
    """
    from squashlens.measure.answers.frequencies import (
        Answer,
        score_answers,
    )  # with torch, which asking does without

    found = log if isinstance(log, EvalLog) else _open(log)
    samples = _whole(found)
    name = samples[0].metadata["task"]
    if name != task.name if task else name not in names():
        raise InputError(
            f"This log has answers to another task, {name!r}.",
            "Give that task as task=.",
        )
    known = task or find(name)
    outputs = {_question(known, sample): sample.output for sample in samples}
    facts = _facts(found, outputs)
    seeds, lengths = (
        {getattr(question, part) for question in outputs} for part in ("seed", "length")
    )
    if (
        facts["generate"].get("temperature") == 0
        and len(seeds) > 1
        and not any(map(known.varies, lengths))
    ):
        raise InputError(
            "The log has several seeds of one prompt at temperature 0, which count one answer several times.",
            "Run the task with seeds=1.",
        )
    answers = {
        q: Answer(said.completion, _ended(said), *_tokens(said.usage))
        for q, said in outputs.items()
    }
    return score_answers(known, answers, facts)


@scores.metric
def unread() -> scores.Metric:
    """The share of answers that could not be read."""

    def share(scores: list[scores.SampleScore]) -> float:
        return sum(not one.score.answer for one in scores) / max(1, len(scores))

    return share


@scores.scorer(metrics=[scores.accuracy(), scores.stderr(), unread()])
@validated
def lenient(task: Task | str) -> scores.Scorer:
    """Score answers to a task, or one of the name, with its reader: the value read, or the reason why none was read."""
    return _score(task, as_asked=False)


@scores.scorer(metrics=[scores.accuracy(), scores.stderr(), unread()])
@validated
def strict(task: Task | str) -> scores.Scorer:
    """Score answers like `lenient`, but count answers in another than the requested form as wrong."""
    return _score(task, as_asked=True)


def _score(task: Task | str, *, as_asked: bool) -> scores.Scorer:
    asked = find(task)

    async def score(state: TaskState, target: scores.Target) -> scores.Score:
        question = asked.about(state.metadata["items"])
        reading = asked.understood(
            question, state.output.completion, _ended(state.output)
        )
        accepted = reading.why == "read" and (reading.as_asked or not as_asked)
        value = (
            scores.CORRECT
            if accepted and reading.value == target.text
            else scores.INCORRECT
        )
        why = (
            "not in the requested form"
            if reading.why == "read" and not accepted
            else reading.why
        )
        return scores.Score(
            value=value, answer=reading.value if accepted else None, explanation=why
        )

    return score


@registered
@validated
def ask(
    name: str,
    lengths: Numbers = LENGTHS,
    seeds: Numbers | None = None,
    mode: Modes = "answer_only",
) -> InspectTask:
    """A task for `inspect_ai.eval` by its name, one of `squashlens.tasks.names()`; the rest is as in `inspect_task`."""
    return inspect_task(find(name), lengths, seeds, mode)


def _list(values: Any) -> list[Any]:
    """Values as a list, whether given in Python or as text on the command line."""
    return (
        [value.strip() for value in values.split(",")]
        if isinstance(values, str)
        else several(values)
    )


def _numbers(values: Numbers) -> list[int]:
    try:
        return [int(value) for value in _list(values)]
    except ValueError:
        raise InputError(
            f"{values!r} are not whole numbers.",
            "Give a list such as [10, 20], or '10,20'.",
        ) from None


def _sample(place: int, question: Question) -> Sample:
    about = {name: getattr(question, name) for name in ABOUT[:-1]} | {
        "items": list(question.items),
        "place": place,
    }
    name = f"{question.mode}-{question.length}-{question.seed}"
    return Sample(question.prompt, target=question.truth, id=name, metadata=about)


def _ended(output: ModelOutput) -> bool:
    return bool(output.choices) and output.stop_reason not in CUT


def _tokens(usage: ModelUsage | None) -> tuple[int, int]:
    """Numbers of tokens of the prompt, cached tokens included, and of the answer."""
    known = usage or ModelUsage()
    cached = (known.input_tokens_cache_read or 0) + (
        known.input_tokens_cache_write or 0
    )
    return known.input_tokens + cached, known.output_tokens


def _open(log: str | Path) -> EvalLog:
    try:
        return read_eval_log(
            log, exclude_fields={"messages", "events", "store", "attachments"}
        )
    except Exception as error:  # the kind of exception depends on what the file is
        raise InputError(
            f"{str(log)[-80:]!r} is not a log that Inspect can read: {error}",
            "Give a log, or its file.",
        ) from error


def _whole(log: EvalLog) -> list[EvalSample]:
    """The samples in the order of their questions; an error unless each is of this module and was answered once."""
    if log.status != "success":
        why = log.error.message if log.error else "it was not finished"
        raise InputError(
            f"This run has the status {log.status!r}: {why}.",
            "Run it again, or continue it with `inspect eval-retry`.",
        )
    samples = list(
        log.samples or []
    )  # Inspect may read them from the file at each access
    if not samples:
        raise InputError(
            "There are no samples in this log.",
            "Give a log that was saved with its samples.",
        )
    for sample in samples:
        if not set(ABOUT) <= sample.metadata.keys():
            raise InputError(
                "This log is not of a task of squashlens.",
                "Make the task with squashlens.hosted.inspect_task.",
            )
        if sample.epoch > 1:
            raise InputError(
                "Every question was asked in several epochs.",
                "Use one epoch, with more seeds= instead.",
            )
        failed = (
            sample.error.message
            if sample.error
            else f"{sample.limit.type} limit"
            if sample.limit
            else ""
        )
        if failed:
            raise InputError(
                f"Sample {sample.id!r} was not answered: {failed}.",
                "Run the task again.",
            )
    return sorted(samples, key=lambda sample: sample.metadata["place"])


def _question(task: Task, sample: EvalSample) -> Question:
    """The question of a sample; an error if the task would ask it differently now."""
    question = task.about(
        sample.metadata["items"],
        seed=sample.metadata["seed"],
        mode=sample.metadata["mode"],
    )
    if (question.prompt, question.truth) != (sample.input, sample.target):
        raise InputError(
            f"The prompts in this log differ from those of the task {task.name!r}.",
            "Give the task that was run, as task=.",
        )
    return question


def _facts(log: EvalLog, outputs: dict[Question, ModelOutput]) -> dict[str, Any]:
    """The facts for the provenance, without anything about the machine that ran the task."""
    spec, said, settings = log.eval, outputs.values(), {}
    for config in (spec.model_generate_config, log.plan.config):
        settings |= config.model_dump(exclude_none=True, exclude={"extra_headers"})
    names = {"mode": "mode", "lengths": "length", "seeds": "seed"}
    asked = {
        name: list(dict.fromkeys(getattr(q, over) for q in outputs))
        for name, over in names.items()
    }
    return {
        "model": "/".join(map(_pathless, spec.model.split("/", 1))),
        "answered_by": sorted({_pathless(output.model) for output in said}),
        "generate": settings,
        "solver": [step.solver for step in log.plan.steps],
        "stop_reasons": Counter(
            output.stop_reason for output in said if output.choices
        ),
        "log": PurePath(log.location).name,
        "created": spec.created,
        "versions": versions() | {"inspect-ai": spec.packages.get("inspect_ai")},
        "call": {"function": "hosted"} | asked,
    }


def _pathless(value: Any) -> Any:
    """The last part of a path on this machine; any other value unchanged."""
    local = isinstance(value, str) and (
        value.startswith((".", "~")) or Path(value).is_absolute()
    )
    return PurePath(value).name if local else value
