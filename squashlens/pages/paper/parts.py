"""What each of the paper's figures measures: its parts, each with the settings that its result depends on.

Figures 6 and 7 of the paper are its figures 3 and 4 for another model. For one model they would be the same, so that
here the answers of figures 3 and 4 are those of greedy decoding, and the answers of figures 6 and 7 are sampled.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from squashlens import example_models, prompts, tasks
from squashlens._typing import Bridge, several
from squashlens.run.run import model_name
from squashlens.tasks import Task
from squashlens.tasks.task import Prompting

NUMBERS = (1, 2, 3, 4, 5, 6, 7, 8, 9)
PATHS = 25  # how many single paths are drawn
REPLAYED = 8  # lengths at which D is measured again for the noise floor
TEMPERATURE = 1.0  # of the sampled answers
# Figures 8 and 9: tokens, and random draws.
GROWING = np.geomspace(10, 100_000, 30).round().astype(int).tolist()
DRAWS = 5

COPYING = ("copy_last", "copy_first", "copy_last_hint", "copy_first_hint")
COPYING += ("copy_last_alternating", "copy_first_alternating")
COUNTING = ("sum", "count_ones", "count_bernoulli")
# The same questions in the words of the bundled model's training; there is no hint in them.
TAUGHT = {
    "copy_last": "taught_last_odd_last",
    "copy_first": "taught_first_odd_first",
    "copy_last_alternating": "taught_last_alternating",
    "copy_first_alternating": "taught_first_alternating",
    "sum": "taught_sum_repeated",
    "count_ones": "taught_count_repeated",
    "count_bernoulli": "taught_count_bernoulli",
}


@dataclass(frozen=True)
class Settings:
    """The options of `paper` that change what is measured."""

    prompt: str
    n: int
    lengths: tuple[int, ...]
    seeds: int
    prompting: Prompting


@dataclass(frozen=True)
class Part:
    """A result that a figure shows: its name, the settings `about` it that it depends on, and how it is measured.

    `measure` is given the file in which an interrupted measurement of answers keeps those that it has; other
    measurements do not use it. `of_model` says whether the result depends on the model.
    """

    name: str
    about: Mapping[str, Any]
    measure: Callable[[Path], xr.Dataset]
    of_model: bool = True


def parts_of(number: int, model: Bridge, chosen: Settings) -> list[Part]:
    """The parts of a figure of the paper, for a model."""
    match number:
        case 1:
            return _first(model, chosen)
        case 2:  # one question of each length, answered by greedy decoding
            form = replace(chosen.prompting, mode="answer_only")
            chosen = replace(chosen, seeds=1, prompting=form)
            parts = []
            for name in COPYING:
                task = _task(model, name)
                if task is not None:
                    parts.append(_answers(model, name, task, chosen))
            return parts
        case 5:
            return [_collapse(model, chosen.n, letter) for letter in "abcd"]
        case 8:
            return _convergence()
        case 9:
            return [_variation()]
        case _:  # 3 and 4, and with sampled answers 6 and 7
            temperature = TEMPERATURE if number in (6, 7) else 0.0
            parts = []
            for name in COUNTING:
                task = _task(model, name)
                parts.append(_answers(model, name, task, chosen, temperature))
            return parts


def _first(model: Bridge, chosen: Settings) -> list[Part]:
    """Figure 1: D of sequences 1…10 by length, and the strongest paths of a prompt: all, those that do not start at its
    first token, and those under uniform attention."""
    from squashlens.measure.collapse.distance import collapse
    from squashlens.measure.squashing.walks import strongest_paths

    def ones_and_zero(_: Path) -> xr.Dataset:
        suffix = [prompts.one_token(model, "0")]
        ones = prompts.repeated(model, "1", chosen.n, suffix=suffix)
        return collapse(model, ones, scale="relative")

    def strongest(name: str, **options: Any) -> Part:
        def measure(_: Path) -> xr.Dataset:
            return strongest_paths(model, chosen.prompt, k=PATHS, **options)

        about = {"prompt": chosen.prompt, "k": PATHS}
        return Part(f"strongest_paths_{name}", about, measure)

    return [
        Part("ones_and_zero", {"n": chosen.n}, ones_and_zero),
        strongest("model"),
        strongest("others", avoid=[0]),
        strongest("uniform", attention="uniform"),
    ]


def _task(model: Bridge, name: str) -> Any:
    """The task in words that the model knows; None if there is no such task."""
    if example_models.trained_length(model_name(model)) is None:
        return tasks.find(name)
    return tasks.find(TAUGHT[name]) if name in TAUGHT else None


def _answers(
    model: Bridge, name: str, task: Task, chosen: Settings, temperature: float = 0.0
) -> Part:
    """The answers to a task; of those with a `temperature` above 0, `seeds` are sampled for each question.

    Without anything random, one answer at each length is all that there is.
    """
    from squashlens.measure.answers.evaluate_task import evaluate_task

    form = vars(chosen.prompting)
    asked: dict[str, Any] = {
        "lengths": list(chosen.lengths),
        "seeds": chosen.seeds if task.random or temperature else 1,
        "temperature": temperature,
        **form,
    }

    def measure(journal: Path) -> xr.Dataset:
        return evaluate_task(model, task, **asked, resume=journal)

    about = {"task": task.name} | asked | {"mode": several(form["mode"])}
    return Part(f"{name}_sampled" if temperature else name, about, measure)


def _collapse(model: Bridge, n: int, letter: str) -> Part:
    """The panel "a", "b", "c" or "d" of figure 5: D of sequences of up to `n` content tokens, with baselines."""
    from squashlens.measure.collapse.distance import collapse

    def measure(_: Path) -> xr.Dataset:
        return collapse(
            model,
            prompts.figure5(model, n)[letter],
            by_head="value",
            baselines=("contrast", "unrelated"),
            noise_lengths=REPLAYED,
        )

    about = {"n": n, "sequences": "prompts.figure5"}
    return Part(f"collapse_{letter}", about, measure)


def _convergence() -> list[Part]:
    """Figure 8: random attention layers, both readings of the paper's and one without positions. No model is
    involved."""
    from squashlens.synthetic import PAPER, Stack, convergence

    def part(name: str, stack: Stack) -> Part:
        def measure(_: Path) -> xr.Dataset:
            return convergence(stack, GROWING, seeds=DRAWS)

        about = {"lengths": GROWING, "seeds": DRAWS}
        return Part(f"stack_{name}", about, measure, of_model=False)

    stacks = {"no_positions": Stack(projections="direct")} | dict(PAPER)
    return [part(name, stack) for name, stack in stacks.items()]


def _variation() -> Part:
    """Figure 9: the total variation of the softmax of growing sequences. No model is involved."""
    from squashlens.synthetic import softmax_total_variation

    def measure(_: Path) -> xr.Dataset:
        return softmax_total_variation(GROWING, seeds=DRAWS)

    about = {"lengths": GROWING, "seeds": DRAWS}
    return Part("total_variation", about, measure, of_model=False)
