"""The comparison joins what the single measurements say, and ranks as scipy does."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

import squashlens as sl

PROMPT = "How many ones are in the following sequence? 110,111,0 ="


@pytest.mark.slow
@pytest.mark.parametrize("query", [-1, 12])
def test_it_is_the_single_measurements_side_by_side(tiny: Any, query: int) -> None:
    ds = sl.sensitivity(tiny, PROMPT, query=query)
    n = len(sl.prompts.tokenize(tiny, PROMPT)[0])
    reach = query % n + 1
    alone = {
        "path_bound": sl.path_bound(tiny, PROMPT, query=query),
        "null": sl.path_bound(tiny, PROMPT, query=query, attention="uniform"),
        "jacobian": sl.jacobian_norms(tiny, PROMPT, query=query),
        "jacobian_frozen": sl.jacobian_norms(tiny, PROMPT, query=query, freeze="attention"),
    }
    assert ds.sizes["position"] == reach
    for name, expected in alone.items():
        np.testing.assert_allclose(ds[name].values, expected.values[:reach], rtol=1e-6)
    ratio = alone["path_bound"].values[:reach] / alone["null"].values[:reach]
    np.testing.assert_allclose(ds["bound_over_null"].values, ratio, rtol=1e-12)


def test_rank_correlations_leave_out_bos_and_query(tiny: Any) -> None:
    ds = sl.sensitivity(tiny, PROMPT)
    inner = ds.isel(position=slice(1, -1))
    assert int(ds["compared_tokens"]) == inner.sizes["position"]
    for name in ("path_bound", "null", "bound_over_null", "jacobian_frozen"):
        expected = spearmanr(inner[name].values, inner["jacobian"].values).statistic
        assert float(ds["rank_agreement"].sel(estimate=name)) == pytest.approx(expected, abs=1e-12)
        trend = spearmanr(inner[name].values, np.arange(inner.sizes["position"])).statistic
        assert float(ds["position_trend"].sel(estimate=name)) == pytest.approx(trend, abs=1e-12)
    assert float(ds["position_trend"].sel(estimate="null")) == -1.0
