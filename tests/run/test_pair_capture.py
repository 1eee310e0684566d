"""A growing sequence that is run once: what is measured of it runs nothing, and says what the sequence says."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

import squashlens as sl
from squashlens.errors import InputError, StaleCaptureError

REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "collapse": sl.collapse,
    "another norm": lambda m, given: sl.collapse(m, given, norm="l1"),
    "another scale": lambda m, given: sl.collapse(m, given, scale="relative"),
    "by head": lambda m, given: sl.collapse(m, given, by_head="value"),
    "by slice": lambda m, given: sl.collapse(m, given, by_head="slice"),
    "collapse_mechanism": sl.collapse_mechanism,
}


def tail(model: Any) -> Any:
    return sl.prompts.build(
        model, [7, 8, 7, 9, 9, 8, 7, 7], prefix=[2, 5, 11], separator=13
    )


# Every reduction and every family in the default run, every pair of them in the slow one.
@pytest.mark.parametrize(
    ("name", "family"),
    [
        pytest.param(name, family, marks=() if (i - j) % 4 == 0 else pytest.mark.slow)
        for i, name in enumerate(REDUCTIONS)
        for j, family in enumerate(("llama", "gemma2", "gpt2", "neox"))
    ],
)
def test_a_capture_says_what_its_sequence_says(
    name: str, family: str, bridge_of: Callable[..., Any]
) -> None:
    model, measure = bridge_of(family), REDUCTIONS[name]
    at_once, apart = (
        measure(model, sl.capture(model, tail(model))),
        measure(model, tail(model)),
    )
    assert "distance" in at_once or "attention_tv" in at_once
    size = float(sl.capture(model, tail(model)).v.values.abs().max())
    for variable in (
        "distance",
        "distance_y",
        "attention_tv",
        "self_weight",
        "head_distance",
        "observed",
        "bound",
    ):
        if variable in apart:
            np.testing.assert_allclose(
                at_once[variable], apart[variable], atol=1e-4 * max(1.0, size)
            )
    assert set(apart.data_vars) <= set(
        at_once.data_vars
    )  # a capture also has a noise floor


def test_distances_come_from_what_was_captured(bridge_of: Callable[..., Any]) -> None:
    model = bridge_of("llama")
    pairs = sl.capture(
        model, tail(model), lengths=[2, 5, 8], baselines=["contrast", "unrelated"]
    )
    ds = sl.collapse(model, pairs, norm="l2")
    v, star = pairs.v.values.double(), pairs.star.values.double()
    np.testing.assert_allclose(ds["distance"], (v - star).norm(dim=-1)[:-1], rtol=1e-6)
    assert pairs.contrast is not None
    np.testing.assert_allclose(
        ds["contrast_y"],
        (v[-1] - pairs.contrast.values[-1].double()).norm(dim=-1),
        rtol=1e-6,
    )
    assert ds["unrelated"].sizes["draw"] == 3
    assert ds["length"].values.tolist() == [2, 5, 8]
    assert len(repr(pairs)) < 100
    assert sl.results.provenance(ds)["capture"] == {
        "baselines": ["contrast", "unrelated"],
        "n_samples": 3,
        "passes": "auto",
        "noise_lengths": 4,
        "seed": 0,
    }


@pytest.mark.parametrize("passes", ["auto", "separate"])
def test_a_second_run_attends_as_the_first_did(passes: Any) -> None:
    """In half precision, two ways to attend differ by more than two passes in one way."""
    model = sl.load("tiny-gemma", dtype="bfloat16", device="cpu")
    pairs = sl.capture(model, sl.prompts.repeated(model, "1", 8), passes=passes)
    assert pairs.replay is not None
    first = pairs.v.values[:, list(pairs.replay.places)]
    assert (pairs.replay.v - first).abs().max() <= 0.01 * first.abs().max()


def test_the_keywords_of_capture_are_refused_beside_a_capture(bridge_of: Any) -> None:
    model = bridge_of("llama")
    how: dict[str, Any] = {
        "lengths": [2, 5, 8],
        "baselines": ["contrast", "unrelated"],
        "n_samples": 2,
        "noise_lengths": 2,
        "passes": "separate",
        "seed": 4,
    }
    pairs = sl.capture(model, tail(model), keep="residuals", **how)
    xr.testing.assert_identical(
        sl.collapse(model, tail(model), **how), sl.collapse(model, pairs)
    )
    for name, value in how.items():
        with pytest.raises(InputError):
            sl.collapse(model, pairs, **{name: value})


@pytest.mark.parametrize(
    "edit",
    [lambda c: c.v.values.add_(1e-3), lambda c: c.unrelated[1].values.add_(1)],
    ids=["v", "unrelated"],
)
def test_an_edited_capture_is_refused(edit: Any, bridge_of: Callable[..., Any]) -> None:
    model = bridge_of("llama")
    pairs = sl.capture(model, tail(model), baselines=["unrelated"], n_samples=2)
    sl.collapse(model, pairs)
    edit(pairs)
    with pytest.raises(StaleCaptureError):
        sl.collapse(model, pairs)
