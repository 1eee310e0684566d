"""The figure of `profile` draws its numbers."""

from typing import Any

import numpy as np
import pytest

import squashlens as sl
from squashlens.errors import InputError


def test_the_figure_draws_influence_law_and_heads(tiny: Any) -> None:
    found = sl.profile(tiny, "How many ones are in 1101 =", method="none", progress=False)
    figure = sl.figures.of(found)
    assert figure.layout.title.text == "All queries of a prompt, by layer"
    two = sl.profile(tiny, "110 =", queries=[2, 4], method="none", n_random_models=0, progress=False)
    assert sl.figures.of(two).layout.title.text == "Queries 2, 4 of a prompt, by layer"
    assert "norm" not in sl.figures.of(two).layout.title.subtitle.text
    points = next(t for t in figure.data if t.name == "path bound" and t.mode == "markers")
    one = found.sel(quantity="path_bound", layer=0)
    there = one["influence"].values > 0
    np.testing.assert_allclose(points.x, one["distance"].values[there] + 1)
    np.testing.assert_allclose(points.y, one["influence"].values[there] / one["influence"].values[there].mean())
    line = next(t for t in figure.data if t.name == "null" and t.mode == "lines")
    null = found.sel(quantity="null", layer=0)
    law = null["floor"].item() + null["amplitude"].item() * line.x ** -null["exponent"].item()
    drawn = np.isfinite(line.y)
    np.testing.assert_array_equal(drawn, law > 0)
    assert drawn.any()
    size = null["influence"].values[null["influence"].values > 0].mean()
    np.testing.assert_allclose(line.y[drawn], (law / size)[drawn])
    heads = [t for t in figure.data if t.marker.opacity == 0.6]
    np.testing.assert_allclose([t.y for t in heads], found["sink_rate"].values.T)
    with pytest.raises(InputError, match="layer=9"):
        sl.figures.profile(found, layer=9)
