"""Examples and batches from the questions and patterns of `squashlens.example_models.curriculum`.

Everything is a function of a `random.Random`, so a training step is reproducible from its seed and number alone.
"""

from dataclasses import dataclass
from random import Random

from squashlens.example_models.curriculum import (
    END,
    MAX_TRAINED,
    PATTERNS,
    TASKS,
    Task,
    spell,
)


@dataclass(frozen=True)
class Example:
    """A question about a sequence of digits, asked after the first `cuts[k]` digits for each k.

    A prompt ends with the end marker, and the answer is the right one. Several cuts share one sequence, so that one
    pass over it trains the answer at many lengths.
    """

    task: str
    question: str
    digits: tuple[int, ...]
    commas: bool
    cuts: tuple[int, ...]

    def stem(self, cut: int) -> str:
        """The prompt without the end marker."""
        return f"{self.question} {spell(self.digits[:cut], self.commas)}"

    def prompt(self, cut: int) -> str:
        return f"{self.stem(cut)} {END}"

    def answer(self, cut: int) -> str:
        digits = self.digits[:cut]
        return (
            spell(digits, self.commas)
            if self.task == "copy"
            else TASKS[self.task].answer(digits)
        )


def draw(
    task: Task,
    length: int,
    commas: bool,
    rng: Random,
    pattern: str | None = None,
    cuts: int = 1,
) -> Example:
    """One example of `task` with `length` digits, asked at the end and at `cuts - 1` earlier places."""
    pattern = pattern or rng.choice(task.patterns)
    digits = PATTERNS[pattern](length, rng)
    places = (*rng.sample(range(1, length), min(cuts, length) - 1), length)
    return Example(task.name, rng.choice(task.questions), tuple(digits), commas, places)


# Counting is hard for irregular sequences. In 1…10 the odd digit is odd only while it is at the end.
HARD, EASY = (
    ("bernoulli", "any_bernoulli", "random"),
    ("repeated", "alternating", "odd_last", "odd_first"),
)
CYCLES = (10_000, 8_000)  # steps of each cycle; each has its own learning-rate schedule


def cycle_of(step: int) -> tuple[int, float]:
    """The cycle that a step belongs to, and the step's progress in that cycle, in [0, 1)."""
    for number, length in enumerate(CYCLES):
        if step < length:
            return number, step / length
        step -= length
    raise ValueError(f"Training ends after {sum(CYCLES)} steps.")


def training_batch(step: int, size: int, seed: int) -> list[Example]:
    """The examples of one step, all of one length and with or without commas, so that there is little padding."""
    rng = Random(f"{seed}:{step}")
    number, progress = cycle_of(step)
    return (_first_cycle, _second_cycle)[number](progress, size, rng)


def _first_cycle(progress: float, size: int, rng: Random) -> list[Example]:
    """Examples of the first cycle: all patterns equally often, one question per sequence.

    The longest length grows from 8 digits during the first fifth of the cycle.
    """
    longest = min(MAX_TRAINED, 8 + int((MAX_TRAINED - 8) * progress / 0.2))
    length, commas = rng.randint(1, longest), rng.random() < 0.4
    copy, others = TASKS["copy"], [t for t in TASKS.values() if t.name != "copy"]
    everything = sum(t.weight for t in TASKS.values())
    if rng.random() < copy.weight / everything:
        return [draw(copy, length, commas, rng) for _ in range(size)]
    tasks = rng.choices(others, [t.weight for t in others], k=size)
    return [draw(task, length, commas, rng) for task in tasks]


def _second_cycle(progress: float, size: int, rng: Random) -> list[Example]:
    """Examples of the second cycle: mostly irregular digits, up to eight questions per sequence.

    Sequences to copy grow from short to long.
    """
    commas = rng.random() < 0.5
    if rng.random() < 0.2:
        longest = min(MAX_TRAINED, 6 + int((MAX_TRAINED - 6) * progress / 0.8))
        length = rng.randint(1, longest)
        return [draw(TASKS["copy"], length, commas, rng) for _ in range(size)]
    length = rng.randint(8, MAX_TRAINED)
    tasks = rng.choices(("count", "sum", "last", "first"), (6, 2, 1, 1), k=size)
    examples = []
    for name in tasks:
        allowed = [
            p
            for p in (HARD if rng.random() < 0.85 else EASY)
            if p in TASKS[name].patterns
        ]
        examples.append(
            draw(TASKS[name], length, commas, rng, rng.choice(allowed), cuts=8)
        )
    return examples
