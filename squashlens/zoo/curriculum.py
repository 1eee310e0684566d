"""What the bundled model is taught: short question, digits, end marker, answer.

A task asks something of a digit sequence; a pattern draws the sequence; a comma may follow every third
digit (the paper's figure 5d). Everything is a function of a `random.Random`, so a step of training is
reproducible from its seed and number alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from squashlens.zoo.tokenizer import END

MAX_TRAINED = 48  # digits in the longest training sequence
Digits = list[int]


def repeated(n: int, rng: Random) -> Digits:
    return [1] * n


def odd_last(n: int, rng: Random) -> Digits:
    """`1…10`, the paper's sequence for copying the last element."""
    return [1] * (n - 1) + [0]


def odd_first(n: int, rng: Random) -> Digits:
    """`01…1`, the paper's sequence for copying the first element."""
    return [0] + [1] * (n - 1)


def alternating(n: int, rng: Random) -> Digits:
    start = rng.randint(0, 1)
    return [(start + i) % 2 for i in range(n)]


def bernoulli(n: int, rng: Random, p: float = 0.7) -> Digits:
    return [int(rng.random() < p) for _ in range(n)]


def any_bernoulli(n: int, rng: Random) -> Digits:
    """Ones with a probability that is itself drawn, so that a count does not follow from the length."""
    return bernoulli(n, rng, rng.random())


def random_digits(n: int, rng: Random) -> Digits:
    return [rng.randint(0, 9) for _ in range(n)]


PATTERNS: dict[str, Callable[[int, Random], Digits]] = {
    "repeated": repeated,
    "alternating": alternating,
    "bernoulli": bernoulli,
    "any_bernoulli": any_bernoulli,
    "random": random_digits,
    "odd_last": odd_last,
    "odd_first": odd_first,
}
BINARY = tuple(p for p in PATTERNS if p != "random")


@dataclass(frozen=True)
class Task:
    """A question about digits: how it may be put, what the answer is, how often it is drawn."""

    name: str
    questions: tuple[str, ...]
    answer: Callable[[Digits], str]
    weight: float
    patterns: tuple[str, ...] = tuple(PATTERNS)


def _ones(digits: Digits) -> str:
    return str(digits.count(1))


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "count",
            (
                "How many ones are in the following sequences?",
                "How many ones are in the following sequence?",
                "Please count the number of ones in the following sequence:",
            ),
            _ones,
            weight=5,
        ),
        Task("sum", ("Please perform the following sum:",), _ones, weight=2, patterns=BINARY),
        Task("last", ("What is the last digit in this sequence?",), lambda d: str(d[-1]), weight=1.5),
        Task("first", ("What is the first digit in this sequence?",), lambda d: str(d[0]), weight=1.5),
        Task("copy", ("Can you copy the following number?",), lambda d: "".join(map(str, d)), weight=1.5),
    )
}


@dataclass(frozen=True)
class Example:
    """One prompt (it ends with the end marker) and the answer a perfect model would give."""

    prompt: str
    answer: str
    task: str
    pattern: str
    length: int
    commas: bool


def spell(digits: Digits, commas: bool) -> str:
    """Digits as text, with a comma between groups of three if asked; never a comma at the end."""
    groups = [digits[i : i + 3] for i in range(0, len(digits), 3)] if commas else [digits]
    return ",".join("".join(map(str, group)) for group in groups)


def draw(task: Task, length: int, commas: bool, rng: Random, pattern: str | None = None) -> Example:
    """One example of `task` over `length` digits; the pattern is drawn if not given."""
    pattern = pattern or rng.choice(task.patterns)
    digits = PATTERNS[pattern](length, rng)
    prompt = f"{rng.choice(task.questions)} {spell(digits, commas)} {END}"
    answer = task.answer(digits)
    if task.name == "copy":
        answer = spell(digits, commas)
    return Example(prompt, answer, task.name, pattern, length, commas)


def training_batch(step: int, total: int, size: int, seed: int) -> list[Example]:
    """The examples of one step: one length and one comma style, so that padding stays small.

    The longest length grows from 8 to `MAX_TRAINED` over the first fifth of training. Copying, whose
    answers are long, gets batches of its own.
    """
    rng = Random(f"{seed}:{step}")
    longest = min(MAX_TRAINED, 8 + int((MAX_TRAINED - 8) * step / (0.2 * total)))
    length, commas = rng.randint(1, longest), rng.random() < 0.4
    copy, others = TASKS["copy"], [t for t in TASKS.values() if t.name != "copy"]
    everything = sum(t.weight for t in TASKS.values())
    if rng.random() < copy.weight / everything:
        return [draw(copy, length, commas, rng) for _ in range(size)]
    tasks = rng.choices(others, [t.weight for t in others], k=size)
    return [draw(task, length, commas, rng) for task in tasks]
