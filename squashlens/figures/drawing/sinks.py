"""Show an attention sink apart: outside a scale that fits the other tokens, with a note that says so."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from squashlens.figures.drawing.text import label
from squashlens.theory.statistics.sinks import first_share, has_sink

EDGE = 0.08  # how far a logarithmic axis goes beyond the other tokens, as a share of their range


def is_sink(values: xr.DataArray) -> bool:
    """Whether the token at position 0 has nearly all of these values over the tokens of one prompt."""
    data = values.values.astype(np.float64)
    return bool(int(values["position"].values[0]) == 0 and np.isfinite(data).all() and has_sink(data))


def sink_note(values: xr.DataArray, what: str = "the sum") -> str:
    """The note for the line under the title."""
    share = 100 * first_share(values.values.astype(np.float64))
    return f"beyond the scale: {label(str(values['token'].values[0]))}, with {share:.4g} % of {what}"


def leave_sink_out(figure: go.Figure, values: list[np.ndarray], sink: float, place: dict[str, Any]) -> None:
    """End a logarithmic axis at the other tokens; an arrow at the edge has the value of the sink.

    `values` are those of the other tokens; `place` has the row and column of the panel.
    """
    shown = np.concatenate([each[np.isfinite(each) & (each > 0)] for each in values])
    low, high = np.log10(shown.min()), np.log10(shown.max())
    room = max(EDGE * (high - low), 0.05)
    figure.update_yaxes(type="log", range=[low - room, high + 2 * room], **place)
    figure.add_annotation(
        x=0, y=high + 2 * room, text=f"↑ {sink:.3g}", showarrow=False, xanchor="left", yanchor="top", xshift=-8, **place
    )
