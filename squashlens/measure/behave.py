"""What a model answers to copying and counting tasks (figures 2, 3, 4, 6, 7)."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
import xarray as xr

from squashlens._typing import Bridge, Mode, Template, positive
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.journal import Journal, checked
from squashlens.measure._asking import Asking
from squashlens.measure.answers import Answer, scored
from squashlens.model.anatomy import context_length
from squashlens.model.branches import Ids
from squashlens.model.fingerprint import digest
from squashlens.model.generate import Prompt, Said, generate
from squashlens.model.registry import measured
from squashlens.model.tokens import require_tokenizer
from squashlens.tasks import Question, Task


@measured
def behave(
    model: Bridge,
    task: Task,
    *,
    lengths: Iterable[int],
    seeds: int | Iterable[int] | None = None,
    modes: Iterable[Mode] = ("answer_only",),
    template: Template = "none",
    opened: bool = False,
    temperature: float = 0.0,
    room: int | None = None,
    chunk: int | None = None,
    resume: str | Path | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """What the model answers to `task` at each length, read and compared with the right answer.

    Standing hooks are honoured. Decoding is greedy, free of any penalty a checkpoint may come with, unless a
    `temperature` is given; then tokens are drawn from softmax(logits ÷ temperature), by a seed for each question.

    Without hooks decoding is that of transformers, which keeps keys and values of earlier tokens; under hooks a pass
    over the whole text decodes each token. The two differ by rounding alone, unless the position encoding depends on
    the length of the pass ("longrope", "dynamic"): keys that were kept have the frequencies of an earlier length.

    Args:
        task: from `squashlens.tasks.find`, or one of your own.
        lengths: numbers of items; the result has them in ascending order.
        seeds: how many draws of the items (and of the answer, at a temperature), or their seeds; 16 if not given, 1
            where all would be the same.
        modes: ``"answer_only"``, ``"cot"``, ``"cot_few_shot"``.
        template: ``"chat"`` wraps each prompt as the model's tokenizer does for a user's turn.
        opened: begin the answer with the words the task asks for, so that the next token is the answer itself.
        room: tokens an answer may take; by default what an answer of this mode and length can need, or fits.
        chunk: prompts side by side; as many as fit in about a gigabyte (a quarter of a GPU) if not given.
        resume: a file of any name (SQLite) that keeps every answer as soon as it is had, to go on from, also at more
            lengths and seeds. Two processes may share it.

    Returns:
        Dataset. Over (mode, length, seed): `prompt`, `answer` as it was said, `value` read in it, `truth`, `reading`
        (``"read"``, or why not), `as_asked`, `ended`, `right`, `error` (|value − truth|, items; NaN where nothing was
        read), `prompt_tokens`, `said_tokens`. Over (mode, length): `accuracy` with its 95 % interval `accuracy_low`,
        `accuracy_high` (lenient: of what is unambiguous), `accuracy_strict` with its own (of what was given in the form
        that was asked for), `mean_error`, `median_error` and quartiles `error_q1`, `error_q3` of the answers read, and,
        over `why`, `unread`, the share that was not read and has no error; `prompts`, how many different prompts were
        answered. Fewer than seeds where a task draws the same sequence twice (of alternating digits there are two): a
        fair sample of what the task asks, which the interval is for, and no more than so many prompts.

    Source: Barbero et al. 2024, section 3, appendix C.1.

    Refuses: seeds that would count one answer as many, a `resume` file of another run, answers that cannot fit.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> task = sl.tasks.find("taught_count_bernoulli")
    >>> found = sl.behave(model, task, lengths=[4, 16], seeds=4, progress=False)
    >>> found["accuracy"].values.tolist()
    [[1.0, 1.0]]
    """
    if temperature != 0 and not temperature > torch.finfo(torch.float32).tiny:
        raise InputError(f"temperature={temperature!r} is not a temperature.", "Give 0 for greedy decoding, or more.")
    for name, value in (("room", room), ("chunk", chunk)):
        if value is not None:
            positive(value, name, f"a number of {'tokens' if name == 'room' else 'prompts'}")
    resume = checked(resume)
    asking = Asking.start(
        model, task, lengths, seeds, "behave", modes=modes, template=template, opened=opened,
        drawn=temperature > 0, temperature=temperature, room=room,
    )  # fmt: skip
    ids = {question: asking.ids(question) for question in asking.questions}
    journal = asking.journal(resume, temperature)
    return scored(
        task, answered(asking, ids, journal, temperature, room, chunk, progress), asking.session.facts, opened=opened
    )


def answered(
    asking: Asking, ids: Mapping[Question, Ids], journal: Journal, temperature: float = 0.0, room: int | None = None,
    chunk: int | None = None, progress: bool = True,
) -> dict[Question, Answer]:  # fmt: skip
    """Each question's answer, out of the journal or from the model; every batch is written down at once."""
    sound = asking.session.model
    tokenizer = require_tokenizer(sound)
    prompts = {
        q: Prompt(each, room or _room(asking, q, len(each)), f"{q.task} {q.length} {q.seed} {q.mode}")
        for q, each in ids.items()
    }
    keys = {question: _key(question, prompt) for question, prompt in prompts.items()}
    missing = [question for question in keys if keys[question] not in journal.found]

    def written(question: Question, said: Said) -> list[object]:
        text = tokenizer.decode(said.ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return [text, said.ended, len(ids[question]), len(said.ids)]

    with bar(
        total=len(keys), initial=len(keys) - len(missing), desc=asking.task.name, unit="answer",
        progress=progress,
    ) as shown:  # fmt: skip
        for batch in generate(sound, [prompts[q] for q in missing], temperature=temperature, chunk=chunk):
            journal.keep({keys[missing[place]]: written(missing[place], said) for place, said in batch.items()})
            shown.update(len(batch))
    return {question: Answer(*journal.found[key]) for question, key in keys.items()}


def _key(question: Question, prompt: Prompt) -> str:
    """A question by name, and by what is really asked, so that an edited task finds no old answer."""
    return f"{question.mode} {question.length} {question.seed} {prompt.room} {digest(prompt.ids)}"


def _room(asking: Asking, question: Question, prompt: int) -> int:
    """What an answer can need in tokens: steps, a number or all items, or a sentence with some reasoning.

    The mode decides first, unless the prompt has ended with the opening words: no steps can stand before those.
    """
    n, opening = question.length, asking.task.opening
    if question.mode != "answer_only" and not (asking.opened and opening):
        needed = 512 + 8 * n
    elif asking.opened or not opening:
        needed = 16 if asking.task.numeric else 16 + 4 * n
    else:
        needed = 256 + 2 * n
    limit = context_length(asking.session.model)
    return needed if limit is None else max(1, min(needed, limit - prompt))
