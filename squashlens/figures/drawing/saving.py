"""Figures as files: pages that need no network, pictures, and plotly's JSON."""

import os
import shutil
from pathlib import Path
from typing import Any, Literal, cast

import plotly.graph_objects as go

from squashlens.checks.arguments import validated
from squashlens.errors import InputError, OutputError
from squashlens.figures.drawing.themes import ASSUMED, IN_BROWSER, INCH
from squashlens.saving.files import require_output, write

ENDINGS = (".pdf", ".svg", ".png", ".html", ".json")
PICTURES = (".pdf", ".svg", ".png")
LIBRARY = "plotly.min.js"


@validated
def save(
    figure: go.Figure,
    path: str | Path,
    *,
    dpi: int = 300,
    plotlyjs: Literal["inline", "file", "cdn"] = "inline",
) -> Path:
    """Write a figure to a file; its ending chooses the format.

    ``.pdf`` and ``.svg`` are for papers (a PDF contains its fonts), ``.png`` for slides, ``.html`` keeps hover and
    zoom, and ``.json`` can be read by `plotly.io.read_json`. Pictures have the size that `styled` gave the figure;
    without one they are 700 pixels wide. The file is written completely or not at all.

    Args:
        figure: any plotly figure.
        path: the file to write: ``.pdf``, ``.svg``, ``.png``, ``.html`` or ``.json``.
        dpi: pixels per inch of a ``.png``.
        plotlyjs: where an ``.html`` page has its program from: ``"inline"`` (in the page, which has 4.8 MB then),
            ``"file"`` (a file ``plotly.min.js`` beside the page, which all pages of the folder share), or ``"cdn"``
            (loaded from the internet when the page is opened).

    Returns:
        The path.

    Raises:
        InputError: if the ending is unknown or the folder does not exist.
        OutputError: if a picture is asked for, and kaleido or a Chromium browser is missing; if the file is read-only
            or the disk is full.

    >>> import squashlens as sl, tempfile
    >>> figure = sl.figures.composition(sl.attention_paths.composition(sl.load("tiny-gemma"), "110 ="))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sl.figures.save(figure, f"{folder}/figure.html").stat().st_size > 4_000_000
    True
    """
    path = require_output(path, ENDINGS, "path")
    if not 10 <= dpi <= 2400:
        raise InputError(f"dpi={dpi} is not usable.", "Use 10 to 2400 pixels per inch.")
    if path.suffix in PICTURES:
        require_browser(path)
        return write(path, _picture(figure, path.suffix[1:], dpi))
    if path.suffix == ".json":
        return write(path, str(figure.to_json()).encode())
    if plotlyjs == "file":
        from plotly.offline import get_plotlyjs

        library = path.with_name(LIBRARY)
        program = get_plotlyjs().encode()
        # Another size is that of another version of plotly.
        if not library.exists() or library.stat().st_size != len(program):
            write(library, program)
    # What plotly calls these choices.
    source: Any = {"inline": True, "file": LIBRARY, "cdn": "cdn"}[plotlyjs]
    config = {"displaylogo": False, "typesetMath": False}
    page = figure.to_html(
        include_plotlyjs=source, config=config, default_width=IN_BROWSER
    )
    return write(path, page.encode())


def _picture(figure: go.Figure, ending: str, dpi: int) -> bytes:
    """The bytes of a picture, "png", "svg" or "pdf", drawn without MathJax: plotly's own `to_image` loads it from the
    network, and it typesets `$`."""
    import kaleido
    import plotly.io

    layout = cast(Any, figure.layout)
    options = {
        "format": ending,
        "scale": dpi / INCH if ending == "png" else 1,  # plotly's pixel is 1/96 inch
        "width": layout.width or ASSUMED,
        "height": layout.height or plotly.io.defaults.default_height,
    }
    return cast(
        bytes,
        kaleido.calc_fig_sync(
            figure.to_dict(), opts=cast(Any, options), kopts={"mathjax": False}
        ),
    )


def require_browser(path: Path) -> None:
    """Raise an error for a file of a picture if kaleido, or a browser that draws it, is missing."""
    ending = path.suffix
    try:
        import kaleido  # noqa: F401
        from choreographer.browsers.chromium import Chromium
    except ImportError:
        raise OutputError(
            f"A figure can be written as {ending} only with kaleido, which is not installed.",
            "Run `pip install 'squashlens[figures]'`, or save it as .html.",
        ) from None
    # kaleido waits for ever for a browser that is not there, so it is looked for first.
    chosen = os.environ.get("BROWSER_PATH")
    if chosen:
        where = " at BROWSER_PATH"
        browser = shutil.which(chosen)
    else:
        where = ""
        browser = Chromium.find_browser(skip_local=False)
    if browser is None:
        raise OutputError(
            f"A figure is drawn as {ending} by a browser, and none was found{where}.",
            "Install Chromium or Chrome (`apt install chromium`, or `plotly_get_chrome`), or set BROWSER_PATH to one; "
            "or save the figure as .html.",
        )
