"""Which separator, how often: a search over tokens and periods for the one that keeps representations farthest apart.

The paper names separators as a remedy (section 4); which of them is one depends on model and task. What is found is
held against the same tokens at random places, against what it costs in tokens, and against the answers it leads to.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr

from squashlens._typing import Bridge, Distance, Scale, positive
from squashlens.bars import bar
from squashlens.errors import InputError
from squashlens.given import takes
from squashlens.journal import Journal, checked
from squashlens.measure._pairs import Runs, check_choices, required
from squashlens.measure.accuracy import Answer
from squashlens.measure.collapse import collapse
from squashlens.measure.compare import Task
from squashlens.model.registry import measured
from squashlens.prompts import Token, one_token
from squashlens.results import Variable
from squashlens.sequences import Sequence
from squashlens.theory.norms import mean_interval

Design = tuple[str, int]  # a separator by name, and after how many content tokens
FEWEST = 5  # placements: an interval from fewer would be none


@measured
def prescribe(
    model: Bridge,
    sequence: Sequence,
    *,
    separators: Iterable[Token],
    every: Iterable[int],
    answer: Answer | None = None,
    draws: int = 16,
    lengths: Iterable[int] | None = None,
    norm: Distance = "linf",
    scale: Scale = "relative",
    placements: int = 40,
    seed: int = 0,
    resume: str | Path | None = None,
    progress: bool = True,
) -> xr.Dataset:
    """Try each separator after each number of content tokens; hold the best against random placement.

    ``separation = median over lengths of D at the last layer``, read where the sequence ends, suffix included.

    Args:
        sequence: the content, from `squashlens.prompts`; separators that it has are taken out.
        separators, every: tokens, and numbers of content tokens between them, each with each.
        answer, draws: as in `compare`: accuracy over sequences of the same form that are drawn with `seed`.
        lengths: numbers of content tokens; all if not given.
        placements: random placements of the best design's separators, drawn with `seed`; at least 5.
        resume: a file of any name that keeps what was found (SQLite); the same call goes on from it.

    Returns:
        Dataset. Over (separator, every): `separation`, `gain` (÷ the separation without separators), `cost` (tokens
        more for each content token, at the longest length), `accuracy` (mean over lengths); over (separator, every,
        length): `distance`. Without separators: `separation_none`, `distance_none`, `accuracy_none`. The prescription:
        `best_separator`, `best_every`, and over (placement) `random`, the separation of as many of the same tokens at
        each length, at random places drawn for that length, with `advantage`, the prescription's less their mean, its
        95 % interval `advantage_low`, `advantage_high` (Student's t over placements), and `random_as_good`, (1 + random
        ones as good) ÷ (1 + placements).

    Refuses: what `Sequence.every` and `collapse` refuse; another search's file, or no journal.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma", progress=False)
    >>> ones = sl.prompts.repeated(model, "1", 12, prompt="Can you copy the following number?")
    >>> ds = sl.prescribe(model, ones, separators=[",", "."], every=[2, 3], placements=5, progress=False)
    >>> ds["separation"].shape, bool(ds["gain"].max() > 1)
    ((2, 2), True)
    """
    check_choices(norm=norm, scale=scale, passes="auto")
    resume = checked(resume)
    positive(placements, "placements", "a number of placements")
    if placements < FEWEST:
        raise InputError(f"placements={placements} give no interval.", f"Use {FEWEST} or more.")
    tokens, periods = {str(token): one_token(model, token) for token in separators}, list(every)
    if not tokens or not periods:
        raise InputError("There is nothing to try.", "Give at least one separator and one period.")
    plain = required(sequence).separated((), ())
    task = Task(plain, answer, draws, seed)
    runs = Runs.start(
        model, plain, lengths, "prescribe", passes="auto", chunk=None, progress=False, separators=list(tokens),
        every=periods, answers=task.expected(model), draws=draws, norm=norm, scale=scale, seed=seed,
    )  # fmt: skip
    designs: dict[Design, Sequence] = {
        (name, k): plain.every(k, token) for name, token in tokens.items() for k in periods
    }
    for (_, period), form in designs.items():
        if not form.separator_places(runs.lengths[-1]):
            raise InputError(
                f"After every {period} no separator stands within {runs.lengths[-1]} content tokens.",
                "Use shorter periods.",
            )
    what = {"content": plain.content, "alphabet": plain.alphabet, "lengths": runs.lengths}
    journal = runs.session.journal(resume, {**runs.session.facts, **what})
    with bar(total=len(designs) + 1 + placements, desc="separators", progress=progress) as shown:
        search = _Search(runs, task, norm, scale, journal, shown)
        none = search.tried("none", plain)
        grid = {design: search.tried(f"{design}", form) for design, form in designs.items()}
        best = max(grid, key=lambda design: _separation(grid[design]))
        # The best is in the name: after another, the same numbers mean other placements.
        control = [
            _separation(
                search.tried(f"scattered {n}: {best}", designs[best].scattered(f"placements {seed} {n}"), asked=False)
            )
            for n in range(placements)
        ]
    return _dataset(runs, "1" if scale == "relative" else "model", designs, none, grid, control)


@dataclass(frozen=True)
class _Search:
    """How a design is tried: once, and written down."""

    runs: Runs
    task: Task
    norm: Distance
    scale: Scale
    journal: Journal
    bar: Any

    def tried(self, name: str, form: Sequence, *, asked: bool = True) -> dict[str, Any]:
        """D at the last layer by length, and the accuracy if there is an answer and it is asked for."""
        found = self.journal.get(name, lambda: self._try(form, asked))
        self.bar.update()
        return found

    def _try(self, form: Sequence, asked: bool) -> dict[str, Any]:
        model, lengths = self.runs.session.model, list(self.runs.lengths)
        ds = collapse(model, form, lengths=lengths, norm=self.norm, scale=self.scale, progress=False)
        found = {"distance": ds["distance"].isel(layer=-1).values.tolist()}
        if asked and self.task.answer is not None:
            found["accuracy"] = float(self.task.right(model, form, lengths).mean())
        return found


def _separation(found: dict[str, Any]) -> float:
    return float(np.median(found["distance"]))


def _dataset(
    runs: Runs, units: str, designs: dict[Design, Sequence], none: dict[str, Any], grid: dict[Design, dict[str, Any]],
    control: list[float],
) -> xr.Dataset:  # fmt: skip
    """The search as a labelled result."""
    longest, plain = runs.lengths[-1], runs.sequence
    names, periods = (list(dict.fromkeys(design[axis] for design in designs)) for axis in (0, 1))

    def table(values: Iterable[Any]) -> np.ndarray:
        flat = np.array(list(values), dtype=float)
        return flat.reshape(len(names), len(periods), *flat.shape[1:])

    over = ("separator", "every")
    separation = table(_separation(found) for found in grid.values())
    cost = table((len(form.plain(longest)) - len(plain.plain(longest))) / longest for form in designs.values())
    first, second = np.unravel_index(separation.argmax(), separation.shape)
    random = torch.tensor(control, dtype=torch.float64)
    mean, half = (float(value) for value in mean_interval(random))
    advantage, best = float(separation.max()) - mean, float(separation.max())
    as_good = (1 + sum(value >= best for value in control)) / (1 + len(control))
    found: dict[str, Variable] = {
        "separation": (over, separation, "median over lengths of D at the last layer", units),
        "separation_none": ((), _separation(none), "the same without separators", units),
        "gain": (over, separation / _separation(none), "separation ÷ that without separators", "1"),
        "cost": (over, cost, "tokens more for each content token, at the longest length", "1"),
        "distance": ((*over, "length"), table(f["distance"] for f in grid.values()), "D at the last layer", units),
        "distance_none": (("length",), none["distance"], "the same without separators", units),
        "random": (("placement",), control, "separation of the best's tokens at random places", units),
        "advantage": ((), advantage, "separation of the best less the mean at random places", units),
        "advantage_low": ((), advantage - half, "lower end of its 95 % interval", units),
        "advantage_high": ((), advantage + half, "upper end of its 95 % interval", units),
        "random_as_good": ((), as_good, "(1 + random placements as good) ÷ (1 + placements)", "1"),
        "best_separator": ((), names[first], "the separator of the largest separation", ""),
        "best_every": ((), periods[second], "content tokens between its separators", "token"),
    }
    if "accuracy" in none:
        text = "share answered rightly, mean over lengths"
        found["accuracy"] = (over, table(f["accuracy"] for f in grid.values()), text, "1")
        found["accuracy_none"] = ((), none["accuracy"], f"{text}, without separators", "1")
    coords = {"separator": names, "every": periods, "length": list(runs.lengths)}
    return runs.session.dataset("separator prescription", coords, found)


@takes("squashlens.prescribe", "separation gain cost: separator every", "separation_none:")
def prescription_table(prescribed: xr.Dataset) -> pd.DataFrame:
    """What `prescribe` tried as a table, the largest separation first, no separators as the last row."""
    columns = [name for name in ("separation", "gain", "cost", "accuracy") if name in prescribed]
    table: pd.DataFrame = (
        prescribed[columns].to_dataframe().loc[:, columns].sort_values(by="separation", ascending=False)
    )
    none = {"separation": float(prescribed["separation_none"]), "gain": 1.0, "cost": 0.0}
    if "accuracy" in columns:
        none["accuracy"] = float(prescribed["accuracy_none"])
    table.loc[("none", 0), :] = [none[name] for name in columns]
    return table
