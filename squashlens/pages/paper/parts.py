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

from squashlens import prompts, tasks, zoo
from squashlens._typing import Bridge, several
from squashlens.run.run import model_name
from squashlens.tasks import Task
from squashlens.tasks.task import Prompting

NUMBERS = (1, 2, 3, 4, 5, 6, 7, 8, 9)
PATHS = 25  # how many single paths are drawn
REPLAYED = 8  # lengths at which D is measured again for the noise floor
TEMPERATURE = 1.0  # of the sampled answers
GROWING, DRAWS = (
    np.geomspace(10, 100_000, 30).round().astype(int).tolist(),
    5,
)  # figures 8 and 9: tokens, random draws

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
    """A result that a figure shows: its name, the settings that it depends on, and how it is measured.

    `measure` is given the file in which an interrupted measurement of answers keeps those that it has.
    """

    name: str
    about: Mapping[str, Any]
    measure: Callable[[Path], xr.Dataset]
    of_model: bool = True


def parts_of(number: int, model: Bridge, chosen: Settings) -> list[Part]:
    """The parts of a figure of the paper, for a model."""
    if number == 2:
        return [
            _answers(model, name, chosen, 1, "answer_only")
            for name in COPYING
            if _task(model, name)
        ]
    if number in (3, 4, 6, 7):
        temperature, mode = TEMPERATURE if number > 5 else 0.0, chosen.prompting.mode
        return [
            _answers(model, name, chosen, chosen.seeds, mode, temperature)
            for name in COUNTING
        ]
    return {1: _first, 5: _collapse, 8: _convergence, 9: _variation}[number](
        model, chosen
    )


def _first(model: Bridge, chosen: Settings) -> list[Part]:
    """Sequences 1…10 by length, and the strongest paths of a prompt: all, without its first token, and under uniform
    attention."""
    from squashlens.measure.collapse.distance import collapse
    from squashlens.measure.squashing.walks import strongest_paths

    def ones_and_zero(_: Path) -> xr.Dataset:
        zero = prompts.one_token(model, "0")
        return collapse(
            model,
            prompts.repeated(model, "1", chosen.n, suffix=[zero]),
            scale="relative",
        )

    def strongest(name: str, **options: Any) -> Part:
        return Part(
            f"strongest_paths_{name}",
            {"prompt": chosen.prompt, "k": PATHS},
            lambda _: strongest_paths(model, chosen.prompt, k=PATHS, **options),
        )

    return [
        Part("ones_and_zero", {"n": chosen.n}, ones_and_zero),
        strongest("model"),
        strongest("others", avoid=[0]),
        strongest("uniform", attention="uniform"),
    ]


def _task(model: Bridge, name: str) -> Task | None:
    """The task in words that the model knows; None if there is no such task."""
    taught = zoo.trained_length(model_name(model)) is not None
    known = TAUGHT.get(name) if taught else name
    return tasks.find(known) if known else None


def _answers(
    model: Bridge,
    name: str,
    chosen: Settings,
    seeds: int,
    mode: Any,
    temperature: float = 0.0,
) -> Part:
    """The answers to a task. Without anything random, one answer at each length is all that there is."""
    from squashlens.measure.answers.evaluate import evaluate

    task: Any = _task(model, name)
    form = replace(chosen.prompting, mode=mode)
    lengths, draws = list(chosen.lengths), seeds if task.random or temperature else 1
    about = {
        "task": task.name,
        "lengths": lengths,
        "seeds": draws,
        **vars(form),
        "mode": several(mode),
        "temperature": temperature,
    }

    def measure(journal: Path) -> xr.Dataset:
        return evaluate(
            model,
            task,
            lengths=lengths,
            seeds=draws,
            **vars(form),
            temperature=temperature,
            resume=journal,
        )

    return Part(f"{name}_sampled" if temperature else name, about, measure)


def _collapse(model: Bridge, chosen: Settings) -> list[Part]:
    """The four panels of figure 5, with baselines."""
    from squashlens.measure.collapse.distance import collapse

    def measure(letter: str) -> Callable[[Path], xr.Dataset]:
        def panel(_: Path) -> xr.Dataset:
            sequence = prompts.figure5(model, chosen.n)[letter]
            return collapse(
                model,
                sequence,
                by_head="value",
                baselines=("contrast", "unrelated"),
                noise_lengths=REPLAYED,
            )

        return panel

    return [
        Part(
            f"collapse_{letter}",
            {"n": chosen.n, "sequences": "prompts.figure5"},
            measure(letter),
        )
        for letter in "abcd"
    ]


def _convergence(_: Bridge, chosen: Settings) -> list[Part]:
    """Random attention layers: both readings of the paper's, and one without positions. No model is involved."""
    from squashlens.synthetic import PAPER, Stack, convergence

    stacks = {"no_positions": Stack(projections="direct")} | PAPER

    def measure(stack: Stack) -> Callable[[Path], xr.Dataset]:
        return lambda _: convergence(stack, GROWING, seeds=DRAWS)

    about = {"lengths": GROWING, "seeds": DRAWS}
    return [
        Part(f"stack_{name}", about, measure(one), of_model=False)
        for name, one in stacks.items()
    ]


def _variation(_: Bridge, __: Settings) -> list[Part]:
    from squashlens.synthetic import softmax_total_variation

    about = {"lengths": GROWING, "seeds": DRAWS}
    return [
        Part(
            "total_variation",
            about,
            lambda _: softmax_total_variation(GROWING, seeds=DRAWS),
            of_model=False,
        )
    ]
