"""Several figures on one page, with a title for each, common scales and one legend."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go

from squashlens.errors import InputError
from squashlens.figures.drawing.layout import NoRoomError
from squashlens.figures.drawing.page import BLOCK_TITLE, Block, Page, reference, traces_of
from squashlens.figures.drawing.parts import list_once
from squashlens.figures.drawing.style import dressed, recoloured
from squashlens.figures.drawing.text import escaped, unbroken
from squashlens.figures.drawing.ticks import numbers_of

Share = Literal["both", "x", "y", "none"]
REFERRING = ("anchor", "matches", "overlaying", "scaleanchor")  # attributes of an axis that name another
BARS = ("barmode", "bargap")
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
    whole, blocks = go.Figure(), []
    marks: dict[str, float] = {}
    for at, (label, figure) in enumerate(figures.items()):
        before, page = len(traces_of(whole)), pages[label]
        blocks.append(_add(whole, recoloured(figure, page.theme, first.theme), page, label, at, across))
        marks |= {str(before + int(number)): size for number, size in page.marks.items()}
    for letter in ("x", "y"):
        if share in (letter, "both"):
            _share(whole, blocks, letter, across)
    _share_colours(whole, blocks)
    list_once(whole)
    titles = {page.title for page in pages.values()}
    common = [note for note in first.notes.split(DOT) if all(note in page.notes.split(DOT) for page in pages.values())]
    heading = escaped(title) if title is not None else titles.pop() if len(titles) == 1 else ""
    page = Page(
        blocks, heading, DOT.join(common), first.theme, first.width, None, first.font, first.font_size, first.legend,
        marks,
    )  # fmt: skip
    page.keep(whole)
    return dressed(whole)


def _add(whole: go.Figure, figure: go.Figure, page: Page, label: str, at: int, across: int) -> Block:
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
                f"{label!r} draws bars in another way than the figures before it.", "Give it a page of its own."
            )
        layout[key] = parts[key] or layout[key]
    layout.uniformtext.update(parts.uniformtext.to_plotly_json())
    whole.add_annotation(name=f"{BLOCK_TITLE} {at}", text="", showarrow=False)
    panels = [(names[x], names[y], row, column) for x, y, row, column in block.panels]
    return Block(panels, block.rows, block.columns, block.height, escaped(label), at // across, at % across)


def _partner(block: Block, axis: str) -> str:
    """What traces call the axis that stands at a right angle to this one."""
    x, y = next(panel[:2] for panel in block.panels if axis in panel[:2])
    return reference(y if axis == x else x)


def _renamed(name: str, short: Mapping[str, str]) -> str:
    """The reference of an annotation or shape with the new name of its axis."""
    first, *rest = name.split(" ")
    return " ".join([short.get(first, first), *rest])


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
