"""Figures of paths draw the walks, shares and rates they are given."""

from typing import Any

import numpy as np

import squashlens as sl

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
