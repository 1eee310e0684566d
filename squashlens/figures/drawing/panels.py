"""Several figures on one page, with a title for each, common scales and one legend."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import plotly.graph_objects as go

from squashlens.errors import InputError
from squashlens.figures.drawing.axes import numbers_of
from squashlens.figures.drawing.page_blocks import (
    Page,
    Panel,
    axes_of,
    reference,
    traces_of,
)
from squashlens.figures.drawing.style import dress
from squashlens.figures.drawing.text import escape, unbreak

DOT = " · "
Part = list[list[Panel]]  # the blocks of a figure


def compose(
    figures: Mapping[str, go.Figure],
    *,
    columns: int | None = None,
    title: str | None = None,
) -> go.Figure:
    """One figure of several, which are laid out row by row under their labels."""
    pages = {label: Page.of(figure) for label, figure in figures.items()}
    first = next(iter(pages.values()))
    heading, common, own = _headings(pages, title)
    whole, parts = go.Figure(), list[Part]()
    for label, figure in figures.items():
        parts.append(_add(whole, figure, pages[label], label))
        begin = parts[-1][0][0]
        begin.head, begin.notes = escape(label), own[label]
    for letter in ("x", "y"):
        _share(whole, parts, letter)
    _share_colours(whole)
    inner = max(page.columns for page in pages.values())
    blocks = [block for part in parts for block in part]
    across = (
        inner * (columns or 1)
        if inner > 1
        else columns or (3 if len(blocks) == 3 else 2)
    )
    page = replace(
        first,
        fit=1.0,
        blocks=blocks,
        columns=across,
        title=heading,
        says="",
        notes=common,
        height=None,
    )
    page.keep(whole)
    return dress(whole)


def _headings(
    pages: Mapping[str, Page], title: str | None
) -> tuple[str, str, dict[str, str]]:
    """The title of a page, the notes under it, and the notes of each part: what it does not share with the others.

    Without a common title, the page has the common notes as its title, since the parts have titles of their own.
    """
    noted = {
        label: list(filter(None, page.notes.split(DOT)))
        for label, page in pages.items()
    }
    titles = {page.title for page in pages.values()}
    common = [
        note
        for note in next(iter(noted.values()))
        if all(note in notes for notes in noted.values())
    ]
    own = {}
    for label, notes in noted.items():
        said = [
            note for note in notes if note not in (*common, *escape(label).split(", "))
        ]
        title_of = pages[label].title if len(titles) > 1 else ""
        own[label] = DOT.join(filter(None, [title_of, pages[label].says, *said]))
    if title is not None:
        return escape(title), DOT.join(common), own
    return (
        (titles.pop(), DOT.join(common), own)
        if len(titles) == 1
        else (DOT.join(common), "", own)
    )


def _add(whole: go.Figure, figure: go.Figure, page: Page, label: str) -> Part:
    """Add one figure to the page, with new names for its axes; its blocks."""
    if any(panel.head for panel in page.panels):
        raise InputError(
            f"The figure {label!r} has the panels of several results already.",
            "Give all figures to `panels` at once, without composing some of them first.",
        )
    layout, added = cast(Any, whole.layout), cast(Any, figure.layout).to_plotly_json()
    taken = 1 + sum(name.startswith("xaxis") for name in layout.to_plotly_json())
    numbers = [
        "" if number == 1 else str(number)
        for number in range(taken, taken + len(page.panels))
    ]
    new = {
        old.axes: replace(old, x=f"xaxis{n}", y=f"yaxis{n}")
        for old, n in zip(page.panels, numbers, strict=True)
    }
    short = {
        axis: panel.axes[side]
        for old, panel in new.items()
        for side, axis in enumerate(old)
    }
    for old in page.panels:
        panel = new[old.axes]
        for name, target, other in (
            (old.x, panel.x, panel.axes[1]),
            (old.y, panel.y, panel.axes[0]),
        ):
            axis = added.get(name, {})
            matches = (
                {"matches": short.get(axis["matches"], axis["matches"])}
                if "matches" in axis
                else {}
            )
            whole.update_layout({target: axis | matches | {"anchor": other}})
    for trace in traces_of(figure):
        x, y = (short[axis] for axis in axes_of(trace))
        whole.add_trace(copy.deepcopy(trace).update(xaxis=x, yaxis=y))
    for kind, add in (
        ("annotations", whole.add_annotation),
        ("shapes", whole.add_shape),
    ):
        for one in added.get(kind, ()):
            sides = {
                side: (one.get(side) or side[0]).split(" ") for side in ("xref", "yref")
            }  # plotly's default
            add(
                one
                | {
                    side: " ".join([short.get(axis, axis), *rest])
                    for side, (axis, *rest) in sides.items()
                }
            )
    layout.barmode = added.get("barmode", layout.barmode)
    return [[new[panel.axes] for panel in block] for block in page.blocks]


def _share(whole: go.Figure, parts: Sequence[Part], letter: str) -> None:
    """Give axes at the same place of equal parts one scale."""
    if any(
        [len(block) for block in part] != [len(block) for block in parts[0]]
        for part in parts
    ):
        return
    for place in zip(
        *([panel for block in part for panel in block] for part in parts), strict=True
    ):
        same = [cast(Any, whole.layout)[getattr(panel, letter)] for panel in place]
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
        for axis in same[1:]:
            axis.matches = axis.matches or reference(first.plotly_name)


def _kind(axis: Any) -> tuple[Any, ...]:
    """What two axes must have in common to share a scale."""
    title, texts = (
        unbreak(axis.title.text or ""),
        [unbreak(str(text)) for text in axis.ticktext or ()],
    )
    return axis.type, title, texts, axis.labelalias, axis.range is None


def _share_colours(whole: go.Figure) -> None:
    """Give maps of the same quantity one colour scale, and one colour bar, at the last."""
    maps: list[Any] = [
        one
        for one in traces_of(whole)
        if one.type == "heatmap" and one.showscale is not False
    ]
    for name in dict.fromkeys(one.colorbar.title.text for one in maps):
        same = [one for one in maps if one.colorbar.title.text == name]
        values = np.concatenate(
            [np.asarray(numbers_of(one.z), float).ravel() for one in same]
        )
        values = (
            values[np.isfinite(values)] if np.isfinite(values).any() else np.zeros(1)
        )
        low = min([one.zmin for one in same if one.zmin is not None] or [values.min()])
        high = max([one.zmax for one in same if one.zmax is not None] or [values.max()])
        for one in same:
            one.update(zmin=low, zmax=high, showscale=one is same[-1])
