"""Figures of paths draw the walks, shares and rates they are given."""

from typing import Any

import numpy as np
import xarray as xr

import squashlens as sl
from squashlens.records.joining import restated
from tests.figures import specimens

PROMPT = "How many ones are in the following sequence? 1101 ="


def test_strongest_paths_are_drawn_where_they_run(tiny: Any) -> None:
    best = sl.paths.strongest_paths(tiny, PROMPT, k=4)
    lines = [t for t in sl.figures.strongest_paths(best).data if t.mode == "lines+markers"]
    assert len(lines) == 4
    for rank, line in enumerate(reversed(lines)):
        np.testing.assert_array_equal(line.x, best["position_at"].values[rank])
        np.testing.assert_array_equal(line.y, best["layer"].values)
        assert f"path {rank + 1}: {best['share'].values[rank]:.4g}" in line.hovertemplate
    widths = [line.line.width for line in reversed(lines)]
    assert widths == sorted(widths, reverse=True)


def test_hops_draw_their_shares(tiny: Any) -> None:
    shares = sl.paths.hops(tiny, PROMPT)
    heat = sl.figures.hops(shares).data[0]
    np.testing.assert_array_equal(heat.customdata, shares.values)
    np.testing.assert_allclose(heat.z, np.log10(np.maximum(shares.values, 1e-6)), atol=1e-6)


def test_depth_limit_says_why_there_is_no_rate(tiny: Any) -> None:
    """One token has no later ones, and a token that attends only to itself does not decay."""
    first = sl.figures.depth_limit(sl.paths.depth_limit(tiny, [2]))
    assert {line.name for line in first.data if line.name} == {
        f"block {b}: no token after the first one" for b in range(6)
    }
    with sl.applied(tiny, sl.hooks.sliding_window(1)):
        alone = sl.figures.depth_limit(sl.paths.depth_limit(tiny, [2, 5, 6]))
    absorbing = "no predicted rate, later tokens attend only to themselves, observed 1.000"
    assert alone.data[0].name == f"block 0: {absorbing}"
    for figure in (first, alone):
        assert "nan" not in "".join(str(line.name) for line in figure.data)


def test_depth_limit_draws_what_is_left(tiny: Any) -> None:
    limit = sl.paths.depth_limit(tiny, PROMPT, depth=20)
    lines = sl.figures.depth_limit(limit).data
    for block in range(6):
        rest = limit["rest"].sel(block=block).values
        np.testing.assert_array_equal(lines[2 * block].y, np.where(rest > 0, rest, np.nan))
        assert f"predicted {limit['predicted_rate'].values[block]:.3f}" in lines[2 * block].name
        line, rate = np.asarray(lines[2 * block + 1].y), limit["predicted_rate"].values[block]
        np.testing.assert_allclose(line[0], rest[1])  # where the rest stands at depth 1
        np.testing.assert_allclose(line[1:], rate * line[:-1])


def _with_sink(count: int, times: float) -> xr.Dataset:
    found = specimens.sensitivity(count)
    found["path_bound"] = found["path_bound"].copy()
    found["path_bound"][0] = times * float(found["path_bound"][1:].sum())
    found["path_bound"].attrs |= {"long_name": "path bound", "units": "1"}
    return restated(found, {})


def test_a_sink_is_beyond_the_scale_and_said_so() -> None:
    """A first token with 20 times the sum of all others is an arrow at the edge; one with twice that is a point."""
    found = _with_sink(8, 20.0)
    for figure in (sl.figures.attribution(found), sl.figures.by_token(found["path_bound"])):
        line = next(trace for trace in figure.data if trace.yaxis in (None, "y"))
        others = found["path_bound"].values[1:]
        assert np.isnan(np.asarray(line.y, float)[0])
        np.testing.assert_array_equal(np.asarray(line.y, float)[1:], others)
        low, high = figure.layout.yaxis.range
        assert low < np.log10(others.min()) < np.log10(others.max()) < high
        assert high < np.log10(found["path_bound"].values[0])
        assert any(note.text == f"↑ {found['path_bound'].values[0]:.3g}" for note in figure.layout.annotations)
        assert ", with 95.24 % of" in figure.layout.title.subtitle.text
    plain = _with_sink(8, 2.0)
    for figure in (sl.figures.attribution(plain), sl.figures.by_token(plain["path_bound"])):
        assert "beyond the scale" not in figure.layout.title.subtitle.text
        assert np.asarray(figure.data[0].y, float)[0] == plain["path_bound"].values[0]


def test_shares_of_paths_beside_a_sink_have_their_own_scale() -> None:
    shares = specimens.composition(8)
    values = shares.values.copy()
    values[:, 0] = 99 * values[:, 1:].sum(axis=1)
    values /= values.sum(axis=1, keepdims=True)
    sunk = restated(shares.copy(data=values), {})
    figure = sl.figures.of(sunk)
    assert figure.data[0].zmax < 0
    assert ", with 99 % of the paths" in figure.layout.title.subtitle.text


def test_no_share_but_that_of_a_sink_is_beyond_the_scale() -> None:
    """The query has most paths at its own layers, which the scale must show; then nothing is beyond it."""
    shares = specimens.composition(8)
    values = np.full(shares.shape, 1e-4)
    values[:, 0] = 1 - 7e-4
    values[-2, -1], values[-2, 0] = 0.6, 0.4 - 6e-4
    figure = sl.figures.of(restated(shares.copy(data=values), {}))
    assert figure.data[0].zmax == 0
    assert "beyond the scale" not in figure.layout.title.subtitle.text
