"""Themes: fonts, sizes and colours of a figure. They are set on each figure, never as a global default of plotly."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from plotly.colors import sample_colorscale

ThemeName = Literal["notebook", "paper", "slides", "dark"]
INK = "#1d2330"  # of text on a light ground
GUIDE, BROWN = (
    "#8a92a0",
    "#8C564B",
)  # lines at a level, and a dark curve, which are seen on a light and a dark ground
INCH = 96.0  # pixels; plotly writes a pixel as 1/96 inch
POINT = INCH / 72

# Okabe and Ito's palette: its colours can be told apart with every common colour blindness.
COLOURS = {
    "jacobian": "#D55E00",
    "jacobian_frozen": "#E69F00",
    "path_bound": "#0072B2",
    "null": "#7F7F7F",
    "bound_over_null": "#009E73",
    "distance": "#D55E00",
    "heads": "#E69F00",
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
    """Colour and symbol of one of several curves; neighbours differ in each, so also without colours."""
    return {
        "colour": LINES[number % len(LINES)],
        "symbol": SYMBOLS[number % len(SYMBOLS)],
    }


def shades_of(ends: np.ndarray) -> dict[int, str]:
    """Of curves that end at these values, those to draw, with their colours: of many, the highest to the lowest."""
    drawn = np.argsort(ends)[::-1][
        np.linspace(0, len(ends) - 1, min(len(ends), DRAWN)).round().astype(int)
    ].tolist()
    colours = sample_colorscale("Viridis", list(np.linspace(0.3, 0.75, len(drawn))))
    return dict(zip(drawn, map(str, colours), strict=True))


def pale(colour: str) -> str:
    """The colour of marks behind others, which are seen on a light and on a dark ground."""
    return str(sample_colorscale([colour, "#ffffff"], 0.45)[0])


@dataclass(frozen=True)
class Theme:
    """Font, its size in pixels, width in inches (`None`: as wide as the page), height ÷ width if fixed, and colours."""

    font: str = SANS
    size: float = 13.0
    width: float | None = None
    shape: float | None = None
    ink: str = INK
    faint: str = "#e3e6ec"
    paper: str = "#ffffff"
    soft: str = "#6b7280"

    def legible(self, colour: str | None) -> str | None:
        """The colour of a line, as one of text: nearer to the ink, since thin letters need more contrast."""
        return colour and str(sample_colorscale([colour, self.ink], 0.3)[0])

    @property
    def template(self) -> dict[str, Any]:
        """What plotly calls a template: the look of all that a figure does not set itself."""
        font: dict[str, Any] = {"family": self.font, "size": self.size}
        axis = {
            "zeroline": False,
            "linecolor": self.ink,
            "gridcolor": self.faint,
            "automargin": True,
        }
        return {
            "layout": {
                "font": font | {"color": self.ink},
                "paper_bgcolor": self.paper,
                "plot_bgcolor": self.paper,
                "xaxis": axis | {"showgrid": False, "showline": True, "ticks": ""},
                "yaxis": axis | {"showgrid": True},
                "hoverlabel": {"font": font},
                "modebar": {
                    "remove": [
                        "select2d",
                        "lasso2d",
                        "autoScale2d",
                        "zoomIn2d",
                        "zoomOut2d",
                    ]
                },
            }
        }


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
DRAWN = 4  # of many ordered curves
SMALL = 0.85  # size of tick labels and legends, in units of the font size
ASSUMED = 700.0  # pixels: the width that a figure is laid out for if its page decides
IN_BROWSER = f"max(100%, {ASSUMED:g}px)"  # a narrower screen scrolls, since text would be cut there
