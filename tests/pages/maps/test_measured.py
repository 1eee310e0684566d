"""The Dataset of a squash map: each number against the function that measures it, or against all paths one by one."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import squashlens as sl
from squashlens.measure.squashing.jacobians.sketch import Estimation
from squashlens.pages.maps.cells import joined, measure, spread

PROMPT = "How many ones are in the following sequence? 1101 ="
FAMILIES = ("llama", "gpt2", "gemma2", "neox")


@pytest.fixture(scope="module")
def found(tiny: Any) -> Any:
    return sl.squash_map(tiny, PROMPT, target=("3", "4")).result


@pytest.mark.slow
def test_every_number_is_that_of_its_own_function(tiny: Any, found: Any) -> None:
    last = found.sizes["position"] - 1
    np.testing.assert_allclose(
        found["bound_over_null"].sel(query=5, layer=0)[:6],
        (
            sl.path_bound(tiny, PROMPT, query=5)
            / sl.path_bound(tiny, PROMPT, query=5, attention="uniform")
        )[:6],
        rtol=1e-5,
    )
    norms = sl.jacobian_norms(tiny, PROMPT)
    np.testing.assert_allclose(
        found["jacobian"].sel(query=last, layer=0), norms, rtol=1e-4
    )
    knocked = sl.knockout_effect(tiny, PROMPT, target=("3", "4"))
    for name in knocked:
        np.testing.assert_allclose(
            found[name].sel(query=last), knocked[name], atol=1e-4
        )
    assert [found[name].values[last] for name in ("target", "against")] == ["3", "4"]


def test_what_was_not_measured_is_not_a_number(found: Any) -> None:
    assert (
        found["jacobian"].sel(query=slice(0, found.sizes["query"] - 2)).isnull().all()
    )
    assert found["target_score_change"].sel(query=3).isnull().all()
    assert {*found["readout_token"].sel(query=3).values.ravel()} == {""}
    assert found["bound_over_null"].sel(query=3, position=4).isnull().all()


def walked(
    patterns: list[torch.Tensor], query: int, cell: tuple[int, int]
) -> dict[tuple[int, bool], float]:
    """The weights of all paths from a cell to a query, summed by the first step: its token, and whether it stays."""
    layer, start = cell
    sums: dict[tuple[int, bool], float] = {}
    for steps in itertools.product(range(query + 1), repeat=len(patterns) - layer):
        places = (start, *steps)
        if places[-1] != query or any(a > b for a, b in itertools.pairwise(places)):
            continue
        later = 1.0
        for block, (below, above) in enumerate(
            itertools.pairwise(places[1:]), start=layer + 1
        ):
            later *= float(patterns[block].mean(dim=0)[above, below]) + (above == below)
        attended = float(patterns[layer].mean(dim=0)[places[1], start])
        for stays, weight in ((False, attended), (True, float(places[1] == start))):
            sums[places[1], stays] = sums.get((places[1], stays), 0.0) + weight * later
    return sums


@pytest.mark.few(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_ways_are_the_shares_of_all_paths(bridge_of: Any, family: str) -> None:
    model = bridge_of(family)
    ids = torch.tensor([[3, 5, 7, 5, 9]])
    found = sl.squash_map(model, ids, method="none").result
    captured = sl.capture(model, ids)
    patterns = [
        captured.patterns[block][0].double() for block in sorted(captured.patterns)
    ]
    _, cache = model.run_with_cache(ids)
    for query, block, start in (
        (4, 0, 1),
        (4, len(patterns) - 1, 2),
        (3, 0, 0),
        (2, 0, 2),
        (0, 0, 0),
    ):
        sums = walked(patterns, query, (block, start))
        total = sum(sums.values())
        cell = found.sel(traced=query, block=block, position=start)
        best = [one / total for one in sorted(sums.values(), reverse=True)[:3]]
        shares = cell["way_share"].values
        kept = shares[np.isfinite(shares) & (shares > 0)]
        positive = [one for one in best if one > 0]
        np.testing.assert_allclose(kept, positive[: len(kept)], rtol=1e-4)
        assert len(kept) == len(positive)
        for share, to, head in zip(
            kept, cell["way_position"].values, cell["way_head"].values, strict=False
        ):
            np.testing.assert_allclose(
                share, sums[int(to), int(head) < 0] / total, rtol=1e-4
            )
            if head >= 0:
                sizes = (
                    cache[f"blocks.{block}.attn.hook_v"][0, start].double().norm(dim=-1)
                )
                weights = patterns[block][:, int(to), start]
                heads = weights * sizes.repeat_interleave(len(weights) // len(sizes))
                assert float(heads[int(head)]) == pytest.approx(
                    float(heads.max()), rel=1e-4
                )
                np.testing.assert_allclose(
                    found["head_attention"].sel(traced=to, block=block, position=start),
                    weights,
                )
    path = found.sel(traced=4, path=0)
    for block, (start, to) in enumerate(
        itertools.pairwise(path["path_position"].values)
    ):
        sizes = cache[f"blocks.{block}.attn.hook_v"][0, start].double().norm(dim=-1)
        moved = patterns[block][:, to, start] * sizes.repeat_interleave(
            len(patterns[block]) // len(sizes)
        )
        assert int(path["path_head"][block]) == (
            -1 if to == start else int(moved.argmax())
        )


@pytest.mark.parametrize("family", ["llama", "neox"])
def test_a_layer_is_read_by_the_models_own_norm_and_head(
    bridge_of: Any, family: str
) -> None:
    model, ids = bridge_of(family), torch.tensor([[3, 5, 7, 5, 9]])
    found = sl.squash_map(model, ids, method="none", query=3).result.sel(query=3)
    plain = model.original_model
    norm = plain.model.norm if family == "llama" else plain.gpt_neox.final_layer_norm
    streams = plain(ids, output_hidden_states=True).hidden_states[
        :-1
    ]  # of which the last one is normed already
    for layer, stream in enumerate(streams):
        chances = plain.get_output_embeddings()(norm(stream[0, 3])).softmax(dim=-1)
        np.testing.assert_allclose(
            found["readout_probability"].sel(layer=layer),
            chances.topk(3)[0].detach(),
            rtol=1e-4,
        )
    last = found.isel(layer=-1, rank=0)
    assert last["readout_token"].item() == found["next_token"].item()
    assert float(last["readout_probability"]) == pytest.approx(
        float(found["next_probability"]), rel=1e-4
    )


@pytest.mark.parametrize("sink", [False, True])
def test_paths_are_the_strongest_of_other_tokens(
    tiny: Any, sink: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "squashlens.pages.maps.traces.first_has_nearly_all", lambda _: sink
    )
    found = sl.squash_map(tiny, PROMPT, method="none").result
    for query in (4, 9, found.sizes["position"] - 1):
        best = sl.attention_paths.strongest_paths(
            tiny, PROMPT, k=6, query=query, avoid=[0] if sink else []
        )
        best = best.isel(path=(best["position_at"] != query).any("layer")).isel(
            path=slice(5)
        )
        starts = sl.path_bound(tiny, PROMPT, query=query)
        kept = starts[int(sink) : query].sum() / starts.sum()
        here = found.sel(traced=query)
        np.testing.assert_allclose(here["path_share"], best["share"] / kept, rtol=1e-5)
        np.testing.assert_allclose(here["path_over_null"], best["over_null"], rtol=1e-5)
        assert (
            here["path_position"].values.tolist() == best["position_at"].values.tolist()
        )
        assert float(here["path_sink"]) == pytest.approx(
            float(starts[0] / starts.sum()) if sink else 0
        )
    assert (
        found["path_weight"].sel(traced=0).isnull().all()
    )  # nothing reaches the first token


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_end_of_the_prompt_against_two_runs(
    bridge_of: Any, dtype: torch.dtype
) -> None:
    model = bridge_of("llama", dtype)
    ids = torch.tensor([[3, 5, 7, 5, 9]])
    found = sl.squash_map(model, ids, method="none").result
    streams = [
        sl.capture(model, each) for each in (ids, torch.tensor([[3, 5, 7, 5, 9, 9]]))
    ]
    short, long = (
        [one.residuals[layer][0].double() for layer in range(3)] for one in streams
    )
    for layer in range(3):
        here = found.sel(layer=layer)
        size = float(short[layer][4].abs().max()) if dtype == torch.float32 else 0
        assert float(here["collapse_distance"]) == pytest.approx(
            float((short[layer][4] - long[layer][5]).abs().max())
        )
        # Half a unit in the last place of v and v*; of float32 also in float64, once for each of seven such roundings.
        ends = [float(one.abs().max()) for one in (short[layer][4], long[layer][5])]
        least = (1 if dtype == torch.float32 else 7) * sum(
            np.spacing(np.float32(end)) / 2 for end in ends
        )
        assert (
            0.99 * least
            <= float(here["collapse_noise"])
            <= max(1e-5 * size, 1.01 * least)
        )
        assert float(here["last_token_rms"]) == pytest.approx(
            float((short[layer][4] ** 2).mean()) ** 0.5, rel=1e-5
        )


def test_a_capture_and_hooks(tiny: Any) -> None:
    """A map of a capture has the numbers of its prompt; hooks on the model are kept and named."""
    plain = sl.squash_map(tiny, "110 =", method="none").result
    held = sl.squash_map(tiny, sl.capture(tiny, "110 ="), method="none").result
    np.testing.assert_allclose(held["way_share"], plain["way_share"], rtol=1e-4)
    with sl.applied(tiny, sl.hooks.mask_tokens([0])):
        masked = sl.squash_map(tiny, "110 =", method="none").result
    assert len(sl.results.provenance(masked)["ambient_hooks"]) > 0
    reads = (
        masked["way_share"]
        .where(masked["way_head"] >= 0)
        .sel(position=0, traced=4)
        .fillna(0)
    )
    assert (
        float(reads.where(masked["way_position"].sel(position=0, traced=4) > 0).max())
        == 0
    )


@pytest.mark.slow
def test_a_saved_map_opens_as_the_same_page(
    tiny: Any, found: Any, tmp_path: Path
) -> None:
    again = sl.squash_map(sl.results.open(sl.results.save(found, tmp_path / "map.nc")))
    assert again.page() == sl.squash_map(found).page()


@given(st.integers(2, 200), st.integers(1, 9), st.data())
def test_a_spread_has_the_opened_query_and_fits(n: int, cost: int, data: Any) -> None:
    opened = data.draw(st.integers(0, n - 1))
    room = data.draw(st.integers(cost * (opened + 1), cost * n * n))
    kept = spread(range(n), opened, cost, room)
    assert opened in kept
    assert kept == sorted(set(kept))
    assert sum(cost * (query + 1) for query in kept) <= room
    assert len({b - a for a, b in itertools.pairwise(kept)}) <= 1
    if cost * n * (n + 1) // 2 <= room:
        assert kept == list(range(n))


def test_a_sketched_map_takes_another_row(bridge_of: Any) -> None:
    model, ids = bridge_of("llama"), [[2, 7, 11, 30, 7]]
    way = Estimation(method="sketch", n_probes=4, seed=0)
    rest: Any = {"norm": "frobenius", "way": way}
    held, more = (
        measure(model, ids, query=-1, **rest),
        measure(model, ids, query=2, alone=True, **rest),
    )
    whole = joined(held, more, 2)
    np.testing.assert_array_equal(
        whole["jacobian_low"].sel(query=2), more["jacobian_low"].sel(query=2)
    )
    np.testing.assert_array_equal(
        whole["jacobian_low"].sel(query=4), held["jacobian_low"].sel(query=4)
    )
    norms = sl.jacobian_norms(
        model, ids, method="sketch", n_probes=4, norm="frobenius", seed=0, query=2
    )
    np.testing.assert_allclose(
        whole["jacobian"].sel(query=2, layer=0), norms, rtol=1e-4
    )
    assert sl.results.provenance(whole)["sketch"]["failure_probability"] == 0.1
