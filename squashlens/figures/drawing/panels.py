"""Several figures on one page, with a title for each, common scales and one legend."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np
import plotly.graph_objects as go

from squashlens.errors import InputError
from squashlens.figures.drawing.axes import numbers_of, values_along
from squashlens.figures.drawing.layout import NoRoomError
from squashlens.figures.drawing.page_blocks import (
    HEAD,
    Block,
    Page,
    axes_of,
    reference,
    traces_of,
)
from squashlens.figures.drawing.style import dress, recolour
from squashlens.figures.drawing.text import escape, unbreak

Share = Literal["both", "x", "y", "none"]
BARS = ("barmode", "bargap")
TICKS = ("dtick", "nticks", "exponentformat")  # attributes that depend on the type of an axis
DOT = " · "


def compose(figures: Mapping[str, go.Figure], *, columns: int | None, share: Share, title: str | None) -> go.Figure:
    """One figure of several, which are laid out row by row under their labels.

    Without `columns`, there are as many as usual for this number of figures, or fewer if their text leaves no room.
    """
    count = len(figures)
    across = columns or (2 if count in (2, 4) else min(3, count))
    while True:
        try:
            return _compose(figures, across, share, title)
        except NoRoomError:
            if columns is not None or across == 1:
                raise
            across -= 1


def _compose(figures: Mapping[str, go.Figure], across: int, share: Share, title: str | None) -> go.Figure:
    """The same with a given number of columns."""
    pages = {label: Page.of(figure) for label, figure in figures.items()}
    first = next(iter(pages.values()))
    heading, common, own = _headings(pages, title)
    whole, blocks = go.Figure(), []
    for at, (label, figure) in enumerate(figures.items()):
        block = _add(whole, recolour(figure, pages[label].theme, first.theme), pages[label], label, at)
        blocks.append(replace(block, title=escape(label), notes=own[label], row=at // across, column=at % across))
    for letter in ("x", "y"):
        _share_type(whole, blocks, letter)
        if share in (letter, "both"):
            _share(whole, blocks, letter, across)
    _share_colours(whole, blocks)
    replace(first, blocks=blocks, title=heading, notes=common, height=None).keep(whole)
    return dress(whole)


def _headings(pages: Mapping[str, Page], title: str | None) -> tuple[str, str, dict[str, str]]:
    """The title of a page, the notes under it, and the notes of each part: what it does not share with the others.

    Without a common title, the page has the common notes as its title, since the parts have titles of their own.
    """
    noted = {label: list(filter(None, page.notes.split(DOT))) for label, page in pages.items()}
    titles = {page.title for page in pages.values()}
    common = [note for note in next(iter(noted.values())) if all(note in notes for notes in noted.values())]
    own = {}
    for label, notes in noted.items():
        said = [note for note in notes if note not in (*common, *escape(label).split(", "))]
        own[label] = DOT.join(filter(None, [pages[label].title if len(titles) > 1 else "", *said]))
    if title is not None:
        return escape(title), DOT.join(common), own
    return (titles.pop(), DOT.join(common), own) if len(titles) == 1 else (DOT.join(common), "", own)


def _add(whole: go.Figure, figure: go.Figure, page: Page, label: str, at: int) -> Block:
    """Add one figure to the page, with new names for its axes."""
    if len(page.blocks) > 1:
        raise InputError(
            f"The figure {label!r} has the panels of several results already.",
            "Give all figures to `panels` at once, without composing some of them first.",
        )
    layout, block = cast(Any, whole.layout), page.blocks[0]
    added = cast(Any, figure.layout).to_plotly_json()
    taken = 1 + sum(name.startswith("xaxis") for name in layout.to_plotly_json())
    numbers = ["" if number == 1 else str(number) for number in range(taken, taken + len(block.panels))]
    panels = [old._replace(x=f"xaxis{n}", y=f"yaxis{n}") for old, n in zip(block.panels, numbers, strict=True)]
    pairs = list(zip(block.panels, panels, strict=True))
    short = {axis: new.axes[side] for old, new in pairs for side, axis in enumerate(old.axes)}
    for old, new in pairs:
        for side in (0, 1):
            axis = added.get(old[side], {})
            matches = {"matches": short.get(axis["matches"], axis["matches"])} if "matches" in axis else {}
            whole.update_layout({new[side]: axis | matches | {"anchor": new.axes[1 - side]}})
    for trace in traces_of(figure):
        x, y = (short[axis] for axis in axes_of(trace))
        whole.add_trace(copy.deepcopy(trace).update(xaxis=x, yaxis=y))
    for kind, add in (("annotations", whole.add_annotation), ("shapes", whole.add_shape)):
        for one in added.get(kind, ()):
            sides = {side: (one.get(side) or side[0]).split(" ") for side in ("xref", "yref")}  # plotly's default
            add(one | {side: " ".join([short.get(axis, axis), *rest]) for side, (axis, *rest) in sides.items()})
    _add_bars(layout, added, label)
    layout.uniformtext.update(added.get("uniformtext", {}))
    # An empty text on an axis, which is plotly's default, would extend the axis.
    whole.add_annotation(name=f"{HEAD} {at}", text="", showarrow=False, xref="paper", yref="paper")
    return replace(block, panels=panels)


def _add_bars(layout: Any, added: Mapping[str, Any], label: str) -> None:
    """Take over how a figure lays out its bars, or raise an error if others on the page differ."""
    for key in BARS:
        mine = added.get(key)
        if layout[key] is not None and mine not in (None, layout[key]):
            raise InputError(
                f"{label!r} has a bar layout that differs from the figures before it.", "Give it a page of its own."
            )
        layout[key] = mine or layout[key]


def _share_type(whole: go.Figure, blocks: Sequence[Block], letter: str) -> None:
    """Give axes with the same title, which show one quantity, a logarithmic scale all together or not at all."""
    axes = [cast(Any, whole.layout)[panel[letter == "y"]] for block in blocks for panel in block.panels]
    for name in {unbreak(axis.title.text) for axis in axes if axis.title.text}:
        same = [axis for axis in axes if unbreak(axis.title.text or "") == name]
        if len({axis.type for axis in same}) > 1 and all(axis.range is None for axis in same):
            numbers = np.array([one for axis in same for one in values_along(whole, axis.plotly_name)], float)
            positive = (numbers[np.isfinite(numbers)] > 0).all()
            for axis in same:
                axis.update(dict.fromkeys(TICKS), type="log" if positive else "linear")


def _share(whole: go.Figure, blocks: Sequence[Block], letter: str, across: int) -> None:
    """Give axes at the same place of equal blocks one scale, and labels only at the left or at the bottom."""
    grids = [[panel[2:] for panel in block.panels] for block in blocks]
    if any(grid != grids[0] for grid in grids):
        return
    for place in range(len(grids[0])):
        same = [cast(Any, whole.layout)[block.panels[place][letter == "y"]] for block in blocks]
        first = same[0]
        if any(_kind(axis) != _kind(first) for axis in same):
            continue
        if first.range is not None:
            backwards = first.range[0] > first.range[1]
            ends = [end for axis in same for end in axis.range]
            for axis in same:
                axis.range = sorted((min(ends), max(ends)), reverse=backwards)
        elif first.autorange is None:
            # Otherwise plotly gives these axes its default range if other shared axes have one: the data would be cut.
            first.autorange = True
        for at, axis in enumerate(same):
            if at and axis.matches is None:
                axis.matches = reference(first.plotly_name)
            inner = at % across > 0 if letter == "y" else at + across < len(blocks)
            if inner and axis.visible is not False:
                axis.update(showticklabels=False, title={"text": ""})


def _kind(axis: Any) -> tuple[Any, ...]:
    """What two axes must have in common to share a scale."""
    title, texts = unbreak(axis.title.text or ""), [unbreak(str(text)) for text in axis.ticktext or ()]
    return axis.type, title, texts, axis.labelalias, axis.range is None


def _share_colours(whole: go.Figure, blocks: Sequence[Block]) -> None:
    """Give maps of the same quantity one colour scale, and one colour bar in each row of blocks."""
    maps: list[Any] = [one for one in traces_of(whole) if one.type == "heatmap" and one.showscale is not False]
    block_of = {reference(x): block for block in blocks for x, *_ in block.panels}
    for name in dict.fromkeys(one.colorbar.title.text for one in maps):
        same = [one for one in maps if one.colorbar.title.text == name]
        values = np.concatenate([np.asarray(numbers_of(one.z), float).ravel() for one in same])
        values = values[np.isfinite(values)] if np.isfinite(values).any() else np.zeros(1)
        low = min([one.zmin for one in same if one.zmin is not None] or [values.min()])
        high = max([one.zmax for one in same if one.zmax is not None] or [values.max()])
        last = {block_of[one.xaxis].row: block_of[one.xaxis].column for one in same}  # blocks are in order
        for one in same:
            block = block_of[one.xaxis]
            one.update(zmin=low, zmax=high, showscale=last[block.row] == block.column)
