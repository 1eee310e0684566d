"""Fewer bits against plain models, torch's own types, and a case in which collapse is exact."""

import math
from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from squashlens.errors import InputError
from squashlens.measure.collapse.metric import from_then_on
from squashlens.measure.collapse.precision import _bits_needed
from tests.cases import FAMILIES, few, sequence_for
from tests.references import last_streams, layers_of, raw

LENGTHS = [1, 3, 4, 8]


def in_python(x: float, bits: int) -> float:
    """One number with so many bits behind the leading one, by the standard library alone."""
    mantissa, exponent = math.frexp(x)
    return math.ldexp(round(mantissa * 2 ** (bits + 1)), exponent - bits - 1)


@pytest.mark.slow
@pytest.mark.parametrize("family", few(FAMILIES))
def test_stored_after_the_run(family: str, bridge_of: Any, plain_of: Any) -> None:
    """Collapsed and bits needed from the plain model's own last tokens, number by number."""
    model, plain = bridge_of(family), plain_of(family)
    sequence = sequence_for(model, family, [7, 7, 7, 7, 7, 7, 7, 7])
    ds = sl.precision(model, sequence, lengths=LENGTHS, passes="separate", blocks="all")
    told = []
    for length in LENGTHS:
        pair = sequence.pair(length)
        v, star = (last_streams(plain, ids) for ids in (pair.v, pair.v_star))
        here = ds.sel(length=length)
        for layer in range(4):
            for form in ("bfloat16", "float8_e5m2"):
                dtype = getattr(torch, form)
                same = torch.equal(v[layer].to(dtype).float(), star[layer].to(dtype).float())
                assert here["collapsed"].sel(format=form, layer=layer).item() == same
            apart = [
                any(
                    in_python(a, k) != in_python(b, k)
                    for a, b in zip(v[layer].tolist(), star[layer].tolist(), strict=True)
                )
                for k in range(24)
            ]
            expected = math.nan if not apart[-1] else max([k + 1 for k in range(24) if not apart[k]], default=0)
            found = here["bits_needed"].sel(layer=layer).item()
            if layer or family == "gpt2":  # bits behind the tenth are those of two orders of addition
                gap = float((v[layer] - star[layer]).abs().max() / v[layer].square().mean().sqrt())
                rounding = math.isnan(found) and gap <= 4 * ds["noise_floor"].sel(layer=layer)
                assert rounding or found == expected or (expected > 10 and abs(found - expected) <= 4), (length, layer)
            told.append(found)
            if layer and here["bits_per_coordinate"].sel(layer=layer).notnull():
                alone = [
                    max([k + 1 for k in range(24) if in_python(a, k) == in_python(b, k)], default=0)
                    for a, b in zip(v[layer].tolist(), star[layer].tolist(), strict=True)
                ]
                assert abs(here["bits_per_coordinate"].sel(layer=layer) - np.median(alone)) <= 1
        assert here["same_argmax"].item() == (
            plain(torch.tensor([pair.v])).logits[0, -1].argmax()
            == plain(torch.tensor([pair.v_star])).logits[0, -1].argmax()
        )
    assert len(set(told)) > 2 or family == "gpt2"  # whose positions set the two apart from the start


@pytest.mark.parametrize("family", few(["gemma", "gemma2", "mistral", "qwen2", "gpt2"]))
def test_one_block_rounded(family: str, bridge_of: Any, plain_of: Any) -> None:
    """PyTorch hooks that round what enters one block of the plain model."""
    model, plain = bridge_of(family), plain_of(family)
    sequence = sequence_for(model, family)
    ds = sl.precision(model, sequence, round_to=["float8_e4m3fn"], lengths=[3, 8], scale="absolute", blocks="all")
    for block in range(3):
        entered = []

        def put(_module: Any, args: Any, kwargs: Any, entered: list[Any] = entered) -> Any:
            stream = (args[0] if args else kwargs["hidden_states"]).to(torch.float8_e4m3fn).float()
            entered.append(stream[0, -1])
            return (stream, *args[1:]), {k: v for k, v in kwargs.items() if k != "hidden_states"}

        handle = layers_of(plain)[block].register_forward_pre_hook(put, with_kwargs=True)
        try:
            for length in (3, 8):
                pair = sequence.pair(length)
                entered.clear()
                v, star = last_streams(plain, pair.v), last_streams(plain, pair.v_star)
                here = ds.sel(format="float8_e4m3fn", block=block, length=length)
                expected = (v[3] - star[3]).abs().max().item()
                assert here["distance"].item() == pytest.approx(expected, rel=1e-3, abs=1e-4)
                assert here["enters_as_one"].item() == torch.equal(*entered)
        finally:
            handle.remove()
    plainly = sl.collapse(model, sequence, lengths=[3, 8])["distance"].sel(layer=3)
    assert (np.abs(ds["distance"].isel(format=0) - plainly) > 1e-3).any()


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["llama", "gemma", "qwen2"])
def test_within_a_window_repeats_are_one_thing(family: str, bridge_of: Any) -> None:
    """Layer ℓ reads ℓ (w − 1) tokens back, and rotations know distances alone: collapse is exact, and no sooner."""
    model = bridge_of(family)
    ones = sequence_for(model, family, [7] * 14)
    with sl.applied(model, sl.hooks.sliding_window(3)):
        ds = sl.precision(model, ones, round_to=["float8_e5m2"], blocks="all")
    assert ds["collapsed_from"].isel(format=0).values.tolist() == [1, 3, 5, 7]
    assert ds["collapsed_from_y"].item() == 7
    assert (ds["bits_needed"].sel(layer=3, length=slice(1, 5)) < 10).all()
    # Equal in exact numbers. On some processors rotations by other positions round otherwise, beyond the 16th bit.
    later = ds["bits_needed"].sel(layer=3, length=slice(7, None))
    assert (later.isnull() | (later > 16)).all()
    assert ds["first_block"].isnull().all()  # what rounding makes one was one before
    assert ds["same_argmax_from"].item() <= 7


def test_first_block_is_where_two_become_one(bridge_of: Any) -> None:
    """Even attention moves a stream by about 1/n: more than rounding does, and less than eight bits tell."""
    model = bridge_of("gemma")
    ones = sequence_for(model, "gemma", [7] * 58)
    with sl.applied(model, sl.hooks.uniform_attention()):
        ds = sl.precision(model, ones, round_to=["float8_e5m2"], lengths=[1, 2, 20, 40, 58], blocks="all")
    entering = ds["enters_as_one"].isel(format=0).values == 1
    reached = entering & ds["bits_needed"].isel(layer=slice(0, 3)).notnull().values
    for here, found in zip(reached.T, ds["first_block"].values[0], strict=True):
        assert found == here.argmax() if here.any() else math.isnan(found)
    assert ds["first_block"].sel(length=[1, 2]).isnull().all()
    assert ds["first_block"].sel(length=slice(20, None)).notnull().any()


def test_numbers_beyond_a_format_are_not_collapsed(bridge_of: Any) -> None:
    """Formats that would hold their largest number in place of any larger one would make all of them the same."""
    model = bridge_of("gemma")
    louder = sl.hooks.Hook("louder", "blocks.1.hook_resid_pre", lambda stream: 1e4 * stream)
    sequence = sequence_for(model, "gemma")
    with sl.applied(model, louder):
        ds = sl.precision(model, sequence, lengths=[4, 8], blocks="all")
        with pytest.raises(InputError, match="beyond the range of float8_e4m3fn"):
            sl.collapse(model, sequence, lengths=[4], round_to=torch.float8_e4m3fn)
    small = ds.sel(format="float8_e4m3fn")
    assert small["collapsed"].sel(layer=1).isnull().all()
    assert small["collapsed"].sel(layer=0).notnull().all()
    assert ds["collapsed"].sel(format="bfloat16").notnull().all()
    assert small["distance"].sel(block=1).isnull().all()
    assert ds["distance"].sel(format="bfloat16").notnull().all()


def test_fewer_bits_may_tell_what_more_do_not() -> None:
    """1.2 and 1.3 are 1 and 1.5 with one bit, both 1.25 with two and three, and different with four and more."""
    one, other = torch.tensor([[[1.2]]]), torch.tensor([[[1.3]]])
    alike = [bits for bits in range(24) if in_python(one.item(), bits) == in_python(other.item(), bits)]
    assert alike == [0, 2, 3]
    joint, each = _bits_needed(one, other, 23)
    assert joint.item() == each.item() == 4


def test_bits_per_coordinate_do_not_measure_the_width() -> None:
    """The same relative noise in every coordinate: the more there are, the fewer bits tell some of them apart."""
    draw = torch.Generator().manual_seed(0)
    joint, each = [], []
    for width in (16, 128, 640, 4096):
        v = torch.randn(1, 40, width, generator=draw)
        found = _bits_needed(v, v * (1 + 2e-3 * torch.randn(1, 40, width, generator=draw)), 23)
        joint.append(found[0].median().item())
        each.append(found[1].median().item())
    assert joint[0] >= joint[1] + 3 >= joint[2] + 4 >= joint[3] + 4
    assert max(each) - min(each) <= 0.5
    assert each[0] == pytest.approx(9, abs=1)  # 2e-3 is 2⁻⁹, and a number moves by half a step on average


def test_half_of_the_coordinates_alike_need_no_bits() -> None:
    v, moved = torch.ones(1, 1, 4), torch.tensor([[[1.0, 1.0, 1.0, 1.25]]])
    joint, each = _bits_needed(v, moved, 23)
    assert joint.item() == 2
    assert each.isnan().item()


def test_from_then_on() -> None:
    holds = torch.tensor([[True, False, True, True], [True] * 4, [False] * 4, [True, True, True, False]])
    found = from_then_on(holds, (2, 5, 7, 9))
    assert found[:2].tolist() == [7, 2]
    assert found[2:].isnan().all()


@pytest.mark.slow
def test_runs_are_loads_of_their_own(folder_of: Any, bridge_of: Any) -> None:
    sequence = sequence_for(bridge_of("gemma"), "gemma")
    ds = sl.precision(
        folder_of("gemma"),
        sequence,
        runs=["float32", "bfloat16", "int8"],
        lengths=[2, 4, 8],
        noise_lengths=2,
        device="cpu",
    )
    each = {
        "float32": bridge_of("gemma"),
        "bfloat16": bridge_of("gemma", torch.bfloat16),
        "int8": sl.load(folder_of("gemma"), device="cpu", quantize="int8"),
    }
    for run, model in each.items():
        alone = sl.collapse(model, sequence, lengths=[2, 4, 8], scale="relative", noise_lengths=2)
        for name in alone.data_vars:
            np.testing.assert_array_equal(ds[name].sel(run=run), alone[name])
    assert sl.results.provenance(ds)["dtype"] == ["float32", "bfloat16", "float32"]
    assert sl.results.provenance(ds)["quantized"] == [None, None, "int8"]
    assert len({float(d) for d in ds["distance"].sel(layer=3, length=8)}) == 3
    assert (ds["collapsed_from"].sel(layer=0) == 2).all()
    assert ds["refused"].item() == ""


@pytest.mark.few(2)
@pytest.mark.parametrize("form", ["bfloat16", "bf16", torch.bfloat16])
def test_a_format_has_its_name_its_short_name_and_its_dtype(tiny: Any, form: Any) -> None:
    """Wherever values are rounded; dtypes that are no format of the parameter are refused."""
    pairs = sl.capture(tiny, sl.prompts.repeated(tiny, "1", 4))
    rounded = sl.collapse(tiny, pairs, round_to=form)
    expected = sl.collapse(tiny, sl.prompts.repeated(tiny, "1", 4), round_to=torch.bfloat16)
    np.testing.assert_array_equal(rounded["distance"], expected["distance"])
    assert not rounded["distance"].equals(sl.collapse(tiny, pairs)["distance"])
    kept = sl.precision(tiny, pairs, round_to=form)
    assert kept["format"].values.tolist() == ["bfloat16"]
    for found in (rounded, kept):
        assert sl.results.provenance(found)["call"]["round_to"] in ("bfloat16", ["bfloat16"])
    assert sl.hooks.rounding(form).name == "rounding(residual to bfloat16)"
    with pytest.raises(InputError, match="round_to"):
        sl.precision(tiny, pairs, round_to=torch.float64)


def test_runs_and_rounding_refuse_each_others_options(tiny: Any) -> None:
    ones = sl.prompts.repeated(tiny, "1", 4)
    pairs = sl.capture(tiny, ones)
    runs: Any = {"runs": ["float32"]}
    for model, sequence, options, message in (
        (tiny, ones, runs, "a loaded model or a capture belongs to one.*Give the name or folder"),
        ("tiny-gemma", pairs, runs, "a loaded model or a capture belongs to one"),
        ("tiny-gemma", ones, {"runs": []}, "runs= is empty"),
        (tiny, ones, {"round_to": []}, "round_to= is empty"),
        (tiny, ones, {"blocks": [6]}, "not blocks of this model. Use blocks 0 to 5"),
        ("tiny-gemma", ones, runs | {"blocks": "all"}, "blocks= has no effect with runs="),
        ("tiny-gemma", ones, {}, "model must be a TransformerBridge, not str. Load one"),
        (7, ones, {}, "model must be a TransformerBridge, not int"),
        (tiny, ones, {"device": "cpu"}, "device= has no effect without runs=. `load` the model"),
    ):
        with pytest.raises(InputError, match=message):
            raw(sl.precision)(model, sequence, **options)
