"""The splits of a probe: which prompts it is fitted to, which it is tested on, and the targets of the control task.

The R² of a probe depends on the number of prompts to which it is fitted. That number is therefore fixed: more samples
give a more precise test, but not a better probe, and R² has the same meaning for 128 samples and for 1,024.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from squashlens.errors import InputError
from squashlens.sequences import Ids
from squashlens.tasks import Question, Task
from squashlens.tasks.reading import is_number

N_TRAIN = 64  # prompts of each fit by default
TESTED = 16  # least number of prompts to test on; with fewer, R² is mostly chance
SPLITS = 100  # number of random splits, enough to estimate the 2.5 % quantiles


@dataclass(frozen=True)
class Split:
    """The training and test prompts of one length, as indices of distinct prompts, with weights of the test prompts.

    The weight of a test prompt is how often it was drawn, times how often the resampling of this split contains it.
    """

    train: np.ndarray
    test: np.ndarray
    weight: np.ndarray


@dataclass(frozen=True)
class Answers:
    """The right answers of questions, and how probes are fitted to them.

    Over (length, seed): `truth`, `prompt` (an index that equal prompts share) and `tokens`, the number of tokens.
    `items` has the items of each question as numbers, (seed, place) for each length.
    """

    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    truth: np.ndarray
    prompt: np.ndarray
    tokens: np.ndarray
    items: tuple[np.ndarray, ...]
    n_train: int = N_TRAIN
    splits: int = SPLITS

    @classmethod
    def of(
        cls, task: Task, questions: tuple[Question, ...], ids: list[Ids], n_train: int = N_TRAIN, splits: int = SPLITS
    ) -> "Answers":
        """The answers of questions. Raises for answers that are not numbers, unless they are all the same."""
        one = len({q.truth for q in questions}) == 1  # then it may be a word, since nothing can be learned about it
        if not one and not (task.numeric and all(is_number(q.truth) for q in questions)):
            raise InputError(
                f"The right answers of the task {task.name!r} are not numbers.",
                "Probe a task whose answers are counts or digits.",
            )
        lengths, seeds = (tuple(dict.fromkeys(getattr(q, part) for q in questions)) for part in ("length", "seed"))
        shape = (len(lengths), len(seeds))
        truth = np.array([0 if one else int(q.truth) for q in questions], dtype=float).reshape(shape)
        _, prompt = np.unique([q.prompt for q in questions], return_inverse=True)
        kinds = {item: place for place, item in enumerate(sorted({item for q in questions for item in q.items}))}
        rows = [[kinds[item] for item in q.items] for q in questions]
        items = tuple(np.array(rows[at * shape[1] : (at + 1) * shape[1]]) for at in range(shape[0]))
        return cls(
            lengths, seeds, truth, prompt.reshape(shape), np.array(list(map(len, ids))).reshape(shape), items, n_train,
            splits,
        )  # fmt: skip

    @property
    def prompts(self) -> list[int]:
        """The number of distinct prompts at each length."""
        return [len(np.unique(row)) for row in self.prompt]

    @property
    def needed(self) -> int:
        """The number of distinct prompts that a probe needs at one length."""
        return self.n_train + TESTED

    @cached_property
    def varied(self) -> list[bool]:
        """Whether the right answer varies between samples, for each length."""
        return [bool(np.ptp(row) > 0) for row in self.truth]

    @cached_property
    def probed(self) -> list[int]:
        """The indices of the lengths with enough distinct prompts and varying answers."""
        return [at for at, many in enumerate(self.prompts) if many >= self.needed and self.varied[at]]

    @cached_property
    def different(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each length: the first sample of each distinct prompt, the prompt of each sample, and their counts."""
        return [np.unique(row, return_index=True, return_inverse=True, return_counts=True)[1:] for row in self.prompt]

    def coords(self) -> dict[str, list[int]]:
        """The coordinates of results over lengths and seeds."""
        return {"length": list(self.lengths), "seed": list(self.seeds)}

    def split(self, at: int, number: int) -> Split:
        """A numbered split at a length, the same for the model, the random models and the control task.

        Of the shuffled samples the first `n_train` distinct prompts train; all others test, resampled with replacement.
        """
        _, prompt, drawn = self.different[at]
        rng = np.random.default_rng([number, self.lengths[at]])
        order = prompt[rng.permutation(len(prompt))]
        distinct, first = np.unique(order, return_index=True)
        order = distinct[np.argsort(first)]
        train, test = order[: self.n_train], order[self.n_train :]
        again = np.bincount(rng.integers(len(test), size=len(test)), minlength=len(test))
        return Split(train, test, drawn[test] * again)

    def control(self, at: int, number: int) -> np.ndarray:
        """The target of the control task for each distinct prompt: Σ_i c(i, x_i), with each c(i, x) from N(0, 1)."""
        rng = np.random.default_rng([number, self.lengths[at], 1])
        items = self.items[at][self.different[at][0]]
        places = np.arange(items.shape[1])
        table = rng.standard_normal((items.shape[1], max(part.max() for part in self.items) + 1))
        return table[places, items].sum(axis=1)

    def targets(self, at: int, number: int) -> np.ndarray:
        """The targets of distinct prompts, (prompt, target): the right answer, and that of the control task."""
        return np.stack([self.truth[at, self.different[at][0]], self.control(at, number)], axis=1)

    def of_samples(self, at: int, test: np.ndarray, values: np.ndarray) -> np.ndarray:
        """The values of some distinct prompts, for each sample; NaN for samples of the other prompts."""
        first, prompt, _ = self.different[at]
        by_prompt = np.full(len(first), np.nan)
        by_prompt[test] = values
        return by_prompt[prompt]
