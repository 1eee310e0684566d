"""Shared passes against a pass for each prompt, on every family, with windows shorter than the prompts."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

import squashlens as sl
from squashlens.errors import CapacityError, InputError
from squashlens.model.anatomy import pattern_site
from squashlens.run import forward, passes
from squashlens.run.passes import read
from squashlens.sequences import Branch
from tests.cases import FAMILIES, few
from tests.references import last_streams, run_of

TRUNK = (
    2,
    *torch.randint(3, 60, (17,), generator=torch.Generator().manual_seed(1)).tolist(),
)
FOREIGN = next(t for t in range(3, 60) if t not in TRUNK)
SITES = [
    "blocks.0.hook_resid_pre",
    "blocks.2.hook_resid_post",
    "ln_final.hook_out",
    "blocks.1.attn.hook_z",
]
SITES += [pattern_site(2)]


@pytest.mark.few(2)
@pytest.mark.parametrize("family", few(FAMILIES))
def test_shared_passes_equal_the_plain_model(
    family: str, bridge_of: Any, plain_of: Any
) -> None:
    model, plain = bridge_of(family), plain_of(family)
    branches = [
        Branch(5),
        Branch(7, (11,)),
        Branch(7, (11, 12)),
        Branch(18, (3, 4, 5)),
        Branch(3, TRUNK[3:6]),
        Branch(18),
    ]
    readings = read(
        run_of(model),
        TRUNK,
        branches,
        ["blocks.2.hook_resid_post", "ln_final.hook_out"],
    )
    assert readings.route == "shared"
    for place, branch in enumerate(branches):
        expected = last_streams(plain, branch.ids(TRUNK))[-2:]
        for row, site in zip(expected, readings.values, strict=True):
            torch.testing.assert_close(
                readings.values[site][place],
                row,
                rtol=0,
                atol=1e-5 * row.abs().max().item(),
            )


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["gemma3", "gpt2"])
@settings(
    deadline=None,
    max_examples=6,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_routes_agree_on_anything(
    family: str, bridge_of: Any, data: st.DataObject
) -> None:
    """Any branches, tokens in a pass, positions with gaps or without: rows, heads and pattern rows are the same."""
    model = bridge_of(family)
    one = st.builds(
        Branch,
        st.integers(1, len(TRUNK)),
        st.lists(st.integers(3, 59), max_size=4).map(tuple),
    )
    branches = data.draw(st.lists(one, min_size=1, max_size=6))
    tokens_per_pass = data.draw(st.integers(1, 8))
    gaps = data.draw(
        st.none()
        | st.lists(st.integers(1, 3), min_size=len(TRUNK), max_size=len(TRUNK))
    )
    positions = None if gaps is None else tuple(torch.tensor(gaps).cumsum(0).tolist())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, "_tokens_per_pass", lambda plan, n: tokens_per_pass)
        shared = read(run_of(model), TRUNK, branches, SITES, positions=positions)
    separate = read(
        run_of(model), TRUNK, branches, SITES, positions=positions, passes="separate"
    )
    for site in SITES:
        scale = max(1.0, separate.values[site].abs().max().item())
        torch.testing.assert_close(
            shared.values[site], separate.values[site], rtol=0, atol=1e-5 * scale
        )
    weights = shared.values[pattern_site(2)].sum(dim=-1)
    torch.testing.assert_close(weights, torch.ones_like(weights))


def test_a_branch_does_not_join_the_trunk_across_a_gap() -> None:
    trunk, positions = (7, 7, 7, 7), (0, 1, 3, 4)
    assert Branch(1, (7, 7)).along(trunk) == Branch(3)
    assert Branch(1, (7, 7)).along(trunk, positions) == Branch(2, (7,))
    assert Branch(3, (7, 8)).along(trunk, positions) == Branch(4, (8,))
    assert Branch(4, (7,)).along(trunk) == Branch(4, (7,))


def test_hooks_end_the_sharing(bridge_of: Any) -> None:
    """A hook by position would hit another token in a shared pass, and one that reads would see other prompts."""
    model, branches = bridge_of("llama"), [Branch(9, (FOREIGN,)), Branch(6)]
    site = "blocks.1.hook_resid_pre"
    seen: list[int] = []
    at_one_length = sl.hooks.Hook(
        "one", site, lambda t: t * 2 if t.shape[1] == 10 else t
    )
    plain = read(run_of(model), TRUNK, branches, SITES).values[SITES[1]]
    with sl.applied(model, at_one_length):
        found = read(run_of(model), TRUNK, branches, SITES)
        assert found.route == "separate, since hooks are on the model"
        with pytest.raises(InputError):
            read(run_of(model), TRUNK, branches, SITES, passes="shared")
    moved = (found.values[SITES[1]] - plain).abs().amax(dim=-1)
    assert (moved > 1e-3).tolist() == [True, False]
    look = sl.hooks.Hook("look", site, lambda t: seen.append(t.shape[1]))
    with sl.applied(model, look):
        read(run_of(model), TRUNK, branches, SITES)
    assert seen == [10, 6]


def test_sharing_is_tried_before_it_is_believed(
    folder_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask that lets branches see one another is found out."""
    model = sl.load(folder_of("llama"), device="cpu")  # of which nothing has been tried
    honest = passes.context
    monkeypatch.setattr(
        passes,
        "context",
        lambda m, q, k, visible: honest(m, q, k, torch.ones_like(visible)),
    )
    branches = [Branch(9, (4,)), Branch(3, (5, 6))]
    assert read(run_of(model), TRUNK, branches, SITES).route.startswith(
        "separate, since its numbers depend on"
    )


def test_refusals(bridge_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = bridge_of("llama")
    monkeypatch.setattr("squashlens.model.memory.available", lambda device: 1000)
    with pytest.raises(CapacityError):
        read(run_of(model), TRUNK, [Branch(3)] * 9, SITES)


def test_log_probabilities_of_every_row_are_in_float64(
    bridge_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, y = (
        bridge_of("llama"),
        torch.randn(7, 16, generator=torch.Generator().manual_seed(0)),
    )
    monkeypatch.setattr(forward, "CELLS", {"cpu": 2 * model.cfg.d_vocab, "cuda": 1})
    logits = model.original_model.lm_head(y).double().detach().numpy()
    found = torch.cat([*forward.log_probabilities(run_of(model), y)])
    np.testing.assert_allclose(
        found, logits - logsumexp(logits, axis=1, keepdims=True), rtol=1e-12
    )
