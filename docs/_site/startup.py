"""What the kernel that executes the notebooks runs first: plotly figures appear as the site draws them."""

import sys
import warnings
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio
from plotly.io.base_renderers import MimetypeRenderer

from _site.figures import embedded


class SiteRenderer(MimetypeRenderer):
    """HTML without a copy of plotly.js."""

    def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, str]:
        return {"text/html": embedded(go.Figure(fig_dict))}


pio.renderers["site"] = SiteRenderer()
pio.renderers.default = "site"


def show(message: Warning | str, category: type[Warning], *_: object) -> None:
    """Pages leave out what goes to standard error, which is progress bars; a warning must not be lost with it."""
    print(f"{category.__name__}: {message}")


warnings.showwarning = show

# Progress bars are text, which pages leave out: widgets would load scripts from another host.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    sys.modules["ipywidgets"] = None  # type: ignore[assignment]
    import tqdm.auto  # noqa: F401
del sys.modules["ipywidgets"]
