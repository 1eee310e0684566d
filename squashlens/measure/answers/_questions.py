"""The questions of a task for a given model, and their token ids."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from squashlens._typing import Bridge, Template, positive, several
from squashlens.engine.proving.proof import require_sound
from squashlens.engine.text.tokens import as_chat, encode, tokenize
from squashlens.errors import InputError
from squashlens.measure.answers.frequencies import described
from squashlens.measure.session import Session
from squashlens.saving.journal import Journal
from squashlens.sequences import Ids
from squashlens.tasks import DRAWN_SEEDS, Question, Task


@dataclass(frozen=True)
class Questions:
    """The questions of a task and their form: as plain text or chat, with or without the first words of the answer."""

    task: Task
    each: tuple[Question, ...]
    template: Template
    prefill: bool

    def ids(self, model: Bridge, question: Question) -> Ids:
        """The token ids of the prompt of a question, with the first words of the answer if `prefill`."""
        opening = self.task.opening if self.prefill else ""
        if self.template == "none":
            text = f"{question.prompt} {opening}" if opening else question.prompt
            return tuple(tokenize(model, text)[0].tolist())
        ids = encode(model, as_chat(model, question.prompt) + opening)
        return tuple(tokenize(model, torch.tensor(ids), bos="as-given")[0].tolist())


def prepare_questions(
    model: Any, task: Task, lengths: Any, seeds: Any, function: str,
    *, mode: Any, template: Any, prefill: bool, sampled: bool = False, n_seeds: int = DRAWN_SEEDS, **arguments: Any,
) -> tuple[Session, Questions]:  # fmt: skip
    """The session and the questions of a measurement of answers, all checked before anything is run.

    `sampled`: answers to one question differ between seeds. `n_seeds`: the default if questions or answers differ.
    """
    chosen = {"lengths": list(lengths), "seeds": _seeds(seeds, task, sampled, n_seeds), "mode": several(mode)}
    questions = tuple(task.asked(**chosen))
    chosen |= {f"{part}s": list(dict.fromkeys(getattr(q, part) for q in questions)) for part in ("length", "seed")}
    sound = require_sound(model)
    prepared = Questions(task, questions, template, prefill)
    given = [list(prepared.ids(sound, question)) for question in questions]
    ids = torch.tensor(max(given, key=len))
    call = {**chosen, "template": template, "prefill": prefill, **arguments}
    # The template of a chat determines whether it starts with BOS.
    session = Session.without_prompt(sound, ids, "as-given" if template == "chat" else "family", function, **call)
    session = replace(session, facts={**session.facts, "task": described(task), "token_ids": given})
    return session, prepared


def answers_file(session: Session, task: Task, path: str | Path | None, temperature: float = 0.0) -> Journal:
    """The file from which a run resumes: answers of one model, task and temperature, stored by question."""
    facts = {name: value for name, value in session.facts.items() if name not in ("call", "bos_count", "token_ids")}
    return session.journal(path, {**facts, "task": task.name, "temperature": temperature})


def _seeds(given: int | Iterable[int] | None, task: Task, sampled: bool, n_seeds: int) -> list[int]:
    """The seeds as a list. Raises for several seeds that would all give the same answer."""
    differ = task.random or sampled
    if given is None:
        return list(range(n_seeds if differ else 1))
    if isinstance(given, int):
        positive(given, "seeds", "a number of samples")
    seeds = list(range(given) if isinstance(given, int) else given)
    if len(seeds) > 1 and not differ:
        raise InputError(
            f"The task {task.name!r} has the same question for every seed, and decoding is greedy, so that "
            f"{len(seeds)} seeds would count one answer several times.",
            "Give seeds=1, a task with random items, or temperature= to sample answers.",
        )
    return seeds
