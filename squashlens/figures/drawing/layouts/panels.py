"""Several figures on one page, with a title for each, common scales and one legend."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go

from squashlens.errors import InputError
from squashlens.figures.drawing.layouts.layout import NoRoomError
from squashlens.figures.drawing.layouts.page import BLOCK_NOTES, BLOCK_TITLE, Block, Page, reference, traces_of
from squashlens.figures.drawing.layouts.parts import list_once
from squashlens.figures.drawing.layouts.ticks import numbers_of, values_along
from squashlens.figures.drawing.style import dressed, recoloured
from squashlens.figures.drawing.text import escaped, unbroken

Share = Literal["both", "x", "y", "none"]
REFERRING = ("anchor", "matches", "overlaying", "scaleanchor")  # attributes of an axis that name another
BARS = ("barmode", "bargap")
TICKS = ("dtick", "tick0", "nticks", "tickformat", "exponentformat")  # attributes that depend on the type of an axis
DOT = " · "


def composed(figures: Mapping[str, go.Figure], *, columns: int | None, share: Share, title: str | None) -> go.Figure:
    """One figure of several, which are laid out row by row under their labels.

    Without `columns`, there are as many as usual for this number of figures, or fewer if their text leaves no room.
    """
    count = len(figures)
    across = columns or (2 if count in (2, 4) else min(3, count))
    while True:
        try:
            return _composed(figures, across, share, title)
        except NoRoomError:
            if columns is not None or across == 1:
                raise
            across -= 1


def _composed(figures: Mapping[str, go.Figure], across: int, share: Share, title: str | None) -> go.Figure:
    """The same with a given number of columns."""
    pages = {label: Page.of(figure) for label, figure in figures.items()}
    first = next(iter(pages.values()))
    heading, common, own = _headed(pages, title)
    whole, blocks = go.Figure(), []
    marks: dict[str, float] = {}
    for at, (label, figure) in enumerate(figures.items()):
        before, page = len(traces_of(whole)), pages[label]
        block = _add(whole, recoloured(figure, page.theme, first.theme), page, label, at)
        blocks.append(replace(block, title=escaped(label), notes=own[label], row=at // across, column=at % across))
        marks |= {str(before + int(number)): size for number, size in page.marks.items()}
    for letter in ("x", "y"):
        _share_type(whole, blocks, letter)
        if share in (letter, "both"):
            _share(whole, blocks, letter, across)
    _share_colours(whole, blocks)
    list_once(whole)
    page = Page(
        blocks, heading, common, first.theme, first.width, None, first.font, first.font_size, first.legend, marks
    )
    page.keep(whole)
    return dressed(whole)


def _headed(pages: Mapping[str, Page], title: str | None) -> tuple[str, str, dict[str, str]]:
    """The title of a page, the notes under it, and the notes of each part: what it does not share with the others.

    Without a common title, the page has the common notes as its title, since the parts have titles of their own.
    """
    noted = {label: list(filter(None, page.notes.split(DOT))) for label, page in pages.items()}
    titles = {page.title for page in pages.values()}
    common = [note for note in next(iter(noted.values())) if all(note in notes for notes in noted.values())]
    own = {
        label: [pages[label].title] * (len(titles) > 1 and bool(pages[label].title))
        + [note for note in notes if note not in (*common, *escaped(label).split(", "))]
        for label, notes in noted.items()
    }
    notes = {label: DOT.join(texts) for label, texts in own.items()}
    if title is not None:
        return escaped(title), DOT.join(common), notes
    return (titles.pop(), DOT.join(common), notes) if len(titles) == 1 else (DOT.join(common), "", notes)


def _add(whole: go.Figure, figure: go.Figure, page: Page, label: str, at: int) -> Block:
    """Add one figure to the page, with new names for its axes."""
    if len(page.blocks) > 1:
        raise InputError(
            f"The figure {label!r} has the panels of several results already.",
            "Give all figures to `panels` at once, without composing some of them first.",
        )
    layout: Any = whole.layout
    taken = 1 + sum(1 for name in layout.to_plotly_json() if name.startswith("xaxis"))
    block = page.blocks[0]
    names = {
        old: f"{old[:5]}{'' if taken + n == 1 else taken + n}"
        for n, panel in enumerate(block.panels)
        for old in panel[:2]
    }
    short = {reference(old): reference(new) for old, new in names.items()}
    for old, new in names.items():
        axis = copy.deepcopy(figure.layout[old].to_plotly_json())  # pyright: ignore
        whole.update_layout({new: axis | {key: short.get(axis[key], axis[key]) for key in REFERRING if key in axis}})
        whole.update_layout({new: {"anchor": short[_partner(block, old)]}})
    for trace in traces_of(figure):
        whole.add_trace(copy.deepcopy(trace).update(xaxis=short[trace.xaxis or "x"], yaxis=short[trace.yaxis or "y"]))
    parts: Any = figure.layout
    for kind, add in ((parts.annotations, whole.add_annotation), (parts.shapes, whole.add_shape)):
        for one in kind:
            # Without a reference, plotly takes the first axis.
            add(copy.deepcopy(one).update({side: _renamed(one[side] or side[0], short) for side in ("xref", "yref")}))
    for key in BARS:
        if layout[key] is not None and parts[key] not in (None, layout[key]):
            raise InputError(
                f"{label!r} has a bar layout that differs from the figures before it.", "Give it a page of its own."
            )
        layout[key] = parts[key] or layout[key]
    layout.uniformtext.update(parts.uniformtext.to_plotly_json())
    for name in (BLOCK_TITLE, BLOCK_NOTES):
        # An empty text on an axis, which is plotly's default, would extend the axis.
        whole.add_annotation(name=f"{name} {at}", text="", showarrow=False, xref="paper", yref="paper")
    panels = [(names[x], names[y], row, column) for x, y, row, column in block.panels]
    return replace(block, panels=panels)


def _partner(block: Block, axis: str) -> str:
    """What traces call the axis that stands at a right angle to this one."""
    x, y = next(panel[:2] for panel in block.panels if axis in panel[:2])
    return reference(y if axis == x else x)


def _renamed(name: str, short: Mapping[str, str]) -> str:
    """The reference of an annotation or shape with the new name of its axis."""
    first, *rest = name.split(" ")
    return " ".join([short.get(first, first), *rest])


def _share_type(whole: go.Figure, blocks: Sequence[Block], letter: str) -> None:
    """Give axes with the same title, which show one quantity, a logarithmic scale all together or not at all."""
    layout: Any = whole.layout
    axes = [layout[panel[letter == "y"]] for block in blocks for panel in block.panels]
    for name in {unbroken(axis.title.text) for axis in axes if axis.title.text}:
        same = [axis for axis in axes if unbroken(axis.title.text or "") == name]
        if len({axis.type for axis in same}) > 1 and all(axis.range is None for axis in same):
            places = [one for axis in same for one in values_along(whole, axis.plotly_name)]
            numbers = np.concatenate([np.asarray(one, float) for one in places])
            numbers = numbers[np.isfinite(numbers)]
            for axis in same:
                axis.update(dict.fromkeys(TICKS), type="log" if (numbers > 0).all() else "linear")


def _share(whole: go.Figure, blocks: Sequence[Block], letter: str, across: int) -> None:
    """Give axes at the same place of equal blocks one scale, and labels only at the left or at the bottom."""
    layout: Any = whole.layout
    side = 0 if letter == "x" else 1
    grids = [[panel[2:] for panel in block.panels] for block in blocks]
    if any(grid != grids[0] for grid in grids):
        return
    for place in range(len(grids[0])):
        names = [(block.panels[place][0], block.panels[place][1])[side] for block in blocks]
        first = layout[names[0]]
        same = [layout[name] for name in names]
        if any(_kind(axis) != _kind(first) for axis in same):
            continue
        ranges = [axis.range for axis in same if axis.range is not None]
        if ranges:
            together = [min(min(one) for one in ranges), max(max(one) for one in ranges)]
            backwards = ranges[0][0] > ranges[0][1]
            for axis in same:
                axis.range = together[::-1] if backwards else together
        elif first.autorange is None:
            # Otherwise plotly gives these axes its default range if other shared axes have one: the data would be cut.
            first.autorange = True
        for at, axis in enumerate(same):
            if at and axis.matches is None:
                axis.matches = reference(names[0])
            inner = at % across > 0 if letter == "y" else at + across < len(blocks)
            if inner and axis.visible is not False:
                axis.update(showticklabels=False, title={"text": ""})


def _kind(axis: Any) -> tuple[Any, ...]:
    """What two axes must have in common to share a scale."""
    title, texts = unbroken(axis.title.text or ""), [unbroken(str(text)) for text in axis.ticktext or ()]
    return axis.type, title, texts, axis.labelalias, axis.range is None


def _share_colours(whole: go.Figure, blocks: Sequence[Block]) -> None:
    """Give maps of the same quantity one colour scale, and one colour bar in each row of blocks."""
    maps: list[Any] = [trace for trace in traces_of(whole) if trace.type == "heatmap"]
    block_of = {reference(x): block for block in blocks for x, *_ in block.panels}
    for name in dict.fromkeys(one.colorbar.title.text for one in maps):
        same = [one for one in maps if one.colorbar.title.text == name and one.showscale is not False]
        values = np.concatenate([np.asarray(numbers_of(one.z), float).ravel() for one in same] or [np.zeros(1)])
        values = values[np.isfinite(values)] if np.isfinite(values).any() else np.zeros(1)
        low = min([one.zmin for one in same if one.zmin is not None] or [values.min()])
        high = max([one.zmax for one in same if one.zmax is not None] or [values.max()])
        for one in same:
            row, column = block_of[one.xaxis].row, block_of[one.xaxis].column
            last = all(block_of[o.xaxis].column <= column for o in same if block_of[o.xaxis].row == row)
            one.update(zmin=low, zmax=high, showscale=last)
