"""Questions put to a model at hand: which ones, and as which ids."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from squashlens._typing import Bridge, Template, one_of, positive, whole
from squashlens.errors import InputError
from squashlens.journal import Journal
from squashlens.measure._session import Session
from squashlens.measure.answers import described
from squashlens.model.branches import Ids
from squashlens.model.proof import require_sound
from squashlens.model.tokens import as_chat, encode, tokens
from squashlens.tasks import DRAWN_SEEDS, Question, Task


@dataclass(frozen=True)
class Asking:
    """A sound model, a task, its questions, and how they are put: by themselves or as a chat, with or without the
    opening words of the answer."""

    session: Session
    task: Task
    questions: tuple[Question, ...]
    template: Template
    opened: bool

    @classmethod
    def start(
        cls, model: Any, task: object, lengths: Any, seeds: Any, function: str,
        *, modes: Any, template: Any, opened: bool, drawn: bool = False, draws: int = DRAWN_SEEDS, **arguments: Any,
    ) -> "Asking":  # fmt: skip
        """Check everything before anything is run; note what the provenance will say.

        `drawn` says that answers are, so that seeds differ even where the question is the same; where they differ and
        none are given, there are `draws` of them.
        """
        if not isinstance(task, Task):
            raise InputError(f"Expected a task, got {type(task).__name__}.", "Say `squashlens.tasks.find('sum')`.")
        one_of(template, Template, "template")
        numbers = {"lengths": list(map(whole, lengths)), "seeds": _seeds(seeds, task, drawn, draws)}
        chosen = {**numbers, "modes": _listed(modes)}
        questions = tuple(task.asked(**chosen))
        chosen |= {f"{part}s": list(dict.fromkeys(getattr(q, part) for q in questions)) for part in ("length", "seed")}
        sound = require_sound(model)
        longest = max(questions, key=lambda question: len(question.prompt))
        ids = torch.tensor(_ids(sound, task, longest, template, opened))
        said = {**chosen, "template": template, "opened": opened, **arguments}
        # Of a chat, whether it begins with BOS is for its template to say.
        session = Session.start(sound, ids, "as-given" if template == "chat" else "family", function, **said)
        session = replace(session, facts={**session.facts, "task": described(task)})
        return cls(session, task, questions, template, opened)

    def journal(self, path: str | Path | None, temperature: float = 0.0) -> Journal:
        """Answers to go on from: of one model, task and temperature; what was asked is in their names."""
        facts = {name: value for name, value in self.session.facts.items() if name not in ("call", "bos_count")}
        return self.session.journal(path, {**facts, "task": self.task.name, "temperature": temperature})

    def ids(self, question: Question) -> Ids:
        """The question as the model is given it."""
        return _ids(self.session.model, self.task, question, self.template, self.opened)


def _ids(model: Bridge, task: Task, question: Question, template: Template, opened: bool) -> Ids:
    opening = task.opening if opened else ""
    if template == "none":
        return tuple(tokens(model, f"{question.prompt} {opening}" if opening else question.prompt)[0].tolist())
    ids = encode(model, as_chat(model, question.prompt) + opening)
    return tuple(tokens(model, torch.tensor(ids), bos="as-given")[0].tolist())


def _seeds(given: Any, task: Task, drawn: bool, draws: int) -> list[int]:
    """Seeds as numbers; several are refused where all of them would be the same."""
    differ = task.random or drawn
    if given is None:
        return list(range(draws if differ else 1))
    given = whole(given)
    if isinstance(given, int):
        positive(max(given, 1), "seeds", "a number of draws")  # 0 is refused below
    seeds = list(range(given)) if isinstance(given, int) and not isinstance(given, bool) else _listed(given)
    seeds = [whole(seed) for seed in seeds]
    if len(seeds) > 1 and not differ:
        raise InputError(
            f"{task.name!r} asks every seed the same and is answered greedily: {len(seeds)} seeds would count one "
            "answer as many.",
            "Give seeds=1, a task that draws its items, or draw the answers with temperature=.",
        )
    return seeds


def _listed(values: Any) -> list[Any]:
    return [values] if isinstance(values, str) or not isinstance(values, Iterable) else list(values)
