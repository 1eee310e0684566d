"""What the bundled model was taught: a short question, digits, an end marker, and the answer.

A task is a question about a sequence of digits, and a pattern draws the sequence. A comma may follow every third digit
(the paper's figure 5d).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

END = "="  # the end marker, without which a model cannot know that a growing sequence has ended
MAX_TRAINED = 48  # digits in the longest training sequence
Digits = Sequence[int]


def repeated(n: int, rng: Random) -> list[int]:
    return [1] * n


def odd_last(n: int, rng: Random) -> list[int]:
    """Digits `1…10`, the paper's sequence for copying the last element."""
    return [1] * (n - 1) + [0]


def odd_first(n: int, rng: Random) -> list[int]:
    """Digits `01…1`, the paper's sequence for copying the first element."""
    return [0] + [1] * (n - 1)


def alternating(n: int, rng: Random) -> list[int]:
    start = rng.randint(0, 1)
    return [(start + i) % 2 for i in range(n)]


def bernoulli(n: int, rng: Random, p: float = 0.7) -> list[int]:
    return [int(rng.random() < p) for _ in range(n)]


def any_bernoulli(n: int, rng: Random) -> list[int]:
    """Ones with a probability that is drawn for each sequence, so that a count cannot be guessed from the length."""
    return bernoulli(n, rng, rng.random())


def random_digits(n: int, rng: Random) -> list[int]:
    return [rng.randint(0, 9) for _ in range(n)]


PATTERNS: dict[str, Callable[[int, Random], list[int]]] = {
    "repeated": repeated,
    "alternating": alternating,
    "bernoulli": bernoulli,
    "any_bernoulli": any_bernoulli,
    "random": random_digits,
    "odd_last": odd_last,
    "odd_first": odd_first,
}
BINARY = tuple(pattern for pattern in PATTERNS if pattern != "random")


@dataclass(frozen=True)
class Task:
    """A question about digits: its wordings, the function for the answer, and how often it is drawn."""

    name: str
    questions: tuple[str, ...]
    answer: Callable[[Digits], str]
    weight: float
    patterns: tuple[str, ...] = tuple(PATTERNS)


def count_ones(digits: Digits) -> str:
    return str(digits.count(1))


def last_digit(digits: Digits) -> str:
    return str(digits[-1])


def first_digit(digits: Digits) -> str:
    return str(digits[0])


def all_digits(digits: Digits) -> str:
    return "".join(map(str, digits))


COUNT = Task(
    "count",
    (
        "How many ones are in the following sequences?",
        "How many ones are in the following sequence?",
        "Please count the number of ones in the following sequence:",
    ),
    count_ones,
    weight=5.0,
)
SUM = Task(
    "sum", ("Please perform the following sum:",), count_ones, 2.0, patterns=BINARY
)
LAST = Task("last", ("What is the last digit in this sequence?",), last_digit, 1.5)
FIRST = Task("first", ("What is the first digit in this sequence?",), first_digit, 1.5)
COPY = Task("copy", ("Can you copy the following number?",), all_digits, 1.5)
TASKS = {task.name: task for task in (COUNT, SUM, LAST, FIRST, COPY)}


def spell(digits: Sequence[int], commas: bool) -> str:
    """Digits as text, if requested with commas between groups of three, never with a comma at the end."""
    text = all_digits(digits)
    if not commas:
        return text
    return ",".join(text[start : start + 3] for start in range(0, len(text), 3))
