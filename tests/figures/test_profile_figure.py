"""The figure of `profile` draws its numbers."""

from typing import Any

import numpy as np
import pytest

import squashlens as sl
from squashlens.errors import InputError


@pytest.mark.slow
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


def test_one_query_or_layer_of_a_profile_is_a_map(tiny: Any) -> None:
    found = sl.profile(tiny, "1101 =", queries=[1, 3, 4], method="none", n_random_models=0, progress=False)[
        "path_bound"
    ]
    for one, rows, title in (
        (found.sel(query=4), found["layer"].values, "Path bound, by layer"),
        (found.sel(layer=2), [0, 1, 2], "Path bound, by query"),
    ):
        figure: Any = sl.figures.of(one)
        (cells,) = figure.data
        assert figure.layout.title.text == title
        np.testing.assert_array_equal(cells.customdata, one.transpose(..., "position").values)
        np.testing.assert_array_equal(cells.y, rows)
        there = one.values > 0
        np.testing.assert_allclose(cells.z[there], np.log10(one.values[there]), rtol=1e-6)
        assert np.isnan(cells.z[~there]).all()
    assert figure.layout.yaxis.ticktext == ("1", "3", "4")
    assert "layer 2" in figure.layout.title.subtitle.text
    assert "white: 0" in figure.layout.title.subtitle.text
    line: Any = sl.figures.of(found.sel(query=3, layer=0))
    np.testing.assert_array_equal(line.data[0].y, found.sel(query=3, layer=0).values[:4])  # none after the query
    assert "query at position 3" in line.layout.title.subtitle.text
    with pytest.raises(InputError, match=r"dimensions \(query, layer, position\)"):
        sl.figures.of(found)
    with pytest.raises(InputError, match=r"another measurement.*squashlens\.paths\.composition"):
        sl.figures.composition(found.sel(query=4))


@pytest.mark.slow
def test_certified_lower_bounds_are_bars(tiny: Any) -> None:
    found = sl.jacobian_norms(tiny, "110 =", method="sketch_upper", n_probes=8, seed=0, progress=False)
    (line,) = sl.figures.of(found).data
    np.testing.assert_allclose(line.y - line.error_y.arrayminus, found["low"].values)
    assert not line.error_y.array.any()
    assert f"at least {found['low'].values[1]:.6g}" in line.customdata[1]
    page: Any = sl.figures.of(
        sl.jacobian_norms(tiny, ["110 =", "0110 ="], method="sketch_upper", n_probes=8, seed=0, progress=False)
    )
    assert [len(one.error_y.arrayminus) for one in page.data] == [5, 6]
    assert "certified lower bound" in page.layout.title.subtitle.text
