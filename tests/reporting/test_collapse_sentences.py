"""What the report says of collapse and separators, on data whose truth is known: also where the paper is wrong."""

from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from squashlens.errors import InputError
from squashlens.reporting import collapse as section
from squashlens.reporting import collapse_sentences as say
from squashlens.theory.statistics.trends import association

N = 20


def pair(distance: Any = 1.0, contrast: Any = 10.0, noise: float = 1e-6, **more: Any) -> xr.Dataset:
    def layered(value: Any) -> Any:
        return ("layer", "length"), np.stack([np.zeros(N), np.broadcast_to(value, N)])

    ds = xr.Dataset(
        {"distance": layered(distance), "contrast": layered(contrast), **{k: layered(v) for k, v in more.items()}},
        coords={"layer": [0, 1], "length": np.arange(1, N + 1), "replayed": [1, N]},
    )
    ds["noise_floor"] = (("layer", "replayed"), np.full((2, 2), noise))
    trend = association(torch.tensor(np.broadcast_to(distance, N).copy()).double(), torch.arange(N).double())
    for end, value in zip(("", "_low", "_high", "_p"), trend, strict=True):
        ds[f"length_trend{end}"] = ("layer", [np.nan, float(value)])
    return ds


@pytest.mark.parametrize(
    ("distance", "expected"),
    [
        (
            np.linspace(9, 1, N),
            "Over 20 lengths D at the last layer falls (very strong trend, Spearman ρ = -1.00, 95 % interval -1.00 to "
            "-1.00, p below 0.001): 9 at 1 and 1 at 20",
        ),
        (np.linspace(1, 9, N), "grows (very strong trend"),
        (np.tile([1.0, 2.0], N // 2), "shows no clear trend"),
    ],
)
def test_falls(distance: Any, expected: str) -> None:
    ds = pair(distance)
    assert expected in say.falls(ds, float(ds["length_trend_p"][-1]))


def test_falls_with_too_few_lengths() -> None:
    ds = pair().isel(length=[0, 1])
    assert "too few different values" in say.falls(ds, np.nan)


@pytest.mark.parametrize(
    ("distance", "expected"),
    [
        (
            1.0,
            "are closer than a pair whose last token differs: they are closer at 20 of 20 lengths (median ratio 0.1)",
        ),
        (20.0, "are no closer than a pair"),
        (
            np.tile([1.0, 20.0], N // 2),
            "are sometimes closer than a pair whose last token differs: they are closer at 10 of 20",
        ),
    ],
)
def test_against_contrast(distance: Any, expected: str) -> None:
    assert expected in say.against_contrast(pair(distance))


@pytest.mark.parametrize(
    ("noise", "expected"),
    [
        (1e-3, "The smallest D is 1e+03 times the noise floor (0.001)"),
        (0.5, "At 20 of 20 lengths D is at most 3 times the noise floor (0.5), so it cannot be told"),
    ],
)
def test_above_noise(noise: float, expected: str) -> None:
    assert expected in say.above_noise(pair(noise=noise))


@pytest.mark.parametrize(
    ("same", "expected"), [(1.0, "bit-identical at 20 of 20"), (0.5, "bit-identical at no length")]
)
def test_precision(same: float, expected: str) -> None:
    ds, rounded = pair(ulps=300.0), pair(ulps=2.0, bit_identical=same)
    ds["ulps"].attrs["units"], rounded["ulps"].attrs["units"] = "ulp (float32)", "ulp (bfloat16)"
    text = say.precision(ds, rounded)
    assert expected in text
    assert "Rounded to bfloat16" in text
    assert "In float32 they differ by at least 300 units" in text


def test_answers() -> None:
    ds = pair()
    assert "could not be compared" in say.answers(ds)
    ds["same_argmax"], ds["total_variation"] = ("length", [True] * 5 + [False] * 15), ("length", np.full(N, 0.25))
    assert "the same for v and v* at 5 of 20 lengths" in say.answers(ds)
    assert "median 0.25" in say.answers(ds)


@pytest.mark.parametrize(
    ("rho", "expected"),
    [
        ((-0.8, -0.9, -0.6, 0.01), "falls (moderate to very strong trend"),
        ((0.8, 0.75, 0.85, 0.01), "grows (strong trend"),
        ((0.2, -0.1, 0.5, 0.3), "shows no clear trend"),
    ],
)
def test_premises(rho: Any, expected: str) -> None:
    ds = pair()
    for name in ("attention_tv", "self_weight"):
        ds[f"{name}_mean"] = (("block", "length"), np.linspace(2, 1, 2 * N).reshape(2, N))
        for place, end in enumerate(("", "_low", "_high", "_p")):
            ds[f"{name}_trend{end}"] = ((), (rho if name == "attention_tv" else (-0.95, -0.97, -0.92, 0.001))[place])
    text = say.premises(ds)
    assert f"the change δ of the attention row {expected}" in text
    assert "the new token's weight on itself falls (very strong trend" in text
    assert "does not show a limit" in text


def test_tightness_and_parts() -> None:
    ds = pair()
    ds["observed"], ds["bound"] = ("length", np.full(N, 2.0)), ("length", np.linspace(4, 40, N))
    assert "is 2 to 20 times the observed" in say.tightness(ds)
    ds["observed"][:] = 0.0
    assert "cannot be compared" in say.tightness(ds)
    ds["share"] = (("part", "block", "length"), np.stack([np.full((2, N), s) for s in (0.5, 0.7, -0.2)]))
    ds = ds.assign_coords(part=["residual", "attention", "mlp"])
    assert "residual 50 %, attention 70 %, mlp -20 %" in say.parts(ds)


def ablated(none: Any, separators: Any, noise: float = 1e-6, kept: Any = (0.0, 0.0, 1.0, 1.0)) -> xr.Dataset:
    distance = np.stack([np.broadcast_to(v, N) for v in (none, separators, none)])
    ds = xr.Dataset(
        {"distance": (("edit", "layer", "length"), np.stack([0 * distance, distance], axis=1))},
        coords={
            "edit": ["none", "separators", "random_places"],
            "layer": [0, 1],
            "length": np.arange(1, N + 1),
            "before_separator": ("length", np.arange(1, N + 1) % 3 == 0),
            "hook": ["mask"],
            "from_block": range(len(kept)),
        },
    )
    ds["noise_floor"] = ("layer", [noise, noise])
    ds["retained"] = ds["distance"] * 0 + 0.25
    shape = (
        ("hook", "from_block", "layer", "length"),
        np.broadcast_to(np.reshape(kept, (1, -1, 1, 1)), (1, len(kept), 2, N)),
    )
    ds["retained_from"] = shape
    return ds


@pytest.mark.parametrize(
    ("none", "separators", "noise", "expected"),
    [
        (
            1.0,
            5.0,
            1e-6,
            "Separators keep v and v* further apart: at the last layer D is larger with them at 17, smaller at 0",
        ),
        (5.0, 1.0, 1e-6, "Separators do not help: they bring v and v* closer together"),
        (1.0, 1.0, 1e-6, "Separators make no difference"),
        (1.0, 5.0, 9.0, "Separators make no difference"),
        (1.0, np.tile([0.5, 2.0], N // 2), 1e-6, "Separators do not reliably help"),
    ],
)
def test_separators_help_or_do_not(none: Any, separators: Any, noise: float, expected: str) -> None:
    assert expected in say.separators_help(ablated(none, separators, noise))


def test_no_separator_inside() -> None:
    assert "too short" in say.separators_help(ablated(1.0, 5.0).isel(length=slice(0, 3)))


def test_from_few_lengths_nothing_is_claimed() -> None:
    """The first separator is before length 4, so that 7 lengths have 4 with one."""
    few, enough = (ablated(1.0, 5.0).assign_coords(hook=["mean_residual"]).isel(length=slice(0, n)) for n in (7, 8))
    assert "Too few lengths have a separator before their last token (4)" in say.separators_help(few)
    assert "larger with them at 5, smaller at 0 of 5 lengths" in say.separators_help(enough)
    assert "too few lengths (4)" in say.presence_or_content(few.isel(length=slice(0, 4)))
    assert "of the effect remains" in say.presence_or_content(enough)


def test_controls() -> None:
    text = say.controls(ablated(1.0, 5.0))
    assert "moved to random places 0.25" in text
    assert "another token" not in text  # it was not measured


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ((0.0, 0.1, 1.0, 1.0), "no longer changes their effect from block 2 on"),
        ((0.0, 0.1, 0.2, 0.3), "changes their effect up to the last block"),
        ((1.0, 1.0, 1.0, 1.0), "does not change their effect, whichever block it starts from"),
        ((np.nan, 1.0, 1.0, 1.0), "cannot be compared"),
    ],
)
def test_last_block_that_matters(kept: Any, expected: str) -> None:
    assert expected in say.last_block_that_matters(ablated(1.0, 5.0, kept=kept))


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ((0.97,) * 4, "0.97 of the effect remains: what matters is that a separator is present, not what it has read."),
        ((0.05,) * 4, "0.05 of the effect remains: what matters is what a separator has read."),
        ((0.6,) * 4, "0.6 of the effect remains: both its presence and what it has read matter."),
        ((np.nan,) * 4, "too small to tell"),
    ],
)
def test_presence_or_content(kept: Any, expected: str) -> None:
    assert expected in say.presence_or_content(ablated(0.1, 1.0, kept=kept).assign_coords(hook=["mean_residual"]))


def test_a_model_that_cannot_be_asked_is_told_so(bridge_of: Any) -> None:
    """No tokenizer, no digits: the page says why instead of leaving a hole."""
    found = section.try_to_measure(bridge_of("llama"), 12, progress=False)
    (only,) = section.sections(found)
    assert only.figure is None
    assert "Not measured for this model. This model has no tokenizer." in only.says[0]
    with pytest.raises(InputError, match="n=1 is too small"):
        section.try_to_measure(bridge_of("llama"), 1, progress=False)


@pytest.mark.slow
def test_a_family_without_the_mechanism_keeps_the_rest(tiny: Any) -> None:
    """What adds to a block besides attention and MLP is not understood; distances and separators still are."""
    import squashlens as sl

    with sl.applied(tiny, sl.hooks.Hook("scaled", "blocks.2.hook_resid_post", lambda t: 1.5 * t)):
        found = section.try_to_measure(tiny, 6, progress=False)
    titled = {part.title: part for part in section.sections(found)}
    assert len(titled) == 6
    why = titled["Why representations become similar"]
    assert why.figure is None
    assert "Not measured for this model. Block 2 adds more to the residual stream" in why.says[0]
    assert all(part.figure is not None for part in titled.values() if part is not why)


@pytest.mark.slow
def test_without_separators_the_rest_is_kept(tiny: Any) -> None:
    """Three digits have no separator between them: the ablation says so, and everything else is there."""
    findings = section.try_to_measure(tiny, 3, progress=False)
    assert isinstance(findings, section.Findings)
    parts = section.sections(findings)
    assert parts[0].figure is not None
    assert parts[-1].title == "Effect of separators by layer"
    assert "Not measured. The sequence has no separators" in parts[-1].says[0]
