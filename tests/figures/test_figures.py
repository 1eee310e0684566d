"""Figures show the values they are given, one place per token, nothing escaped wrongly or computed anew."""

from typing import Any

import numpy as np
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError
from squashlens.figures.drawing.text import label

PROMPT = "How many ones are in the following sequence? 1101 ="


def numbers(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.float64)


@pytest.mark.slow
def test_attribution_draws_the_dataset(tiny: Any) -> None:
    ds = sl.sensitivity(tiny, PROMPT, progress=False)
    figure = sl.figures.attribution(ds)
    traces = {t.name: t for t in figure.data}
    assert len(traces) == 5
    np.testing.assert_array_equal(numbers(traces["true Jacobian"].y), ds["jacobian"].values)
    np.testing.assert_array_equal(numbers(traces["path bound (Thm 5.1)"].y), ds["path_bound"].values)
    np.testing.assert_array_equal(numbers(traces["bound ÷ null"].y), ds["bound_over_null"].values)
    for axis in (figure.layout.yaxis, figure.layout.yaxis2):
        assert axis.type == "log"


@pytest.mark.slow
def test_rows_stand_at_their_positions(tiny: Any) -> None:
    """A selection or another order of tokens: places, hover texts and ticks are those of `position`."""
    every = sl.sensitivity(tiny, "1101 =", progress=False)
    ds = every.isel(position=[5, 2, 4])
    wanted = [f"{place}: {label(str(every['token'].values[place]))}" for place in (2, 4, 5)]
    for figure, name in ((sl.figures.attribution(ds), "path_bound"), (sl.figures.by_token(ds["jacobian"]), "jacobian")):
        line = figure.data[0]
        assert numbers(line.x).tolist() == [2, 4, 5]
        np.testing.assert_array_equal(numbers(line.y), every[name].values[[2, 4, 5]])
        assert list(line.customdata) == wanted
        assert figure.layout.xaxis.labelalias == dict(zip("245", wanted, strict=True))
    padded = every["jacobian"].assign_coords(n_tokens=5).isel(position=slice(2, None))
    assert numbers(sl.figures.by_token(padded).data[0].x).tolist() == [2, 3, 4]
    shares = sl.paths.composition(tiny, "1101 =")
    cells = sl.figures.composition(shares.isel(position=[4, 2])).data[0]
    assert numbers(cells.x).tolist() == [2, 3, 4]
    np.testing.assert_array_equal(numbers(cells.customdata)[:, [0, 2]], shares.values[:, [2, 4]])
    assert np.isnan(numbers(cells.z)[:, 1]).all()
    tokens = every["token"].values
    named = {"position": list("abcdefgh")[: len(tokens)], "token": ("position", tokens)}
    text = xr.DataArray(np.ones(len(tokens)), dims="position", coords=named)
    with pytest.raises(InputError, match="'position' of this result does not have whole numbers"):
        sl.figures.by_token(text)


def test_text_is_shown_as_it_is() -> None:
    """Plotly does not know `&quot;`, and shows markup that is not escaped."""
    assert label('"') == '"'
    assert label("'") == "'"
    assert label('<a href="x">') == '&lt;a href="x"&gt;'
    assert label("&quot;") == "&amp;quot;"


def test_composition_draws_log_shares(tiny: Any) -> None:
    shares = sl.paths.composition(tiny, PROMPT)
    heat = sl.figures.composition(shares).data[0]
    np.testing.assert_array_equal(numbers(heat.customdata), shares.values)
    np.testing.assert_allclose(numbers(heat.z), np.log10(np.maximum(shares.values, 1e-6)), atol=1e-6)
