"""Evaluate hosted models through Inspect AI, with results in the form of `squashlens.evaluate_task`.

From a shell, `ask` runs any of `squashlens.tasks.names()`::

    inspect eval squashlens/ask --model google/gemini-2.5-pro -T name=count_ones -T lengths=10,50,100 -T mode=cot

In a notebook::

    (log,) = inspect_ai.eval(hosted.inspect_task(my_task, [10, 20]), model="...")
    answers = hosted.from_log(log, task=my_task)  # or the log's file; task= is needed for your own tasks

Seeds replace Inspect's epochs. By default there are 16 if a task draws its items, as in `evaluate_task`, and 1 if it
does not. If it does not, more seeds sample more answers, at the provider's temperature or `--temperature`. An answer
counts as cut off if the provider says so, because of its length or a content filter. An answer without a stop reason
(`hf` gives none) counts as complete; the provenance counts the reasons.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Any

import xarray as xr

from squashlens._typing import several
from squashlens.checks.arguments import validated
from squashlens.errors import InputError, ModelAccessError
from squashlens.records.provenance import versions
from squashlens.tasks import DRAWN_SEEDS, Question, Task, find, names
from squashlens.tasks.task import require_drawn, seeds_of

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
# Stop reasons that mean that the answer was cut off.
CUT = ("max_tokens", "model_length", "content_filter")
# What a sample stores about its question.
ABOUT = ("task", "mode", "length", "seed", "items", "place")


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
    modes: Any = _list(mode)
    questions = task.asked(_numbers(lengths), _seeds(task, seeds), modes)
    samples = [_sample(place, question) for place, question in enumerate(questions)]
    return InspectTask(
        MemoryDataset(samples, task.name),
        solver=generate(),
        scorer=[lenient(task), strict(task)],
        name=task.name,
    )


@validated
def from_log(log: str | Path | EvalLog, *, task: Task | None = None) -> xr.Dataset:
    """Read the answers in a log of Inspect again, as a Dataset in the form of `squashlens.evaluate_task`.

    Numbers of tokens are those that the provider counts, with reasoning tokens if it counts them, and 0 if it counts
    none. The provenance has the model, the settings, the name of the answering model, the date, and the stop reasons.

    Args:
        log: a log of a task of this module, or the log's file.
        task: the task that was run, if it is not one of `squashlens.tasks.names()`.

    Returns:
        The Dataset that `squashlens.evaluate_task` describes.

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
    # With torch, which asking does without.
    from squashlens.measure.answers.frequencies import Answer, score_answers

    read_log = log if isinstance(log, EvalLog) else _open(log)
    samples = _whole(read_log)
    asked = _task_of(samples[0].metadata["task"], task)
    outputs = {_question(asked, sample): sample.output for sample in samples}
    facts = _facts(read_log, outputs)
    # Then the answers to one question are equal, and several would count as several observations.
    if facts["generate"].get("temperature") == 0:
        require_drawn(asked, outputs)
    answers: dict[Question, Answer] = {}
    for question, output in outputs.items():
        prompt_tokens, answer_tokens = _tokens(output.usage)
        answers[question] = Answer(
            text=output.completion,
            ended=_ended(output),
            prompt_tokens=prompt_tokens,
            answer_tokens=answer_tokens,
        )
    return score_answers(asked, answers, facts)


def _task_of(name: str, task: Task | None) -> Task:
    """The task of a log, which has its `name`; raises if it is not the one that was given, or not known by its name."""
    if task is None and name in names():
        return find(name)
    if task is None or name != task.name:
        raise InputError(
            f"This log has answers to another task, {name!r}.",
            "Give that task as task=.",
        )
    return task


@scores.metric
def unread() -> scores.Metric:
    """The share of answers that could not be read."""

    def share(scores: list[scores.SampleScore]) -> float:
        """The share, 0 of no scores; only a score whose answer was read has an answer."""
        n_unread = sum(not sample.score.answer for sample in scores)
        return n_unread / max(1, len(scores))

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
    """A scorer of answers to a task; `as_asked` counts only answers in the requested form."""
    asked = find(task)

    async def score(state: TaskState, target: scores.Target) -> scores.Score:
        """The score of one answer to a question of the task, whose right answer is the target."""
        question = asked.about(state.metadata["items"])
        output = state.output
        reading = asked.understood(question, output.completion, _ended(output))
        if not reading.is_read:
            return scores.Score(value=scores.INCORRECT, explanation=reading.why)
        if as_asked and not reading.as_asked:
            why = "not in the requested form"
            return scores.Score(value=scores.INCORRECT, explanation=why)
        value = scores.INCORRECT
        if reading.value == target.text:
            value = scores.CORRECT
        return scores.Score(value=value, answer=reading.value, explanation="read")

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
    if isinstance(values, str):
        return [value.strip() for value in values.split(",")]
    return several(values)


def _seeds(task: Task, seeds: Numbers | None) -> list[int]:
    """Random seeds, given as their number or as the seeds themselves."""
    if seeds is not None and not isinstance(seeds, int):
        return _numbers(seeds)
    if task.random:
        return seeds_of(seeds, DRAWN_SEEDS)
    return seeds_of(seeds, 1)


def _numbers(values: Numbers) -> list[int]:
    """Whole numbers as a list, whether given in Python or as text on the command line."""
    try:
        return [int(value) for value in _list(values)]
    except ValueError:
        raise InputError(
            f"{values!r} are not whole numbers.",
            "Give a list such as [10, 20], or '10,20'.",
        ) from None


def _sample(place: int, question: Question) -> Sample:
    """The sample that asks a question, the one with the number `place`; its metadata are those of `ABOUT`."""
    about = asdict(question) | {"items": list(question.items), "place": place}
    del about["prompt"]  # the sample's input
    del about["truth"]  # its target
    name = f"{question.mode}-{question.length}-{question.seed}"
    return Sample(question.prompt, target=question.truth, id=name, metadata=about)


def _ended(output: ModelOutput) -> bool:
    """Whether the model ended its answer itself, as far as the provider says."""
    return bool(output.choices) and output.stop_reason not in CUT


def _tokens(usage: ModelUsage | None) -> tuple[int, int]:
    """Numbers of tokens of the prompt, cached tokens included, and of the answer."""
    if usage is None:
        return 0, 0
    prompt_tokens = usage.input_tokens
    for cached in (usage.input_tokens_cache_read, usage.input_tokens_cache_write):
        if cached is not None:
            prompt_tokens += cached
    return prompt_tokens, usage.output_tokens


def _open(log: str | Path) -> EvalLog:
    """The log in a file, without what is not read here."""
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
    samples = list(log.samples or [])  # may be read from the file at each access
    fault = _fault(log, samples)
    if fault:
        raise InputError(
            f"This log does not have one answer to each question: {fault}.",
            "Run the task again, with more seeds= in place of epochs, and give its whole log.",
        )
    return sorted(samples, key=lambda sample: sample.metadata["place"])


def _fault(log: EvalLog, samples: list[EvalSample]) -> str:
    """What is wrong with a log, as the end of a sentence; empty if nothing is."""
    if log.error:
        return log.error.message
    if log.status != "success":
        return f"its status is {log.status!r}"
    if not samples:
        return "it was saved without its samples"
    for sample in samples:
        if not set(ABOUT) <= sample.metadata.keys():
            return "its task was not made by squashlens.hosted"
        if sample.epoch > 1:
            return "it has several epochs"
        if sample.error or sample.limit:
            return f"sample {sample.id!r} was not answered"
    return ""


def _question(task: Task, sample: EvalSample) -> Question:
    """The question of a sample; an error if the task would ask it differently now."""
    about = sample.metadata
    question = task.about(about["items"], seed=about["seed"], mode=about["mode"])
    if (question.prompt, question.truth) != (sample.input, sample.target):
        raise InputError(
            f"The prompts in this log differ from those of the task {task.name!r}.",
            "Give the task that was run, as task=.",
        )
    return question


def _facts(log: EvalLog, outputs: dict[Question, ModelOutput]) -> dict[str, Any]:
    """The facts for the provenance, without anything about the machine that ran the task."""
    spec = log.eval
    settings: dict[str, Any] = {}
    # Those of the task's plan replace those of the model.
    for config in (spec.model_generate_config, log.plan.config):
        settings |= config.model_dump(exclude_none=True, exclude={"extra_headers"})
    stop_reasons: Counter[str] = Counter()
    answering_models: set[str] = set()
    for output in outputs.values():
        answering_models.add(_pathless(output.model))
        if output.choices:
            stop_reasons[output.stop_reason] += 1
    call: dict[str, Any] = {"function": "hosted"}
    for argument, name in (("mode", "mode"), ("lengths", "length"), ("seeds", "seed")):
        values = dict.fromkeys(getattr(question, name) for question in outputs)
        call[argument] = list(values)
    # A model on this machine may be named by its folder.
    provider, slash, name = spec.model.partition("/")
    return {
        "model": f"{_pathless(provider)}{slash}{_pathless(name)}",
        "answered_by": sorted(answering_models),
        "generate": settings,
        "solver": [step.solver for step in log.plan.steps],
        "stop_reasons": stop_reasons,
        "log": PurePath(log.location).name,
        "created": spec.created,
        "versions": versions() | {"inspect-ai": spec.packages.get("inspect_ai")},
        "call": call,
    }


def _pathless(value: Any) -> Any:
    """The last part of a path on this machine; any other value unchanged."""
    if isinstance(value, str):
        is_path = value.startswith((".", "~")) or Path(value).is_absolute()
        if is_path:
            return PurePath(value).name
    return value
