"""The tasks that the bundled model was trained on: a short question, the end marker, then the answer alone."""

from collections.abc import Callable, Sequence
from random import Random

from squashlens.tasks import reading
from squashlens.tasks.paper import ONE
from squashlens.tasks.task import PLACE, Items, Task, joined
from squashlens.zoo.curriculum import END, PATTERNS, TASKS, spell

DRAWN = ("alternating", "bernoulli", "any_bernoulli", "random")
READERS = {"copy": reading.digits, "first": reading.digit, "last": reading.digit}


def taught(name: str, pattern: str, *, commas: bool = False) -> Task:
    """The task that asks one of the bundled model's questions about one of its patterns (`squashlens.zoo.curriculum`).

    Each question uses its first wording. With `commas`, a comma follows every third digit.
    """
    question = TASKS[name].questions[0]

    def grouped(items: Sequence[str]) -> str:
        return spell(list(map(int, items)), commas=True)

    show = grouped if commas else joined

    def right(items: Items) -> str:
        return show(items) if name == "copy" else TASKS[name].answer(list(map(int, items)))

    return Task(
        f"taught_{name}_{pattern}{'_commas' if commas else ''}",
        f"{question} {PLACE} {END}",
        _drawn(pattern),
        right,
        show,
        READERS.get(name, ONE),
        numeric=name != "copy",
        random=pattern in DRAWN,
        source="the bundled model's card",
    )


def _drawn(pattern: str) -> Callable[[int, Random], list[str]]:
    return lambda n, rng: list(map(str, PATTERNS[pattern](n, rng)))


TAUGHT = tuple(
    taught(name, pattern, commas=commas)
    for name, task in TASKS.items()
    for pattern in task.patterns
    for commas in (False, True)
)
