"""The comparison joins what the single measurements say, ranks as scipy does, and leaves sinks out."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

import squashlens as sl
from squashlens.model.hooking.hook import Hook

PROMPT = "How many ones are in the following sequence? 110,111,0 ="
SHORT = "How many ones are in the following sequence? 1101 ="
SITE = "blocks.{block}.attn.hook_pattern"


@pytest.mark.slow
@pytest.mark.parametrize("query", [-1, 12])
def test_it_is_the_single_measurements_side_by_side(tiny: Any, query: int) -> None:
    ds = sl.bound_vs_jacobian(tiny, PROMPT, query=query)
    n = len(sl.prompts.tokenize(tiny, PROMPT)[0])
    reach = query % n + 1
    alone = {
        "path_bound": sl.path_bound(tiny, PROMPT, query=query),
        "null": sl.path_bound(tiny, PROMPT, query=query, attention="uniform"),
        "jacobian": sl.jacobian_norms(tiny, PROMPT, query=query),
        "jacobian_frozen": sl.jacobian_norms(
            tiny, PROMPT, query=query, freeze="attention"
        ),
    }
    assert ds.sizes["position"] == reach
    for name, expected in alone.items():
        np.testing.assert_allclose(ds[name].values, expected.values[:reach], rtol=1e-6)
    ratio = alone["path_bound"].values[:reach] / alone["null"].values[:reach]
    np.testing.assert_allclose(ds["bound_over_null"].values, ratio, rtol=1e-12)


@pytest.mark.parametrize("method", ["exact", "sketch"])
def test_products_of_a_capture_are_those_of_its_prompt(method: Any, tiny: Any) -> None:
    """Also after other layers were measured; under hooks there are others."""
    run = sl.capture(tiny, SHORT)
    alone = sl.bound_vs_jacobian(tiny, SHORT, method=method)
    sl.token_influence(tiny, run, queries=[-1], method=method)
    shared = sl.bound_vs_jacobian(tiny, run, method=method)
    np.testing.assert_allclose(shared["jacobian"], alone["jacobian"], rtol=1e-9)
    with sl.applied(tiny, sl.hooks.freeze_attention()):
        frozen = sl.jacobian_norms(tiny, SHORT, method=method)
    np.testing.assert_allclose(frozen, shared["jacobian_frozen"], rtol=1e-5)
    assert abs(frozen / shared["jacobian"].values - 1).max() > 0.1


def test_rank_correlations_leave_out_bos_and_query(tiny: Any) -> None:
    ds = sl.bound_vs_jacobian(tiny, PROMPT)
    inner = ds.isel(position=slice(1, -1))
    assert int(ds["compared_tokens"]) == inner.sizes["position"]
    for name in ("path_bound", "null", "bound_over_null", "jacobian_frozen"):
        expected = spearmanr(inner[name].values, inner["jacobian"].values).statistic
        assert float(ds["rank_agreement"].sel(estimate=name)) == pytest.approx(
            expected, abs=1e-12
        )
        trend = spearmanr(
            inner[name].values, np.arange(inner.sizes["position"])
        ).statistic
        assert float(ds["position_trend"].sel(estimate=name)) == pytest.approx(
            trend, abs=1e-12
        )
    assert float(ds["position_trend"].sel(estimate="null")) == -1.0


def attending(place: int, share: float, blocks: tuple[int, ...] | None = None) -> Hook:
    """Give one token a share of the attention of all later tokens."""

    def change(pattern: Any) -> Any:
        new = pattern * (1 - share)
        new[..., place] += share
        new[..., : place + 1, :] = pattern[..., : place + 1, :]
        return new

    return Hook(f"attend to {place}", SITE, change, blocks, positional=True)


def test_the_shares_are_those_of_the_captured_patterns(tiny: Any) -> None:
    found = sl.attention_sinks(tiny, SHORT)
    patterns = sl.capture(tiny, SHORT, keep="patterns").patterns
    n = found.sizes["position"]
    for block, pattern in patterns.items():
        mean = pattern[0].double().mean(dim=0).numpy()
        a, u = mean[4:, 3].mean(), np.mean([1 / (j + 1) for j in range(4, n)])
        assert found.sel(block=block)[3].item() == pytest.approx(
            (a - u) / (1 - u), abs=1e-6
        )
    assert not found["sink"].any()
    captured = sl.attention_sinks(tiny, sl.capture(tiny, SHORT, keep="patterns"))
    np.testing.assert_allclose(captured, found, atol=1e-6)


@pytest.mark.parametrize(
    ("blocks", "found"), [(None, [2]), ((0, 1, 2, 3), [2]), ((0, 1, 2), [])]
)
def test_a_sink_is_found_if_it_is_one_in_most_blocks(
    tiny: Any, blocks: Any, found: list[int]
) -> None:
    with sl.applied(tiny, attending(2, 0.5, blocks)):
        sinks = sl.attention_sinks(tiny, SHORT)
    assert np.flatnonzero(sinks["sink"]).tolist() == found


def test_correlations_leave_a_sink_out(tiny: Any) -> None:
    plain = sl.bound_vs_jacobian(tiny, SHORT)
    with sl.applied(tiny, attending(2, 0.5)):
        found = sl.bound_vs_jacobian(tiny, SHORT)
        spans = sl.bound_vs_jacobian(tiny, SHORT, spans={"a": [1, 2], "b": [3, 4]})
    assert not plain["sink"].any()
    assert np.flatnonzero(found["sink"]).tolist() == [2]
    assert found["compared_tokens"] == plain["compared_tokens"] - 1
    assert spans["sink"].values.tolist() == [1, 0]
    assert spans["compared_tokens"] == 1
    rest = [i for i in range(1, found.sizes["position"] - 1) if i != 2]
    rho = np.corrcoef(rankdata(found["path_bound"].values[rest]), rankdata(rest))[0, 1]
    assert found["position_trend"].sel(estimate="path_bound").item() == pytest.approx(
        rho
    )
