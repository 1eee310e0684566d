"""The figure of a Jacobian's blocks shows the singular values of each token, and names what directions do."""

from typing import Any

import numpy as np

import squashlens as sl


def test_each_direction_is_a_line(tiny: Any) -> None:
    found = sl.jacobian(tiny, "110 =", positions=[3, 1], progress=False)
    figure: Any = sl.figures.jacobian(found)
    assert len(figure.data) == found.sizes["direction"] > 1
    for number, line in enumerate(figure.data):
        one = found.isel(direction=number)
        np.testing.assert_array_equal(line.x, found["position"])
        np.testing.assert_array_equal(line.y, one["singular_value"])
        assert line.name == f"direction {found['direction'].values[number]}"
        for at, text in enumerate(line.customdata):
            here = one.isel(position=at)
            assert f"{float(here['share']):.1%} of" in text
            for name in ("raised", "lowered"):
                words = text.split(f"<br>{name}: ")[1].split("<br>")[0]
                assert len(words.split(", ")) == here.sizes["rank"]
    assert len({(line.line.color, line.line.dash, line.marker.symbol) for line in figure.data}) == len(figure.data)
