"""Tasks that ask for the last or the first digit of a sequence: figure 2, with the prompt of appendix C.1.

In every sequence of the figure the right answer is 0: the last digit of 1…10 or …1010, the first digit of 01…1 or
0101…. With random digits the right answer varies, as a probe requires.
"""

from collections.abc import Sequence
from random import Random

from squashlens.tasks.quotations import HINT, LAST, LAST_ANSWER
from squashlens.tasks.reading import digit
from squashlens.tasks.task import Items, Task

FIRST = LAST.replace("the last digit", "the first digit")


def last_odd(n: int, rng: Random) -> list[str]:
    """Ones and a final zero: 1 … 1 0."""
    return ["1"] * (n - 1) + ["0"]


def first_odd(n: int, rng: Random) -> list[str]:
    """A zero and then ones: 0 1 … 1."""
    return ["0"] + ["1"] * (n - 1)


def to_zero(n: int, rng: Random) -> list[str]:
    """Alternating digits that end in zero: … 1 0 1 0."""
    return ["01"[(n - 1 - i) % 2] for i in range(n)]


def from_zero(n: int, rng: Random) -> list[str]:
    """Alternating digits that begin with zero: 0 1 0 1 …"""
    return ["01"[i % 2] for i in range(n)]


def even_odds(n: int, rng: Random) -> list[str]:
    """Independent digits, 0 or 1 with equal probability."""
    return [str(rng.randint(0, 1)) for _ in range(n)]


def last(items: Sequence[str]) -> str:
    return items[-1]


def first(items: Items) -> str:
    return items[0]


def _both(name: str, draws: tuple, source: str, *, hint: str = "", random: bool = False) -> tuple[Task, Task]:
    """The two tasks that ask for the last and for the first digit."""
    tail = f" {hint}" if hint else ""
    kept = {"read": digit, "opening": LAST_ANSWER, "random": random, "source": source}
    return (
        Task(f"copy_last{name}", LAST + tail, draws[0], last, **kept),
        Task(f"copy_first{name}", FIRST + tail, draws[1], first, **kept),
    )


COPYING = (
    *_both("", (last_odd, first_odd), "figure 2 (a)"),
    *_both("_hint", (last_odd, first_odd), "figure 2 (b)", hint=HINT),
    *_both("_alternating", (to_zero, from_zero), "figure 2 (c)"),
    *_both("_random", (even_odds, even_odds), "", random=True),
)
