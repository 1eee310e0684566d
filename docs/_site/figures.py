"""Plotly figures on the site's pages: their data in the page, drawn by one copy of plotly.js that the site brings."""

import html
import shutil
from pathlib import Path
from typing import Any

import plotly
import plotly.graph_objects as go
from sphinx.application import Sphinx

from squashlens.figures import styled

MARK = "sl-figure"
SMALL = 3.7  # inches: the page on a small screen
TAGS = {
    ord("<"): "\\u003c",
    ord(">"): "\\u003e",
    ord("&"): "\\u0026",
}  # JSON that cannot end its script element


def embedded(figure: go.Figure) -> str:
    """A figure as HTML, for `static/figures.js` to draw as it is, or light or dark for a wide or a small screen."""
    meta: Any = (figure.layout.meta or {}).get("squashlens", {})
    drawn = [figure]
    if meta.get("theme") == "notebook":
        wide = [figure, styled(figure, theme="dark")]
        drawn = wide + [
            styled(one, width=SMALL).update_layout(width=None, autosize=True)
            for one in wide
        ]
    layout = figure.layout
    title = html.escape(meta.get("title") or "A figure")
    size = f"height: {layout.height or 450}px" + (
        f"; width: {layout.width}px" if layout.width else ""
    )
    data = ", ".join(str(one.to_json()) for one in drawn).translate(TAGS)
    return (
        f'<div class="{MARK}" role="group" aria-label="{title}" tabindex="0"><div style="{size}"></div>'
        f'<script type="application/json">[{data}]</script></div>'
    )


def scripts(
    app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
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
