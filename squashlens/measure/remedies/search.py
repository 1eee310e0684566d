"""A search for the separator and period that keep the representations of a pair farthest apart.

The paper names separators as a remedy (section 4); which of them helps depends on the model and the task. The best one
is compared with the same tokens at random places, and reported with its cost in tokens and its accuracy.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr

from squashlens._typing import Bridge, Distance, Scale, several
from squashlens.bars import bar
from squashlens.checks.results import takes
from squashlens.engine.capturing.pairs import PairCapture, SequenceOrCapture, prepare_run, sequence_of
from squashlens.errors import InputError
from squashlens.measure.answers.accuracy import Answer
from squashlens.measure.collapse.distance import collapse
from squashlens.measure.collapse.metric import Metric, sequence_session
from squashlens.measure.remedies.compare import Comparison
from squashlens.measure.session import measurement
from squashlens.prompts import Token, one_token
from squashlens.records.results import Variable
from squashlens.saving.journal import checked
from squashlens.sequences import GrowingSequence
from squashlens.theory.statistics.ranks import mean_interval

Design = tuple[str, int]  # the name of a separator, and the number of content tokens between two of them
FEWEST = 5  # least number of random placements for a useful interval


@measurement("separator_search")
def search_separators(
    model: Bridge,
    sequence: SequenceOrCapture,
    *,
    separator: Token | Iterable[Token] = (",", ".", "?"),
    every: int | Iterable[int] = (2, 3, 6),
    answer: Answer | None = None,
    lengths: Iterable[int] | None = None,
    norm: Distance = "linf",
    scale: Scale = "relative",
    n_placements: int = 40,
    n_samples: int = 16,
    seed: int = 0,
    resume: str | Path | None = None,
) -> xr.Dataset:
    """Search for the separator and period with the largest separation, and compare it with random placement.

    ``separation = median over lengths of D at the last layer``, read at the last token, after the suffix if there is
    one.

    Args:
        model, norm: as in `collapse`.
        sequence: a growing sequence from `squashlens.prompts`, whose own separators are removed; or a `capture` of one,
            whose sequence and lengths are used.
        separator: separators to try, one or several, as texts that are one token each or as ids; each is tried with
            each period.
        every: periods to try, one or several: numbers of content tokens between two separators.
        answer, lengths: as in `compare`.
        scale: as in `collapse`; ``"relative"`` by default.
        n_placements: number of random placements of the best separator, at least 5; 40 by default.
        n_samples: number of sequences on which accuracy is measured, as in `compare`; 16 by default.
        seed: random seed of the placements and of the sequences on which accuracy is measured; 0 by default.
        resume: file (SQLite, any name) that keeps finished results, so that the same call resumes from it; none by
            default.

    Returns:
        Dataset. Over (separator, every): `separation`; `gain`, the separation divided by that without separators;
        `cost`, the additional tokens per content token at the longest length; with `answer` also `accuracy`, the mean
        over lengths. Over (separator, every, length): `distance`. Without separators: `separation_none`,
        `distance_none` and `accuracy_none`. The separator and period of largest separation: `best_separator` and
        `best_every`. Over (placement): `random`, the separation with the same tokens, as many at each length, at random
        places. Scalars: `advantage`, the largest separation minus the mean of `random`; `advantage_low` and
        `advantage_high`, its 95 % interval (Student's t over placements); `random_as_good`, (1 + number of random
        placements that are at least as good) / (1 + `n_placements`).

    Raises:
        InputError: no separators or periods, a period without a separator within the longest length, fewer than 5
            placements, or a `resume` file that belongs to another search.

    Source: Barbero et al. 2024, section 4, names separators as a remedy; the search is ours.

    >>> import squashlens as sl
    >>> model = sl.load("tiny-gemma")
    >>> ones = sl.prompts.repeated(model, "1", 12, prefix="Can you copy the following number?")
    >>> ds = sl.search_separators(model, ones, separator=[",", "."], every=[2, 3], n_placements=5)
    >>> ds["separation"].shape, bool(ds["gain"].max() > 1)
    ((2, 2), True)
    """
    metric, resume = Metric(norm, scale), checked(resume)
    if n_placements < FEWEST:
        raise InputError(f"n_placements={n_placements} are too few for an interval.", f"Give at least {FEWEST}.")
    tokens = {str(token): one_token(model, token) for token in several(separator)}
    periods = list(dict.fromkeys(several(every)))
    if not tokens or not periods:
        raise InputError("separator= or every= is empty.", "Give at least one separator and one number of tokens.")
    plain = sequence_of(sequence).separated((), ())
    comparison = Comparison(plain, answer, n_samples, seed)
    # The sequence that is run has no separators, so the lengths of a capture must be taken from the capture itself.
    wanted = sequence.lengths if lengths is None and isinstance(sequence, PairCapture) else lengths
    run = prepare_run(model, plain, wanted, "auto", None)
    chosen = run.lengths
    session = sequence_session(
        model, run, "search_separators", separator=list(tokens), every=periods, answers=comparison.expected(model),
        n_samples=n_samples, **metric.said, seed=seed,
    )  # fmt: skip
    forms = {(name, k): plain.every(k, token) for name, token in tokens.items() for k in periods}
    if unused := [k for (_, k), form in forms.items() if not form.separator_places(chosen[-1])]:
        raise InputError(
            f"every= has {unused[0]}, with which no separator is within {chosen[-1]} content tokens.",
            "Use shorter periods, or longer lengths.",
        )
    journal = session.journal(resume, {**session.facts, "lengths": chosen})
    with bar(total=len(forms) + 1 + n_placements, desc="separators") as progress_bar:

        def note(name: str, form: GrowingSequence, with_accuracy: bool = True) -> dict[str, Any]:
            """The results for a form, from the resumed file or computed and stored there."""
            found = journal.get(name, lambda: _try(model, comparison, form, chosen, metric, with_accuracy))
            progress_bar.update()
            return found

        none = note("none", plain)
        grid = {design: note(f"{design}", form) for design, form in forms.items()}
        best = max(grid, key=lambda design: _separation(grid[design]))
        places = [forms[best].scattered(f"placements {seed} {n}") for n in range(n_placements)]
        # The key contains the best design, because the placements depend on it.
        control = [
            _separation(note(f"scattered {n}: {best}", form, with_accuracy=False)) for n, form in enumerate(places)
        ]
    found = _variables(plain, chosen, metric, forms, none, grid, control)
    coords = {"separator": list(tokens), "every": periods, "length": list(chosen)}
    return session.dataset("separator search", coords, found)


def _try(
    model: Bridge, comparison: Comparison, form: GrowingSequence, lengths: tuple[int, ...], metric: Metric,
    with_accuracy: bool,
) -> dict[str, Any]:  # fmt: skip
    """D of a form at the last layer for each length, and the accuracy if it is requested and there is an answer."""
    ds = collapse(model, form, lengths=lengths, **metric.said)
    found: dict[str, Any] = {"distance": ds["distance"].isel(layer=-1).values.tolist()}
    if with_accuracy and comparison.answer is not None:
        found["accuracy"] = float(comparison.right(model, form, list(lengths)).mean())
    return found


def _separation(found: dict[str, Any]) -> float:
    """The separation of one form: the median over lengths of D at the last layer."""
    return float(np.median(found["distance"]))


OF_DISTANCES = ("separation", "gain", "distance", "random", "advantage")  # first words of variables


def _variables(
    plain: GrowingSequence, lengths: tuple[int, ...], metric: Metric, designs: dict[Design, GrowingSequence],
    none: dict[str, Any], grid: dict[Design, dict[str, Any]], control: list[float],
) -> dict[str, Variable]:  # fmt: skip
    """The variables of the result."""
    longest, units = lengths[-1], metric.units
    names, periods = (list(dict.fromkeys(design[axis] for design in designs)) for axis in (0, 1))

    def table(values: Iterable[Any]) -> np.ndarray:
        flat = np.array(list(values), dtype=float)
        return flat.reshape(len(names), len(periods), *flat.shape[1:])

    over = ("separator", "every")
    separation = table(_separation(found) for found in grid.values())
    cost = table((len(form.plain(longest)) - len(plain.plain(longest))) / longest for form in designs.values())
    first, second = np.unravel_index(separation.argmax(), separation.shape)
    random = torch.tensor(control, dtype=torch.float64)
    mean, low, high = (float(value) for value in mean_interval(random))
    best = float(separation.max())
    period = "content tokens between two separators at the largest separation"
    as_good = (1 + sum(value >= best for value in control)) / (1 + len(control))
    found: dict[str, Variable] = {
        "separation": (over, separation, "median over lengths of D at the last layer", units),
        "separation_none": ((), _separation(none), "separation without separators", units),
        "gain": (over, separation / _separation(none), "separation divided by that without separators", "1"),
        "cost": (over, cost, "additional tokens per content token, at the longest length", "1"),
        "distance": ((*over, "length"), table(f["distance"] for f in grid.values()), "D at the last layer", units),
        "distance_none": (("length",), none["distance"], "D at the last layer without separators", units),
        "random": (("placement",), control, "separation with the best separator at random places", units),
        "advantage": ((), best - mean, "largest separation minus the mean at random places", units),
        "advantage_low": ((), best - high, "lower end of the 95 % interval of the advantage", units),
        "advantage_high": ((), best - low, "upper end of the 95 % interval of the advantage", units),
        "random_as_good": ((), as_good, "(1 + random placements at least as good) ÷ (1 + placements)", "1"),
        "best_separator": ((), names[first], "separator with the largest separation", "text"),
        "best_every": ((), periods[second], period, "tokens"),
    }
    of_distances = [name for name in found if name.partition("_")[0] in OF_DISTANCES]
    found |= {name: (*found[name][:2], metric.derived(found[name][2]), found[name][3]) for name in of_distances}
    if "accuracy" in none:
        text = "share of right answers, mean over lengths"
        found["accuracy"] = (over, table(f["accuracy"] for f in grid.values()), text, "1")
        found["accuracy_none"] = ((), none["accuracy"], f"{text}, without separators", "1")
    return found


@takes("squashlens.search_separators", "separation gain cost: separator every", "separation_none:")
def separator_table(searched: xr.Dataset) -> pd.DataFrame:
    """The table of a separator search: the largest separation first, and no separators in the last row."""
    columns = [name for name in ("separation", "gain", "cost", "accuracy") if name in searched]
    table: pd.DataFrame = searched[columns].to_dataframe().loc[:, columns].sort_values(by="separation", ascending=False)
    none = {"separation": float(searched["separation_none"]), "gain": 1.0, "cost": 0.0}
    if "accuracy" in columns:
        none["accuracy"] = float(searched["accuracy_none"])
    table.loc[("none", 0), :] = [none[name] for name in columns]
    return table
