"""Fits of one size, repeated: which prompts a probe sees, which it is tested on, and the control's targets.

How well a probe does depends on how many prompts it is fitted to. So that number is fixed: more draws test a probe
better, they do not make it a better probe, and R² means the same for 128 draws and for 1,024.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from squashlens.errors import InputError
from squashlens.model.branches import Ids
from squashlens.tasks import Question, Task
from squashlens.tasks.reading import is_number

FIT = 64  # prompts that each fit sees unless fit= says otherwise
TESTED = 16  # least number of further prompts to test on: R² of fewer is mostly chance
SPLITS = 100  # times that prompts are divided: enough for 2.5 % at either end


@dataclass(frozen=True)
class Split:
    """Prompts at one length by their places among the different ones: to fit to, to test on, and how much each of
    those to test on counts (how often it was drawn, times how often this split's resampling has it)."""

    train: np.ndarray
    test: np.ndarray
    weight: np.ndarray


@dataclass(frozen=True)
class Answers:
    """The right answers of questions, (length, seed), numbers of their prompts (one for all that are the same), number
    of tokens, items as numbers (length: seed × place), and how probes are fitted."""

    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    truth: np.ndarray
    prompt: np.ndarray
    tokens: np.ndarray
    items: tuple[np.ndarray, ...]
    fit: int = FIT
    splits: int = SPLITS

    @classmethod
    def of(
        cls, task: Task, questions: tuple[Question, ...], ids: list[Ids], fit: int = FIT, splits: int = SPLITS
    ) -> "Answers":
        """Refuses answers that are no numbers, unless they are all the same."""
        one = len({q.truth for q in questions}) == 1  # then it may be a word: there is nothing to learn
        if not one and not (task.numeric and all(is_number(q.truth) for q in questions)):
            raise InputError("The right answers are not numbers.", "Probe a task that counts, or one digit.")
        lengths, seeds = (tuple(dict.fromkeys(getattr(q, part) for q in questions)) for part in ("length", "seed"))
        shape = (len(lengths), len(seeds))
        truth = np.array([0 if one else int(q.truth) for q in questions], dtype=float).reshape(shape)
        _, prompt = np.unique([q.prompt for q in questions], return_inverse=True)
        kinds = {item: place for place, item in enumerate(sorted({item for q in questions for item in q.items}))}
        rows = [[kinds[item] for item in q.items] for q in questions]
        items = tuple(np.array(rows[at * shape[1] : (at + 1) * shape[1]]) for at in range(shape[0]))
        return cls(
            lengths, seeds, truth, prompt.reshape(shape), np.array(list(map(len, ids))).reshape(shape), items, fit,
            splits,
        )  # fmt: skip

    @property
    def prompts(self) -> list[int]:
        """How many different ones there are at each length."""
        return [len(np.unique(row)) for row in self.prompt]

    @property
    def needed(self) -> int:
        """How many different prompts a probe at one length takes."""
        return self.fit + TESTED

    @cached_property
    def varied(self) -> list[bool]:
        """Where the right answer is not the same in all draws."""
        return [bool(np.ptp(row) > 0) for row in self.truth]

    @cached_property
    def probed(self) -> list[int]:
        """Places of the lengths at which there are prompts enough and the answer varies."""
        return [at for at, many in enumerate(self.prompts) if many >= self.needed and self.varied[at]]

    @cached_property
    def different(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """By length: the draw that first shows each different prompt, each draw's prompt, draws of each prompt."""
        return [np.unique(row, return_index=True, return_inverse=True, return_counts=True)[1:] for row in self.prompt]

    def coords(self) -> dict[str, list[int]]:
        return {"length": list(self.lengths), "seed": list(self.seeds)}

    def split(self, at: int, number: int) -> Split:
        """The split with this number at a length: the same for the model, its twins and the control.

        Draws are put in random order, and the fit sees the first `fit` different prompts among them. All others are
        for testing, resampled with replacement. So both what a fit happens to see and what it happens to be tested on
        vary from split to split.
        """
        _, prompt, drawn = self.different[at]
        rng = np.random.default_rng([number, self.lengths[at]])
        order = prompt[rng.permutation(len(prompt))]
        shown, first = np.unique(order, return_index=True)
        order = shown[np.argsort(first)]
        train, test = order[: self.fit], order[self.fit :]
        again = np.bincount(rng.integers(len(test), size=len(test)), minlength=len(test))
        return Split(train, test, drawn[test] * again)

    def control(self, at: int, number: int) -> np.ndarray:
        """The control task's target of each different prompt: Σ_i c(i, x_i), every c(i, x) drawn from N(0, 1)."""
        rng = np.random.default_rng([number, self.lengths[at], 1])
        items = self.items[at][self.different[at][0]]
        places = np.arange(items.shape[1])
        table = rng.standard_normal((items.shape[1], max(part.max() for part in self.items) + 1))
        return table[places, items].sum(axis=1)

    def targets(self, at: int, number: int) -> np.ndarray:
        """(prompt, target) of the different prompts: the right answer and the control's."""
        return np.stack([self.truth[at, self.different[at][0]], self.control(at, number)], axis=1)

    def of_draws(self, at: int, test: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Values of some of the different prompts, for every draw; NaN for draws of the others."""
        first, prompt, _ = self.different[at]
        by_prompt = np.full(len(first), np.nan)
        by_prompt[test] = values
        return by_prompt[prompt]
