"""Plotly figures on the site's pages: their data in the page, drawn by one copy of plotly.js that the site brings."""

import html
import json
import shutil
from pathlib import Path
from typing import Any

import plotly
from plotly.io import to_json
from sphinx.application import Sphinx

MARK = "sl-figure"
TAGS = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}  # JSON that cannot end its script element


def embedded(figure: Any) -> str:
    """A figure as HTML, for `static/figures.js` to draw."""
    drawn = figure if isinstance(figure, str) else to_json(figure, validate=False)
    layout = json.loads(drawn)["layout"]
    title = layout.get("title", {}).get("text", "") or "A figure"
    height, width = layout.get("height", 450), layout.get("width")
    size = f"height: {height}px" + (f"; width: {width}px" if width else "")
    return (
        f'<div class="{MARK}" role="group" aria-label="{html.escape(title)}" tabindex="0">'
        f'<div style="{size}"></div>'
        f'<script type="application/json">{drawn.translate(TAGS)}</script></div>'
    )


def scripts(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Load plotly.js on the pages that have a figure, and on no others."""
    if MARK in context.get("body", ""):
        app.add_js_file("plotly.min.js", loading_method="defer")
        app.add_js_file("figures.js", loading_method="defer")


def copy_plotly(app: Sphinx) -> None:
    """Copy plotly.js from the installed package, so that its version is the one that made the figures."""
    source = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    folder = Path(app.outdir) / "_static"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, folder / source.name)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("builder-inited", copy_plotly)
    app.connect("html-page-context", scripts)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
