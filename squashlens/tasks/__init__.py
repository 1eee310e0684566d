"""Copying and counting tasks: the question, the right answer, and how a model's answer is read. No model is involved.

`find(name)` returns a task and `names()` lists them: the paper's tasks, and the tasks that the bundled model was
trained on. `Task` makes your own task; `reading` has the functions that read answers. `haystack` hides facts in a text.
"""

import difflib

from squashlens._typing import short_repr
from squashlens.checks.arguments import validated
from squashlens.errors import InputError
from squashlens.tasks import reading
from squashlens.tasks.haystacks import haystack
from squashlens.tasks.paper import PAPER, TAUGHT
from squashlens.tasks.reading import Reading
from squashlens.tasks.task import DRAWN_SEEDS, Question, Task

__all__ = [
    "DRAWN_SEEDS",
    "Question",
    "Reading",
    "Task",
    "find",
    "haystack",
    "names",
    "reading",
]

_TASKS = {task.name: task for task in PAPER + TAUGHT}


def __dir__() -> list[str]:
    return list(__all__)


def names() -> tuple[str, ...]:
    """The names of all tasks, the paper's tasks first."""
    return tuple(_TASKS)


@validated
def find(name: str | Task) -> Task:
    """The task with the given name, one of `names()`; an error lists similar names. A task is returned as it is.

    >>> from squashlens.tasks import find
    >>> find("count_ones").ask(4).truth
    '4'
    """
    if isinstance(name, Task):
        return name
    if name not in _TASKS:
        near = difflib.get_close_matches(str(name), _TASKS, n=3, cutoff=0.5)
        if not near:
            near = list(_TASKS)[: len(PAPER)]
        raise InputError(
            f"There is no task {short_repr(name)}.",
            f"Similar names: {', '.join(near)}.",
        )
    return _TASKS[name]
