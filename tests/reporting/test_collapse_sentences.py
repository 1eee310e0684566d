"""What the report says of collapse and separators, on data whose truth is known: also where the paper is wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from squashlens.errors import InputError
from squashlens.reporting import collapse_sections as section
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


def measured(**values: Any) -> xr.Dataset:
    """A pair with further variables over length."""
    return pair().assign({name: ("length", np.broadcast_to(value, N).copy()) for name, value in values.items()})


def falling(distance: Any) -> str:
    ds = pair(distance)
    return say.falls(ds, float(ds["length_trend_p"][-1]))


def rounded(same: float) -> str:
    ds, other = pair(ulps=300.0), pair(ulps=2.0, bit_identical=same)
    ds["ulps"].attrs["units"], other["ulps"].attrs["units"] = "ulp (float32)", "ulp (bfloat16)"
    return say.precision(ds, other)


def premises(rho: tuple[float, ...]) -> str:
    ds = pair()
    for name in ("attention_tv", "self_weight"):
        ds[f"{name}_mean"] = (("block", "length"), np.linspace(2, 1, 2 * N).reshape(2, N))
        for place, end in enumerate(("", "_low", "_high", "_p")):
            ds[f"{name}_trend{end}"] = ((), (rho if name == "attention_tv" else (-0.95, -0.97, -0.92, 0.001))[place])
    return say.premises(ds)


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


HALF = np.tile([1.0, 20.0], N // 2)
SAID: list[tuple[Callable[[], str], str]] = [
    (lambda: falling(np.linspace(9, 1, N)), "falls 9-fold (Spearman ρ = −1.00, 95 % interval −1.00 to −1.00, p below "
     "0.001): 9 at 1 and 1 at 20"),
    (lambda: falling(np.linspace(1, 9, N)), "grows 9-fold"),
    (lambda: falling(np.tile([1.0, 2.0], N // 2)), "ends 2-fold higher, without a clear trend"),
    (lambda: say.falls(pair(np.linspace(9, 1, N)).isel(length=[0, 1]), np.nan), "has too few values for a trend"),
    (lambda: say.against_contrast(pair()), "are closer than a pair whose last token differs: they are closer at 20 of "
     "20 lengths (median ratio 0.1)"),
    (lambda: say.against_contrast(pair(20.0)), "are no closer than a pair"),
    (lambda: say.against_contrast(pair(HALF)), "are sometimes closer than a pair whose last token differs: they are "
     "closer at 10 of 20"),
    (lambda: say.above_noise(pair(noise=1e-3)), "the smallest D is 1,000 times the noise floor."),
    (lambda: say.above_noise(pair(noise=0.5)), "At 20 of 20 lengths D is at most 3 times the noise floor (0.5), so it"),
    (lambda: rounded(1.0), "Rounded to bfloat16, the last representations are bit-identical at 20 of 20"),
    (lambda: rounded(0.5), "bit-identical at no length"),
    (lambda: rounded(0.5), "In float32 they differ by at least 300 units"),
    (lambda: say.answers(pair()), "could not be compared"),
    (lambda: say.answers(measured(same_argmax=np.arange(N) < 5, total_variation=0.25)), "at 5 of 20 lengths. The total "
     "variation between their next-token distributions has median 0.25"),
    (lambda: premises((-0.8, -0.9, -0.6, 0.01)), "δ of the attention row falls"),
    (lambda: premises((0.8, 0.75, 0.85, 0.01)), "δ of the attention row grows"),
    (lambda: premises((0.2, -0.1, 0.5, 0.3)), "δ of the attention row stays about equal, without a clear trend"),
    (lambda: premises((0.2, -0.1, 0.5, 0.3)), "weight on itself falls slightly, and its ends are about equal"),
    (lambda: say.tightness(measured(observed=2.0, bound=np.linspace(4, 40, N))), "is 2 to 20 times the observed"),
    (lambda: say.tightness(measured(observed=0.0, bound=1.0)), "cannot be compared"),
    (lambda: say.separators_help(ablated(1.0, 5.0)), "Separators keep v and v* further apart: at the last layer D is "
     "larger with them at 17, smaller at 0"),
    (lambda: say.separators_help(ablated(5.0, 1.0)), "Separators do not help: they bring v and v* closer together"),
    (lambda: say.separators_help(ablated(1.0, 1.0)), "Separators make no difference"),
    (lambda: say.separators_help(ablated(1.0, 5.0, 9.0)), "Separators make no difference"),
    (lambda: say.separators_help(ablated(1.0, HALF / 10)), "Separators do not reliably help"),
    (lambda: say.separators_help(ablated(1.0, 5.0).isel(length=slice(0, 3))), "too short"),
    (lambda: say.controls(ablated(1.0, 5.0)), "moved to random places 0.25"),
    (lambda: lasting((0.0, 0.1, 1.0, 1.0)), "no longer changes their effect from block 2 on"),
    (lambda: lasting((0.0, 0.1, 0.2, 0.3)), "changes their effect up to the last block"),
    (lambda: lasting((1.0,) * 4), "does not change their effect, whichever block it starts from"),
    (lambda: lasting((np.nan, 1.0, 1.0, 1.0)), "cannot be compared"),
    (lambda: present(0.97), "0.97 of the effect remains: what matters is that a separator is present, not what it"),
    (lambda: present(0.05), "0.05 of the effect remains: what matters is what a separator has read."),
    (lambda: present(0.6), "0.6 of the effect remains: both its presence and what it has read matter."),
    (lambda: present(np.nan), "too small to tell"),
]  # fmt: skip


def lasting(kept: tuple[float, ...]) -> str:
    return say.last_block_that_matters(ablated(1.0, 5.0, kept=kept))


def present(kept: float) -> str:
    return say.presence_or_content(ablated(0.1, 1.0, kept=(kept,) * 4).assign_coords(hook=["mean_residual"]))


@pytest.mark.parametrize(("said", "expected"), SAID)
def test_what_is_said(said: Callable[[], str], expected: str) -> None:
    assert expected in said()


def test_parts() -> None:
    share = (("part", "block", "length"), np.stack([np.full((2, N), s) for s in (0.5, 0.7, -0.2)]))
    ds = pair().assign(share=share).assign_coords(part=["residual", "attention", "mlp"])
    assert "residual 50 %, attention 70 %, mlp -20 %" in say.parts(ds)


def test_from_few_lengths_nothing_is_claimed() -> None:
    """The first separator is before length 4, so that 7 lengths have 4 with one."""
    few, enough = (ablated(1.0, 5.0).assign_coords(hook=["mean_residual"]).isel(length=slice(0, n)) for n in (7, 8))
    assert "Too few lengths have a separator before their last token (4)" in say.separators_help(few)
    assert "larger with them at 5, smaller at 0 of 5 lengths" in say.separators_help(enough)
    assert "too few lengths (4)" in say.presence_or_content(few.isel(length=slice(0, 4)))
    assert "of the effect remains" in say.presence_or_content(enough)


def test_a_model_that_cannot_be_asked_is_told_so(bridge_of: Any) -> None:
    """No tokenizer, no digits: the page says why instead of leaving a hole."""
    found = section.or_why_not(lambda: section.measure(bridge_of("llama"), 12))
    (only,) = section.sections(found)
    assert only.figure is None
    assert "Not measured for this model. This model has no tokenizer." in only.says[0]
    with pytest.raises(InputError, match="n=1 is too small"):
        section.check_n(1)


@pytest.mark.slow
def test_a_family_without_the_mechanism_keeps_the_rest(tiny: Any) -> None:
    """What adds to a block besides attention and MLP is not understood; distances and separators still are."""
    import squashlens as sl

    with sl.applied(tiny, sl.hooks.Hook("scaled", "blocks.2.hook_resid_post", lambda t: 1.5 * t)):
        found = section.or_why_not(lambda: section.measure(tiny, 6))
    titled = {part.title: part for part in section.sections(found)}
    assert len(titled) == 6
    why = titled["Why representations become similar"]
    assert why.figure is None
    assert "Not measured for this model. Block 2 adds more to the residual stream" in why.says[0]
    assert all(part.figure is not None for part in titled.values() if part is not why)
