"""Several figures on one page, with a title for each, common scales and one legend."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import plotly.graph_objects as go

from squashlens.errors import InputError
from squashlens.figures.drawing.layout import name_once
from squashlens.figures.drawing.page import (
    Page,
    axis_name,
    reference,
    traces_of,
)
from squashlens.figures.drawing.style import dress

REFERENCES = ("xaxis", "yaxis", "coloraxis", "xref", "yref", "anchor", "matches")


def compose(
    figures: Mapping[str, go.Figure],
    *,
    columns: int | None = None,
    title: str | None = None,
) -> go.Figure:
    """One figure of several, which are laid out row by row under their labels.

    Args:
        figures: figures of this package, by the label above their first panel.
        columns: how many figures are side by side, whatever the width; by default as many as fit, up to two or three.
        title: title of the page; by default that of the figures, or else the notes that all of them have.
    """
    pages = [Page.of(figure) for figure in figures.values()]
    titles = {page.title for page in pages}
    common = pages[0].notes
    for page in pages:
        common = [note for note in common if note in page.notes]
    whole = go.Figure()
    blocks = []
    n_panels = 0  # on the page so far; each has two axes of its own
    for page, (label, figure) in zip(pages, figures.items(), strict=True):
        _add(whole, figure, page, label, n_before=n_panels)
        n_panels += len(page.panels)
        # The first panel has what the page as a whole does not say of this figure.
        said_elsewhere = common + label.split(", ")
        texts = [note for note in page.notes if note not in said_elsewhere]
        if len(titles) > 1:
            texts.insert(0, page.title)
        first = page.panels[0]
        if first.title:
            texts.append(first.title)
        first.head = label
        first.title = " · ".join(texts)
        blocks += page.blocks
    for letter in ("x", "y"):
        _share_scales(whole, pages, letter)
    name_once(whole)
    if title is None and len(titles) == 1:
        (title,) = titles
    if not title:
        title = " · ".join(common)
        common = []
    side_by_side = max(page.columns for page in pages)
    if columns:
        side_by_side *= columns
    elif side_by_side == 1:
        side_by_side = 3 if len(blocks) == 3 else 2
    sheet = {"title": title, "notes": common, "blocks": blocks, "height": None}
    sheet |= {"columns": side_by_side, "exact": bool(columns)}
    replace(pages[0], **cast(Any, sheet)).keep(whole)
    return dress(whole)


def _add(
    whole: go.Figure, figure: go.Figure, page: Page, label: str, n_before: int
) -> None:
    """Add one figure to a whole that has `n_before` panels, with new names for its axes, also in its `page`.

    Everything that refers to an axis is renamed: traces, annotations, shapes and other axes. `label` is for the error.
    """
    if any(panel.head for panel in page.panels):
        raise InputError(
            f"The figure {label!r} has the panels of several results already.",
            "Give all figures to `panels` at once, without composing some of them first.",
        )
    layout = cast(Any, figure.layout).to_plotly_json()
    names = _colours(whole, layout)  # new names by old ones
    for number, panel in enumerate(page.panels, start=1 + n_before):
        suffix = str(number) if number > 1 else ""  # plotly counts x, x2, x3
        for axis in panel.axes:
            names[axis] = axis[0] + suffix
    for panel in page.panels:
        x, y = panel.axes
        for axis, other in ((x, y), (y, x)):
            look = layout.get(axis_name(axis), {}) | {"anchor": other}
            whole.update_layout({axis_name(names[axis]): _renamed(look, names)})
        panel.x = axis_name(names[x])
        panel.y = axis_name(names[y])
    for trace in traces_of(figure):
        axes = {"xaxis": trace.xaxis or "x", "yaxis": trace.yaxis or "y"}
        if trace.type == "heatmap":
            axes["coloraxis"] = trace.coloraxis
        whole.add_trace(copy.deepcopy(trace).update(_renamed(axes, names)))
    usual = {"xref": "x", "yref": "y"}
    for note in layout.get("annotations", ()):
        whole.add_annotation(_renamed(usual | note, names))
    for shape in layout.get("shapes", ()):
        whole.add_shape(_renamed(usual | shape, names))
    cast(Any, whole.layout).barmode = layout.get("barmode")


def _colours(whole: go.Figure, layout: Mapping[str, Any]) -> dict[str, str]:
    """Add the colour axis of a figure, if it has one, and give its new name by the old one, "coloraxis".

    Maps whose colour bars have the same title share one axis, with its bar.
    """
    if "coloraxis" not in layout:
        return {}
    added = cast(Any, whole.layout).to_plotly_json()
    known = [name for name in added if name.startswith("coloraxis")]
    title = layout["coloraxis"]["colorbar"]["title"]["text"]
    for name in known:
        if added[name]["colorbar"]["title"]["text"] == title:
            return {"coloraxis": name}
    name = f"coloraxis{len(known) + 1}" if known else "coloraxis"
    whole.update_layout({name: layout["coloraxis"]})
    return {"coloraxis": name}


def _renamed(look: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A part of a figure with the new names of axes, also in a reference such as "x2 domain"."""
    renamed = dict(look)
    for key in REFERENCES:
        axis, space, domain = str(renamed.get(key, "")).partition(" ")
        if axis in names:
            renamed[key] = f"{names[axis]}{space}{domain}"
    return renamed


def _share_scales(whole: go.Figure, pages: Sequence[Page], letter: str) -> None:
    """Give axes at the same place of equal parts one scale, which is logarithmic if all of them are.

    `letter` is "x" or "y". The first panels of all pages are compared, then the second ones, and so on.
    """
    layout = cast(Any, whole.layout)
    panels_of_pages = [page.panels for page in pages]
    for panels in zip(*panels_of_pages, strict=False):
        axes = [layout[getattr(panel, letter)] for panel in panels]
        first, *others = axes
        if {_kind(axis) for axis in axes} != {_kind(first)}:
            continue
        if {axis.type for axis in axes} != {first.type}:
            for axis in axes:
                axis.update(type="linear", range=None)
        if first.range is not None:
            ends = np.array([axis.range for axis in axes], dtype=float)
            is_backwards = bool(ends[0, 0] > ends[0, 1])  # as rows with names
            first.range = sorted((ends.min(), ends.max()), reverse=is_backwards)
        elif first.autorange is None:
            # Otherwise plotly gives these axes its default range if other shared axes have one: the data would be cut.
            first.autorange = True
        for axis in others:
            axis.range = first.range
            axis.matches = axis.matches or reference(first.plotly_name)


def _kind(axis: Any) -> str:
    """What two axes must have in common to share a scale: title, labels, and whether the range is set."""
    title = (axis.title.text or "").replace("<br>", " ")
    return str([title, axis.ticktext, axis.labelalias, axis.range is None])
