"""Themes: fonts, sizes and colours of a figure. They are set on each figure, never as a global default of plotly."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

ThemeName = Literal["notebook", "paper", "slides", "dark"]
INK = "#1d2330"  # of text on a light ground
# Seen on a light and on a dark ground: lines at a level, and a dark curve.
GUIDE = "#8a92a0"
BROWN = "#a5694f"
INCH = 96.0  # pixels; plotly writes a pixel as 1/96 inch
POINT = INCH / 72
ORDINARY = 13.0  # pixels: the font size for which heights of panels and sizes of marks are given

# Okabe and Ito's palette: its colours can be told apart with every common colour blindness.
COLOURS = {
    "jacobian": "#D55E00",
    "jacobian_frozen": "#E69F00",
    "path_bound": "#0072B2",
    "null": "#7F7F7F",
    "bound_over_null": "#009E73",
    "distance": "#D55E00",
    "heads": "#CC79A7",
    "contrast": "#0072B2",
    "unrelated": "#56B4E9",
    "noise_floor": "#7F7F7F",
    "residual": "#7F7F7F",
    "attention": "#0072B2",
    "mlp": "#E69F00",
}
LINES = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#E69F00",
    "#CC79A7",
    "#56B4E9",
    "#7F7F7F",
    BROWN,
)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "triangle-down")
SANS = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
SERIF = "'Times New Roman', Times, 'Liberation Serif', 'Nimbus Roman', 'DejaVu Serif', serif"


def series(number: int) -> dict[str, Any]:
    """The look of one of several curves; neighbours differ in colour, symbol and width, so also without colours.

    The first ones, which are drawn below the others, are wider: they are seen where another has the same values.
    """
    return {
        "colour": LINES[number % len(LINES)],
        "symbol": SYMBOLS[number % len(SYMBOLS)],
        "width": (3.5, 2.0, 1.2, 2.0)[min(number, 3)],
        "size": (9, 6, 4, 6)[min(number, 3)],
    }


def pale(colour: str) -> str:
    """The colour of marks behind others: a colour mixed with white, so that it is seen on a light and on a dark
    ground."""
    return str(sample_colorscale([colour, "#ffffff"], 0.45)[0])


def tint(colour: str, opacity: float = 0.22) -> str:
    """A colour such as "#0072B2" as a transparent fill."""
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return f"rgba({red}, {green}, {blue}, {opacity})"


@dataclass(frozen=True)
class Theme:
    """Font, its size in pixels, width in inches (`None`: as wide as the page), height ÷ width if fixed, and colours."""

    font: str = SANS
    size: float = ORDINARY
    width: float | None = None
    shape: float | None = None
    ink: str = INK
    faint: str = "#e3e6ec"
    paper: str = "#ffffff"
    soft: str = "#6b7280"

    @property
    def thickness(self) -> float:
        """Lines and dots in units of those of a notebook: larger with large text, and not smaller with small text."""
        return max(1.0, self.size / ORDINARY)


# A legend below the figure, whose height plotly finds and reserves.
BELOW = {
    "orientation": "h",
    "traceorder": "normal",
    "tracegroupgap": 0,
    "x": 0,
    "xref": "container",
    "xanchor": "left",
    "y": 0,
    "yref": "container",
    "yanchor": "bottom",
    "maxheight": 5000,  # otherwise plotly scrolls a long one
}


@lru_cache(maxsize=32)  # plotly takes ten times as long to check one as to draw bars
def template(theme: Theme) -> go.layout.Template:
    """What plotly calls a template: the look of all that a figure does not set itself."""
    font: dict[str, Any] = {"family": theme.font, "size": theme.size}
    small = {"size": SMALL * theme.size}
    axis = {
        "zeroline": False,
        "linecolor": theme.ink,
        "gridcolor": theme.faint,
        "automargin": True,
        "exponentformat": "power",
        "minorloglabels": "complete",  # 0.2 rather than a small 2 beside 0.1
        "tickfont": small,
        "title": {"font": {"size": theme.size}, "standoff": 0.5 * theme.size},
        "minor": {"ticklen": 3, "tickcolor": theme.soft},
    }
    bar = {"outlinewidth": 0, "thickness": theme.size, "tickfont": small}
    bar |= {"exponentformat": "power", "title": {"side": "right"}}
    buttons = ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"]
    layout = {
        "font": font | {"color": theme.ink},
        "paper_bgcolor": theme.paper,
        "plot_bgcolor": theme.paper,
        "xaxis": axis | {"showgrid": False, "showline": True, "ticks": ""},
        "yaxis": axis | {"showgrid": True},
        "hoverlabel": {"font": font},
        "modebar": {"remove": buttons},
        "legend": {"font": small, "bgcolor": "rgba(0, 0, 0, 0)"} | BELOW,
    }
    layout["coloraxis"] = {"colorscale": "Viridis", "colorbar": bar}
    return go.layout.Template(layout=layout)


THEMES: dict[ThemeName, Theme] = {
    "notebook": Theme(),
    "paper": Theme(
        font=SERIF,
        size=8 * POINT,
        width=6.75,
        ink="#000000",
        faint="#dddddd",
        soft="#444444",
    ),
    "slides": Theme(size=18 * POINT, width=13.0, shape=9 / 16),
    "dark": Theme(ink="#e8eaf0", faint="#3a4150", paper="#14171f", soft="#a9b0bf"),
}
WIDTHS = {"column": 3.25, "page": 6.75}  # inches
SMALL = 0.85  # size of tick labels and legends, in units of the font size
ASSUMED = 700.0  # pixels: the width that a figure is laid out for if its page decides
IN_BROWSER = f"max(100%, {ASSUMED:g}px)"  # a narrower screen scrolls, since text would be cut there
