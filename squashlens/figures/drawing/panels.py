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
    Panel,
    axis_name,
    numbers_of,
    reference,
    traces_of,
)
from squashlens.figures.drawing.style import dress

Blocks = list[list[Panel]]


def compose(
    figures: Mapping[str, go.Figure],
    *,
    columns: int | None = None,
    title: str | None = None,
) -> go.Figure:
    """One figure of several, which are laid out row by row under their labels."""
    pages = [Page.of(figure) for figure in figures.values()]
    titles = {page.title for page in pages}
    common = [
        note for note in pages[0].notes if all(note in page.notes for page in pages)
    ]
    whole, parts = go.Figure(), list[Blocks]()
    for page, (label, figure) in zip(pages, figures.items(), strict=True):
        parts.append(_add(whole, figure, page, label))
        said = {*common, *label.split(", ")}
        notes = [note for note in page.notes if note not in said]
        begin = parts[-1][0][0]
        begin.head = label
        texts = [page.title if len(titles) > 1 else "", *notes, begin.title]
        begin.title = " · ".join(filter(None, texts))
    for letter in ("x", "y"):
        _share(whole, parts, letter)
    _share_colours(whole)
    name_once(whole)
    blocks = [block for part in parts for block in part]
    inner = max(page.columns for page in pages)
    usual = inner if inner > 1 else 3 if len(blocks) == 3 else 2
    shared = titles.pop() if len(titles) == 1 else ""
    heading = shared if title is None else title
    new = {"title": heading or " · ".join(common), "notes": common if heading else []}
    new |= {"columns": inner * columns if columns else usual, "exact": bool(columns)}
    replace(pages[0], blocks=blocks, fit=1.0, height=None, **new).keep(whole)
    return dress(whole)


def _add(whole: go.Figure, figure: go.Figure, page: Page, label: str) -> Blocks:
    """Add one figure to the page, with new names for its axes; its blocks."""
    if any(panel.head for panel in page.panels):
        raise InputError(
            f"The figure {label!r} has the panels of several results already.",
            "Give all figures to `panels` at once, without composing some of them first.",
        )
    layout = cast(Any, figure.layout).to_plotly_json()
    there = cast(Any, whole.layout).to_plotly_json()
    taken = sum(name.startswith("xaxis") for name in there)
    names: dict[str, str] = {}
    for number, panel in enumerate(page.panels, start=1 + taken):
        suffix = "" if number == 1 else str(number)
        names |= {reference(panel.x): f"x{suffix}", reference(panel.y): f"y{suffix}"}
    for panel in page.panels:
        for old, other in ((panel.x, panel.y), (panel.y, panel.x)):
            axis = layout.get(old, {}) | {"anchor": names[reference(other)]}
            axis |= _renamed(axis, ("matches",), names)
            whole.update_layout({axis_name(names[reference(old)]): axis})
    for trace in traces_of(figure):
        refers = {"xaxis": trace.xaxis or "x", "yaxis": trace.yaxis or "y"}
        new = copy.deepcopy(trace)
        whole.add_trace(new.update(_renamed(refers, ("xaxis", "yaxis"), names)))
    add = {"annotations": whole.add_annotation, "shapes": whole.add_shape}
    for kind, draw in add.items():
        for one in layout.get(kind, ()):
            refers = {"xref": "x", "yref": "y"} | one
            draw(refers | _renamed(refers, ("xref", "yref"), names))
    cast(Any, whole.layout).barmode = layout.get("barmode")
    for panel in page.panels:
        panel.x, panel.y = (axis_name(names[axis]) for axis in panel.axes)
    return page.blocks


def _renamed(
    given: Mapping[str, Any], keys: Sequence[str], names: Mapping[str, str]
) -> dict[str, str]:
    """The references of these keys, such as "x2 domain", with the new names of their axes."""
    parts = {key: given[key].partition(" ") for key in keys if given.get(key)}
    return {
        key: f"{names.get(axis, axis)}{space}{domain}"
        for key, (axis, space, domain) in parts.items()
    }


def _share(whole: go.Figure, parts: Sequence[Blocks], letter: str) -> None:
    """Give axes at the same place of equal parts one scale, which is logarithmic if all of them are."""
    layout = cast(Any, whole.layout)
    panels = [[panel for block in part for panel in block] for part in parts]
    for place in zip(*panels, strict=False):
        same = [layout[getattr(panel, letter)] for panel in place]
        if len({_kind(axis) for axis in same}) > 1:
            continue
        if len({axis.type for axis in same}) > 1:
            for axis in same:
                axis.update(type="linear", range=None)
        first = same[0]
        if first.range is not None:
            ends = [end for axis in same for end in axis.range]
            backwards = first.range[0] > first.range[1]
            for axis in same:
                axis.range = sorted((min(ends), max(ends)), reverse=backwards)
        elif first.autorange is None:
            # Otherwise plotly gives these axes its default range if other shared axes have one: the data would be cut.
            first.autorange = True
        for axis in same[1:]:
            axis.matches = axis.matches or reference(first.plotly_name)


def _kind(axis: Any) -> str:
    """What two axes must have in common to share a scale."""
    title = (axis.title.text or "").replace("<br>", " ")
    return str([title, axis.ticktext, axis.labelalias, axis.range is None])


def _share_colours(whole: go.Figure) -> None:
    """Give maps of the same quantity one colour scale, and one colour bar, at the last."""
    maps = [trace for trace in traces_of(whole) if trace.type == "heatmap"]
    maps = [trace for trace in maps if trace.showscale is not False]
    for name in {trace.colorbar.title.text for trace in maps}:
        same = [trace for trace in maps if trace.colorbar.title.text == name]
        values = np.concatenate([numbers_of(trace.z) for trace in same])
        values = values[np.isfinite(values)]
        lows = [trace.zmin for trace in same if trace.zmin is not None]
        highs = [trace.zmax for trace in same if trace.zmax is not None]
        low = min(lows or [values.min(initial=np.inf)])
        high = max(highs or [values.max(initial=-np.inf)])
        for trace in same:
            trace.showscale = trace is same[-1]
            if low <= high:
                trace.update(zmin=low, zmax=high)
