"""Copying and counting as tasks: what is asked, what is right, how an answer is read. No model is in here.

`find(name)` gives a task, `names()` lists them: those of the paper (`copying`, `counting`), and what the bundled model
was taught (`taught`). `Task` makes your own; `reading` has the readers of answers.
"""

import difflib

from squashlens._typing import shown
from squashlens.arguments import validated
from squashlens.errors import InputError
from squashlens.tasks import reading
from squashlens.tasks.copying import COPYING
from squashlens.tasks.counting import COUNTING
from squashlens.tasks.reading import Reading
from squashlens.tasks.task import DRAWN_SEEDS, Question, Task
from squashlens.tasks.taught import TAUGHT

__all__ = ["DRAWN_SEEDS", "Question", "Reading", "Task", "find", "names", "reading"]

_TASKS = {task.name: task for task in (*COPYING, *COUNTING, *TAUGHT)}


def names() -> tuple[str, ...]:
    """Every task there is, the paper's first."""
    return tuple(_TASKS)


@validated
def find(name: str) -> Task:
    """A task by its name; an unknown one is refused, with near ones.

    >>> find("count_ones").ask(4).truth
    '4'
    """
    if name not in _TASKS:
        near = difflib.get_close_matches(str(name), _TASKS, n=3, cutoff=0.5) or [*_TASKS][:14]
        raise InputError(f"There is no task {shown(name)}.", f"Near it: {', '.join(near)}.")
    return _TASKS[name]
