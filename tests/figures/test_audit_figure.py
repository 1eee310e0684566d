"""The ladder draws every method's medians, agreements and costs as the audit has them."""

from typing import Any

import numpy as np
import pytest

import squashlens as sl


@pytest.mark.slow
def test_the_ladder_shows_the_audit(tiny: Any) -> None:
    found = sl.audit(tiny, ["110 = 2", "011 = 2"], estimates=["paper", "exact", "rollout", "subst"], progress=False)
    figure = sl.figures.audit(found)
    middle, agreement, cost = {}, {}, {}
    for trace in figure.data:
        column = {None: middle, "x": middle, "x2": agreement, "x3": cost}[trace.xaxis]
        if column is not agreement or trace.marker.symbol == "circle":
            names = [one if isinstance(one, str) else one[0] for one in trace.customdata]
            column.update(zip(names, trace.x, strict=True))
    inner = found.isel(position=found["content"].values)
    for name in found["estimate"].values:
        at = inner.sel({"estimate": name})
        wanted = at["over_jacobian"].median().item()
        np.testing.assert_allclose(middle[name], wanted, rtol=1e-6)
        partial = at["agreement"].sel(reference="Jacobian", way="partial").item()
        np.testing.assert_allclose(agreement[name], partial, rtol=1e-6)
        np.testing.assert_allclose(cost[name], at["cost"].item(), rtol=1e-6)
    assert [text.replace("<br>", " ") for text in figure.layout.yaxis.ticktext] == found["estimate"].values.tolist()
    assert np.isnan(middle["substitution effect"])
    assert "2 prompts, 4 content tokens" in figure.layout.title.subtitle.text
