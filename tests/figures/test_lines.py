"""Derived values that fit no figure of a measurement are drawn as lines."""

from typing import Any

import numpy as np
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError
from tests import odd


def test_means_and_selections_are_drawn_as_lines() -> None:
    distance = odd.result("collapse")["distance"]
    mean: Any = sl.figures.of(distance.mean("length"))
    (line,) = mean.data
    np.testing.assert_allclose(line.y, distance.mean("length").values)
    assert list(line.x) == distance["layer"].values.tolist()
    assert mean.layout.xaxis.title.text == "layer"
    assert "derived values" in mean.layout.title.subtitle.text
    several: Any = sl.figures.of(distance.transpose("length", "layer"))
    assert len(several.data) == min(distance.shape)
    for line in several.data:
        dim, _, number = line.name.partition(" ")
        np.testing.assert_allclose(line.y, distance.sel({dim: int(number)}).values)


def test_what_has_no_lines_is_refused() -> None:
    for values in (xr.DataArray(1.0), xr.DataArray(["a"]), xr.DataArray(np.zeros((2, 2, 2))), xr.DataArray([])):
        with pytest.raises(InputError, match="There is no figure for"):
            sl.figures.of(values)
