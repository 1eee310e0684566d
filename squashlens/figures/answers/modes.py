"""Shared parts of the figures of answers: checks of their results, and names of modes."""

from collections.abc import Iterable, Mapping

import xarray as xr

from squashlens.errors import InputError
from squashlens.figures.drawing.text import escaped
from squashlens.figures.drawing.themes import LINES

Found = xr.Dataset | Mapping[str, xr.Dataset]
Dims = tuple[str, ...]

# Name, colour, dash and symbol of each mode.
MODES = {
    "answer_only": ("answer only", LINES[0], "solid", "circle"),
    "cot": ("chain of thought", LINES[1], "dash", "square"),
    "cot_few_shot": ("chain of thought, examples", LINES[2], "dot", "diamond"),
}


def labelled(found: Found, needed: Mapping[str, Dims], maker: str) -> dict[str, xr.Dataset]:
    """Results by label (empty for a single result); an error if a variable or one of its dimensions is missing."""
    several = {"": found} if isinstance(found, xr.Dataset) else {escaped(text): one for text, one in found.items()}
    if not several:
        raise InputError("There is nothing to draw.", f"Give a result of {maker}.")
    by_mode = any("mode" in dims for dims in needed.values())
    for text, one in several.items():
        if by_mode and "mode" in one.coords and "mode" not in one.dims:  # the user selected one mode
            several[text] = one = one.expand_dims("mode")
        for name, dims in needed.items():
            if name not in one or one[name].dims != dims:
                where = f" of {text!r}" if text else ""
                raise InputError(
                    f"There is no {name} over ({', '.join(dims)}){where}.", f"Give the unchanged result of {maker}."
                )
    return several


def modes_of(several: Iterable[xr.Dataset]) -> list[str]:
    """All modes of the results, in order."""
    return list(dict.fromkeys(str(mode) for one in several for mode in one["mode"].values))


def mode_named(mode: str) -> tuple[str, str, str, str]:
    """Name, colour, dash and symbol of a mode."""
    return MODES.get(mode, (escaped(mode), LINES[5], "dashdot", "cross"))


def only(modes: list[str]) -> list[str]:
    """The name of the mode for the line under the title, if there is only one; several have a legend."""
    return [mode_named(mode)[0] for mode in modes] if len(modes) == 1 else []


def percent(share: float) -> str:
    """A share as a percentage, without the rounding errors of subtractions.

    >>> percent(1 / 3), percent(1 - 0.9 - 0.1)
    ('33.3 %', '0 %')
    """
    return f"{round(100 * share, 9) + 0.0:.3g} %"
