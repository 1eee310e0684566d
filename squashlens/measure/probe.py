"""Is the answer in the representation, whether or not it is said? Ridge regression of it, layer by layer.

A linear probe reads what the model may not: where it finds the count and the answer is wrong, the count is represented
and not read out.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from squashlens._typing import Bridge, Direction, Mode, Template, one_of, positive
from squashlens.errors import InputError
from squashlens.measure._asking import Asking
from squashlens.measure._pairs import with_y
from squashlens.model.anatomy import n_blocks, residual_sites
from squashlens.model.ends import Ends, ends
from squashlens.model.registry import measured
from squashlens.results import Variable
from squashlens.tasks import Question, Task
from squashlens.tasks.reading import is_number

PENALTIES = np.logspace(-3, 6, 19)  # chosen among in each fit, by generalised cross-validation
ENOUGH = 128  # draws at each length unless seeds= says otherwise: folds leave out whole ones


@measured
def probe(
    model: Bridge,
    task: Task,
    *,
    lengths: Iterable[int],
    seeds: int | Iterable[int] | None = None,
    mode: Mode = "answer_only",
    template: Template = "none",
    opened: bool = True,
    direction: Direction = "own",
    folds: int = 5,
    chunk: int | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """How well the right answer can be read off the last token's representation by a line, by layer and length.

    Ridge regression of the right answer (a number) on v_n⁽⁰⁾ … v_n⁽ᴸ⁾ and y_n, at the token the answer is given from;
    every prediction is of a prompt that was left out of the fit, however often it was drawn: short sequences come again
    and again. The penalty is chosen within each fit.

    Args:
        task: one whose right answers are numbers and differ between seeds. Where they do not (a sequence of ones), the
            probe learns from the other lengths instead, and there is no R² at one length.
        seeds: how many draws at each length, or their seeds; 128 if not given.
        opened: end each prompt with the opening words of the answer, so that the answer comes next.
        direction: ``"own"``, a fit for each length; ``"shared"``, one direction for all with an offset for each.
        folds: parts that the different prompts are divided into, each left out once.

    Returns:
        Dataset. Over (layer, length): `r2` = 1 − Σ(truth − prediction)² / Σ(truth − mean at this length)², NaN where
        the truth does not vary; `probe_right`, the share of predictions that round to the truth, NaN where draws at
        one length have one truth, since there is nothing to find. Over (layer): `r2_overall`, as `r2` with sums over
        all lengths. Each also with `_y`. Over (length, seed): `truth` and `prediction`, of y. Over (length):
        `prompts`, how many different ones were drawn.

    Refuses: tasks whose answers are no numbers, or all the same; fewer different prompts at a length (or fewer lengths,
    where all prompts of one are the same) than folds.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> task = sl.tasks.find("taught_count_bernoulli")
    >>> found = sl.probe(model, task, lengths=[24, 40], seeds=64, progress=False)
    >>> bool(found["r2_overall_y"] > 0.9)
    True
    """
    one_of(direction, Direction, "direction")
    positive(folds, "folds", "a number of parts")
    asking = Asking.start(
        model, task, lengths, seeds, "probe", modes=[mode], template=template, opened=opened, draws=ENOUGH,
        direction=direction, folds=folds,
    )  # fmt: skip
    data = Answers.of(task, asking.questions, folds)
    sound, prompts = asking.session.model, [asking.ids(question) for question in asking.questions]
    shown = ends(sound, prompts, residual_sites(sound), chunk=chunk, progress=progress)
    found = probed(data, streams(sound, shown), direction, progress)
    layers = list(range(n_blocks(sound) + 1))
    return asking.session.dataset(f"probe of {task.name}", {"layer": layers, **data.coords()}, found)


def streams(model: Bridge, shown: Ends) -> Float[Tensor, "layer branch d"]:
    """v⁽⁰⁾ … v⁽ᴸ⁾ and y of each prompt, at its last token."""
    return torch.stack([shown.values[site].float() for site in residual_sites(model)])


@dataclass(frozen=True)
class Answers:
    """The right answers of questions, (length, seed), in the order they were asked, numbers of their prompts (one for
    all that are the same), and into how many parts these are divided."""

    lengths: tuple[int, ...]
    seeds: tuple[int, ...]
    truth: np.ndarray
    prompt: np.ndarray
    folds: int

    @classmethod
    def of(cls, task: Task, questions: tuple[Question, ...], folds: int) -> "Answers":
        """Refuses what is no number, what is always the same, and fewer prompts than folds."""
        lengths, seeds = (tuple(dict.fromkeys(getattr(q, part) for q in questions)) for part in ("length", "seed"))
        if not task.numeric or not all(is_number(q.truth) for q in questions):
            raise InputError("The right answers are not numbers.", "Probe a task that counts, or one digit.")
        truth = np.array([int(q.truth) for q in questions], dtype=float).reshape(len(lengths), len(seeds))
        if np.ptp(truth) == 0:
            raise InputError(
                f"The right answer is {truth.flat[0]:g} every time: there is nothing to find.",
                "Probe a task whose answers differ, such as copy_last_random.",
            )
        _, prompt = np.unique([q.prompt for q in questions], return_inverse=True)
        data = cls(lengths, seeds, truth, prompt.reshape(truth.shape), folds)
        if not data.drawn and not 2 <= folds <= len(lengths):
            raise InputError(
                f"{len(lengths)} lengths cannot be divided into {folds} folds.", "Give more lengths, or folds=2."
            )
        if data.drawn and not 2 <= folds <= min(data.prompts):
            fewest = int(np.argmin(data.prompts))
            raise InputError(
                f"{data.prompts[fewest]} different prompts at length {lengths[fewest]} cannot be divided into {folds} "
                "folds.",
                "Give more seeds or longer sequences, or folds=2.",
            )
        return data

    @property
    def drawn(self) -> bool:
        """Whether several draws were asked about at each length."""
        return len(self.seeds) > 1

    @property
    def prompts(self) -> list[int]:
        """How many different ones there are at each length."""
        return [len(np.unique(row)) for row in self.prompt]

    def coords(self) -> dict[str, list[int]]:
        return {"length": list(self.lengths), "seed": list(self.seeds)}


def probed(
    data: Answers, representations: Float[Tensor, "layer branch d"], direction: Direction, progress: bool
) -> dict[str, Variable]:
    """R² and right predictions of each layer; the last layer is y."""
    from threadpoolctl import threadpool_limits

    bar = tqdm(representations, desc="probes", unit="layer", delay=1, disable=not progress)
    with threadpool_limits(1):  # many small fits: threads would wait for each other
        predicted = np.stack([held_out(layer.double().numpy(), data, direction) for layer in bar])
    spread = (data.truth - data.truth.mean(axis=1, keepdims=True)) ** 2
    varied = spread.sum(axis=1) > 0
    if data.drawn:  # what is the same in every draw is learned from the other draws, not from representations
        predicted[:, ~varied] = np.nan
    missed = (predicted - data.truth) ** 2
    around = spread if data.drawn else (data.truth - data.truth.mean()) ** 2
    each = np.full(missed.shape[:2], np.nan)
    each[:, varied] = 1 - missed.sum(axis=2)[:, varied] / spread.sum(axis=1)[varied]
    right = np.where(np.isnan(predicted), np.nan, np.rint(predicted) == data.truth).mean(axis=2)
    overall = 1 - np.nansum(missed, axis=(1, 2)) / around.sum() if around.any() else np.full(len(missed), np.nan)
    over = ("length", "seed")
    return {
        **with_y("r2", torch.tensor(each), "R² of the right answer, held out", "1"),
        **with_y("probe_right", torch.tensor(right), "share of predictions that round to the right answer", "1"),
        **with_y("r2_overall", torch.tensor(overall), "R² over all lengths, held out", "1", ("layer",)),
        "prompts": (over[:1], data.prompts, "different prompts at a length", "item"),
        "truth": (over, data.truth, "the right answer", "item"),
        "prediction": (over, predicted[-1], "what the probe of y says, held out", "item"),
    }


def held_out(features: np.ndarray, data: Answers, direction: Direction) -> np.ndarray:
    """Predictions, (length, seed), each from a fit that did not see its prompt (or its length, where there is one)."""
    target, predicted = data.truth.ravel(), np.empty(data.truth.size)
    row = np.repeat(np.arange(len(data.lengths)), len(data.seeds))
    for train, test in _divided(data, direction):
        if direction == "own" or not data.drawn:
            predicted[test] = _fitted(features[train], target[train], features[test])
            continue
        offset, level = _means(features, row, train), _means(target, row, train)
        centred, rest = features - offset[row], target - level[row]
        predicted[test] = level[row[test]] + _fitted(centred[train], rest[train], centred[test])
    return predicted.reshape(data.truth.shape)


def _divided(data: Answers, direction: Direction) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """What each fit sees and what it predicts: of one length, or of all lengths, divided alike, for one direction."""
    from sklearn.model_selection import GroupKFold

    folds, places = GroupKFold(data.folds), np.arange(data.truth.size).reshape(data.truth.shape)
    if not data.drawn:
        yield from folds.split(places, groups=places[:, 0])
        return
    by_length = [
        [(here[train], here[test]) for train, test in folds.split(here, groups=prompt)]
        for here, prompt in zip(places, data.prompt, strict=True)
    ]
    if direction == "own":
        yield from chain(*by_length)
        return
    for fold in zip(*by_length, strict=True):
        train, test = (np.concatenate(parts) for parts in zip(*fold, strict=True))
        yield train, test


def _means(values: np.ndarray, row: np.ndarray, train: np.ndarray) -> np.ndarray:
    """The mean at each length of what may be seen."""
    return np.stack([values[train[row[train] == length]].mean(axis=0) for length in range(row.max() + 1)])


def _fitted(features: np.ndarray, target: np.ndarray, unseen: np.ndarray) -> np.ndarray:
    """Predictions of a ridge regression on centred representations in units of their root mean square.

    Coordinates keep their sizes: divided by its own spread, one that only rounding moves would count as much as any. A
    prediction is held to as far beyond the answers seen as those lie apart: a prompt unlike all others gets no more.
    """
    from sklearn.linear_model import RidgeCV

    width = np.ptp(target)
    if width == 0:
        return np.full(len(unseen), target[0])
    middle = features.mean(axis=0)
    size = np.sqrt(((features - middle) ** 2).mean()) or 1.0
    fit = RidgeCV(PENALTIES).fit((features - middle) / size, target)
    return np.clip(fit.predict((unseen - middle) / size), target.min() - width, target.max() + width)
