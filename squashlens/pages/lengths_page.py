"""The page on lengths: which numbers of ones to copy a model can tell apart, in each dtype, and their collapse."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from squashlens._typing import Bridge, dtype_name
from squashlens.bars import bar, quiet
from squashlens.errors import InputError, SquashlensError
from squashlens.measure.registration import measurement
from squashlens.model.anatomy import dtype_of
from squashlens.pages import collapse_sentences
from squashlens.pages.maps.payload import load_of
from squashlens.pages.page import Section, page_of
from squashlens.records.provenance import models_of, provenance
from squashlens.records.sentences import percent
from squashlens.saving.files import PAGES, require_output, write

EVERY = 3  # tokens in a group that ends with a comma


@measurement(cheaper="A smaller n= takes less.")
def lengths(
    model: str | Path | Bridge = "tiny-gemma",
    *,
    n: int = 192,
    out: str | Path = "lengths.html",
) -> Path:
    """Measure which lengths of ones to copy can be told apart at the last token, and write it as an HTML page.

    A model that is given by name is measured in bfloat16 too. The page has the share of lengths that another run
    recovers, by layer, beside random weights, with and without a comma after every third one; and the distance of
    figure 5 (c) and (d).

    Args:
        model: anything that `squashlens.load` takes, or a loaded model.
        n: number of ones of the longest sequence, at least 6; 192 by default.
        out: the file to write, with the ending ``.html`` or ``.htm``.

    Returns:
        The path of the file.

    Raises:
        InputError: if `out` cannot be written, or `n` is too small.

    >>> import squashlens as sl
    >>> sl.lengths(sl.load("tiny-gemma"), n=6, out=tmp_path / "lengths.html").name
    'lengths.html'
    """
    from squashlens import prompts
    from squashlens.measure.collapse.distance import collapse
    from squashlens.measure.collapse.distinguishable_lengths import (
        distinguishable_lengths,
    )
    from squashlens.model.loading.load import load
    from squashlens.run.captures.capture import capture

    out = require_output(out, PAGES)
    if n < 2 * EVERY:
        raise InputError(
            f"n={n} is too small: a curve needs several lengths.",
            f"Give at least {2 * EVERY}.",
        )
    bridge = load(model) if isinstance(model, str | Path) else model
    models = {dtype_name(dtype_of(bridge)): bridge}
    if isinstance(model, str | Path):
        try:
            with quiet():
                models = {"bfloat16": load(model, dtype="bfloat16")} | models
        except SquashlensError:
            pass  # a model that cannot be loaded so has one dtype here
    panels = prompts.figure5(bridge, n)
    with bar(total=len(models) + 4, desc="lengths") as done:
        recovered = {}
        for dtype, loaded in models.items():
            recovered[dtype] = distinguishable_lengths(
                loaded, panels["c"], n_random_models=1
            )
            done.update()
        coarsest = next(iter(models))
        # Without commas (c) and with them (d), at lengths after whole groups.
        thirds: Any = {"lengths": range(EVERY, n + 1, EVERY), "n_random_models": 0}
        recovered_thirds = []
        collapses = []
        for letter in "cd":
            ones = panels[letter]
            of_thirds = distinguishable_lengths(models[coarsest], ones, **thirds)
            recovered_thirds.append(of_thirds)
            done.update()
            pairs = capture(bridge, ones, baselines=["contrast"])
            collapses.append(collapse(bridge, pairs))
            done.update()
    source = str(model) if isinstance(model, str | Path) else None
    page = _render(recovered, recovered_thirds, collapses, n=n, source=source)
    return write(out, page.encode("utf-8"))


def _render(
    recovered: Mapping[str, xr.Dataset],
    recovered_thirds: Sequence[xr.Dataset],
    collapses: Sequence[xr.Dataset],
    *,
    n: int,
    source: str | None,
) -> str:
    """The page for given results, as HTML text.

    Args:
        recovered: lengths told apart in each dtype, the coarsest first, and that of the given model last.
        recovered_thirds: every third length told apart in the coarsest dtype, without and with commas.
        collapses: distances of v and v*, without and with commas.
        n: number of ones of the longest sequence.
        source: what the model is loaded from, if it was given by name.
    """
    from squashlens import figures

    coarsest = next(iter(recovered))
    sentences = []
    for dtype, apart in recovered.items():
        sentences.append(f"In {dtype}, {collapse_sentences.recovers(apart)}")
    without, with_commas = map(_recovered, recovered_thirds)
    sentences.append(
        f"In {coarsest}, of every third length, where commas have the same place, {with_commas} with commas and "
        f"{without} without."
    )
    about = (
        "v is a sequence, and v* the same with its last digit repeated. D is the L∞ distance of their last "
        "states."
    )
    commas = "After a whole group of three digits, v* breaks the rhythm of the commas."
    notes = {"without commas": about, "with commas": f"{about} {commas}"}
    sections = [
        Section(
            "By layer, in each dtype",
            sentences,
            "Every length is run whole with fused attention, and in pieces of two sizes with written patterns, "
            "which round otherwise. A length is recovered if the nearest representation of another run is its own.",
            figures.separation_curve(recovered),
        )
    ]
    for (title, note), collapse in zip(notes.items(), collapses, strict=True):
        sentence = collapse_sentences.collapses(collapse)
        figure = figures.collapse_curve(collapse)
        sections.append(Section(f"Collapse, {title}", [sentence], note, figure))
    facts = provenance(list(recovered.values())[-1])  # of the model that was given
    loaded = load_of(facts, source or facts["model"])
    shares = [f"in {dtype} {_recovered(apart)}" for dtype, apart in recovered.items()]
    return page_of(
        "template.html.jinja",
        sections,
        facts,
        title=f"Which of 1 to {n} ones can be told apart",
        said=f"{'; '.join(shares).capitalize()} of the lengths can be told apart.",
        sentence="The prompt asks to copy ones. Lines of random weights are wider.",
        state="unknown",
        ribbon=None,
        model=models_of(recovered[coarsest])[0],
        code=f"import squashlens as sl\n\nsl.lengths({loaded}, n={n})",
    )


def _recovered(apart: xr.Dataset) -> str:
    """The share of lengths that are recovered from y, as a percentage."""
    return percent(apart["recovery_y"].item())
