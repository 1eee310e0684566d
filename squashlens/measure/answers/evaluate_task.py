"""The answers of a model to copying and counting tasks, and their accuracy (figures 2, 3, 4, 6, 7)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import xarray as xr

from squashlens._typing import Bridge, Modes, Template, positive, several
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.measure.answers.frequencies import Answer, describe, score_answers
from squashlens.measure.registration import measurement, this_call
from squashlens.model.anatomy import context_length
from squashlens.model.digests import digest
from squashlens.model.text.tokens import as_chat, encode, require_tokenizer, tokenize
from squashlens.run.generate import Prompt, generate
from squashlens.run.run import Run
from squashlens.saving.journal import Journal, checked
from squashlens.sequences import Ids
from squashlens.tasks import DRAWN_SEEDS, Question, Task, find
from squashlens.tasks.task import Prompting, require_drawn, seeds_of


@dataclass(frozen=True)
class TaskQuestions:
    """The questions of a task, and their form."""

    task: Task
    each: tuple[Question, ...]
    form: Prompting

    @cached_property
    def baseline(self) -> tuple[Question, ...]:
        """At most `n_baseline` short questions, in each mode, that show whether the model can do the task at all."""
        if not self.form.n_baseline:
            return ()
        short = self.task.short()[: self.form.n_baseline]
        asked = []
        for mode, question in product(several(self.form.mode), short):
            in_mode = self.task.about(question.items, seed=question.seed, mode=mode)
            asked.append(self.task.after_examples(in_mode, self.form.n_examples))
        return tuple(asked)

    def scored(self, run: Run, answers: Mapping[Question, Answer]) -> xr.Dataset:
        """The Dataset of `evaluate_task`, from the answers to all questions and those of the baseline."""
        return score_answers(
            self.task,
            {question: answers[question] for question in self.each},
            run.facts,
            prefill=self.form.prefill,
            short={question: answers[question] for question in self.baseline},
        )

    def all_ids(self, run: Run, others: Sequence[Question] = ()) -> dict[Question, Ids]:
        """The token ids of the prompts of all questions, of others, and of the baseline, each question once."""
        questions = dict.fromkeys(self.each + tuple(others) + self.baseline)
        return {question: self.ids(run, question) for question in questions}

    def ids(self, run: Run, question: Question) -> Ids:
        """The token ids of the prompt of a question, with the first words of the answer if the form has `prefill`."""
        prompt: Any = question.prompt
        opening = ""
        if self.form.prefill:
            opening = self.task.opening
        if self.form.template == "chat":
            # The template of a chat determines whether it starts with BOS.
            text = as_chat(run.model, question.prompt) + opening
            prompt = torch.tensor(encode(run.model, text))
        elif opening:
            prompt = f"{question.prompt} {opening}"
        return tuple(tokenize(run.model, prompt)[0].tolist())


def prepare_questions(
    run: Run,
    task: Task | str,
    lengths: Any,
    seeds: Any,
    form: Prompting,
    *,
    sampled: bool = False,
    n_seeds: int = DRAWN_SEEDS,
) -> tuple[Run, TaskQuestions]:
    """The run and the questions of a measurement of answers, all checked before anything is run.

    `sampled` says that answers are drawn at a temperature, so that they differ between seeds. `n_seeds` is the default
    number of seeds, where questions or answers differ between them.
    """
    task = find(task)
    modes = several(form.mode)
    if not (task.random or sampled):
        n_seeds = 1
    chosen_seeds = seeds_of(seeds, n_seeds)
    asked = task.asked(list(lengths), chosen_seeds, modes)
    asked_lengths = sorted({question.length for question in asked})
    if not sampled:
        require_drawn(task, asked)
    questions = tuple(
        task.after_examples(question, form.n_examples) for question in asked
    )
    prepared = TaskQuestions(task, questions, form)
    token_ids = [list(prepared.ids(run, question)) for question in questions]
    # The longest prompt stands for all: if it fits into the context, so do the others.
    longest = torch.tensor(max(token_ids, key=len))
    run = run.with_prompts(
        longest, lengths=asked_lengths, seeds=chosen_seeds, mode=modes
    )
    return run.knowing(task=describe(task), token_ids=token_ids), prepared


def answers_file(
    run: Run, task: Task, path: str | Path | None, temperature: float = 0.0
) -> Journal:
    """The file from which a run resumes: answers of one model, task and temperature, stored by question.

    The call and its prompts are no part of what the file belongs to, so that more lengths and seeds can be added.
    """
    facts = dict(run.facts) | {"task": task.name, "temperature": temperature}
    for name in ("call", "bos_count", "token_ids"):
        facts.pop(name, None)
    return run.journal(path, facts)


@measurement(
    "task_accuracy",
    "task_error",
    "answer_frequencies",
    cheaper="Fewer lengths= or seeds= takes less.",
)
def evaluate_task(
    model: Bridge,
    task: Task | str,
    *,
    lengths: Iterable[int],
    seeds: int | Iterable[int] | None = None,
    mode: Modes = "answer_only",
    template: Template = "none",
    prefill: bool = False,
    n_examples: int = 0,
    n_baseline: int = 16,
    temperature: float = 0.0,
    max_new_tokens: int | None = None,
    resume: str | Path | None = None,
) -> xr.Dataset:
    """The model's answers to a task at each length, parsed and compared with the right answers.

    Current hooks of the model apply. Decoding is greedy and ignores penalties in the checkpoint's generation settings,
    unless a `temperature` is given. Without hooks, transformers generates with a cache of keys and values. With hooks,
    each token takes a pass over the whole text. The two differ only by rounding, unless the position encoding depends
    on the length of the pass ("longrope", "dynamic"): cached keys have the frequencies of an earlier length.

    Args:
        model: the model to measure, a `TransformerBridge` from `load` or your own.
        task: name of a task, one of `squashlens.tasks.names()`, or a `Task` of your own.
        lengths: numbers of items in a question.
        seeds: number of random samples of the items (and of the answers, with a temperature), or a list of random
            seeds. By default 16, or 1 if all samples would be the same.
        mode: forms of the question, one or several of ``"answer_only"`` (the default), ``"cot"`` (chain of thought)
            and ``"cot_few_shot"`` (chain of thought with examples).
        template: format of the prompt: ``"none"`` (the default), plain text, or ``"chat"``, a user's turn in the
            tokenizer's chat template.
        prefill: whether prompts end with the first words of the answer (prefill), so that the next token is the answer
            itself; no by default.
        n_examples: number of solved examples before each question (few-shot), short questions about other items with
            their right answers; 0 by default. Only for answers alone.
        n_baseline: largest number of different short questions, about 1 to 8 items, that show whether the model can do
            the task at all; 16 by default, 0 for none. They have the same form.
        temperature: temperature at which tokens are sampled, from softmax(logits / temperature) with a random seed for
            each question; 0, greedy decoding, by default.
        max_new_tokens: largest number of tokens in an answer; by default as many as an answer in this mode and length
            can need, within the context.
        resume: file (any name) that keeps every answer at once, so that the same call resumes from it, also
            with more lengths and seeds; none by default. Several processes may share it.

    Returns:
        Dataset. Over (mode, length, seed): `prompt`; `answer`; `value`, parsed from it; `truth`, the right answer;
        `reading`, ``"read"`` or the reason why no value was parsed; `as_asked`, whether the answer has the requested
        form; `ended`, whether the answer ended, with the end of the text or with the first words of a new question,
        where generation stops; `right`; `error`, |value − truth| in items, NaN without a value; `prompt_tokens` and
        `answer_tokens`, the numbers of tokens of prompt and answer.

        Over (mode, length): `accuracy` (lenient: all unambiguous answers count) and `accuracy_strict` (only answers in
        the requested form count), each with the ends `…_low` and `…_high` of its 95 % interval; `mean_error`,
        `median_error` and the quartiles `error_q1` and `error_q3` of the parsed answers; `prompts`, the number of
        distinct prompts. It is smaller than the number of seeds if the task draws a sequence twice (there are only two
        of alternating digits). The interval is for random questions of the task, whatever that number. Over (mode,
        length, why): `unread`, the share of answers without a parsed value, by reason.

    Raises:
        InputError: several seeds that would all give the same answer, a `resume` file that belongs to another run, or
            answers that do not fit into the context.

    Source: Barbero et al. 2024, section 3 and appendix C.1.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> task = sl.tasks.find("taught_count_bernoulli")
    >>> found = sl.evaluate_task(model, task, lengths=[4, 16], seeds=4)
    >>> found["accuracy"].values.tolist()
    [[1.0, 1.0]]
    """
    if temperature != 0 and not temperature > torch.finfo(torch.float32).tiny:
        raise InputError(
            f"temperature={temperature!r} is not a temperature.",
            "Give 0 for greedy decoding, or a positive number.",
        )
    if max_new_tokens is not None:
        positive(max_new_tokens, "max_new_tokens", "a number of tokens")
    resume = checked(resume)
    form = Prompting(
        mode=mode,
        template=template,
        prefill=prefill,
        n_examples=n_examples,
        n_baseline=n_baseline,
    )
    run = Run.open(model, **this_call())
    run, questions = prepare_questions(
        run, task, lengths, seeds, form, sampled=temperature > 0
    )
    journal = answers_file(run, questions.task, resume, temperature)
    ids = questions.all_ids(run)
    answers = answer_questions(
        run, questions, ids, journal, temperature, max_new_tokens
    )
    return questions.scored(run, answers)


def answer_questions(
    run: Run,
    questions: TaskQuestions,
    ids: Mapping[Question, Ids],
    journal: Journal,
    temperature: float = 0.0,
    max_new_tokens: int | None = None,
) -> dict[Question, Answer]:
    """The answer to each question, from the resumed file or from the model; each batch is stored at once.

    `ids` has the token ids of the prompts of all questions. `max_new_tokens` is by default what an answer can need.
    """
    task = questions.task
    text_of = partial(
        require_tokenizer(run.model).decode,
        skip_special_tokens=False,
        clean_up_tokenization_spaces=False,
    )

    def has_ended(question: Question, written: Sequence[int]) -> bool:
        """Whether the text written so far has the beginning of a new question, where generation stops."""
        _, is_new_question = task.answer_in(question, text_of(written), ended=False)
        return is_new_question

    prompts: dict[Question, Prompt] = {}
    keys: dict[Question, str] = {}
    for question, tokens in ids.items():
        most = max_new_tokens or _needed_tokens(run, questions, question, len(tokens))
        label = f"{question.length} {question.seed}"
        prompts[question] = Prompt(
            ids=tokens,
            max_new_tokens=most,
            seed=f"{question.task} {label} {question.mode}",
            enough=partial(has_ended, question),
        )
        # The name of its answer in the file. With a digest of the prompt, so that an edited task gets new answers.
        keys[question] = f"{question.mode} {label} {most} {digest(tokens)}"
    missing = [question for question in keys if keys[question] not in journal.found]
    n_found = len(keys) - len(missing)
    with bar(
        total=len(keys), initial=n_found, desc=task.name, unit="answer"
    ) as progress_bar:
        asked = [prompts[question] for question in missing]
        for batch in generate(run, asked, temperature=temperature):
            by_key = {}  # the batch has answers by their places in `asked`
            for place, answer in batch.items():
                question = missing[place]
                # The fields of `Answer`.
                by_key[keys[question]] = [
                    text_of(answer.ids),
                    answer.ended,
                    len(ids[question]),
                    len(answer.ids),
                ]
            journal.keep(by_key)
            progress_bar.update(len(batch))
    return {question: Answer(*journal.found[key]) for question, key in keys.items()}


def _needed_tokens(
    run: Run, questions: TaskQuestions, question: Question, prompt_tokens: int
) -> int:
    """The number of tokens that an answer can need: for steps, for a sentence, for a number, or for all items.

    It is at most what is left of the model's context after the `prompt_tokens`, and at least 1. The mode decides,
    unless the prompt ends with the first words of the answer, before which no steps can be written.
    """
    n = question.length
    opening = questions.task.opening
    prefill = questions.form.prefill
    if question.mode != "answer_only" and not (prefill and opening):
        needed = 512 + 8 * n  # steps
    elif opening and not prefill:
        needed = 256 + 2 * n  # a sentence with the opening words
    elif questions.task.numeric:
        needed = 16
    else:
        needed = 16 + 4 * n  # all items
    limit = context_length(run.model)
    return needed if limit is None else max(1, min(needed, limit - prompt_tokens))
