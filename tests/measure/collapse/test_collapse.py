"""Collapse against two plain forward passes a length, closed forms, and the ways of getting it wrong."""

from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config

import squashlens as sl
from squashlens.prompts import GrowingSequence
from tests.cases import CONTENT, FAMILIES, few, random_model, sequence_for
from tests.references import distances_equal, last_streams, passing

COUNT = "How many ones are in the following sequences?"
COPY = "Can you copy the following number?"
PANELS = {
    "a": lambda m, n, **form: sl.prompts.repeated(m, "1", n, prefix=COUNT, **form),
    "b": lambda m, n, **form: sl.prompts.digits(m, n, seed=7, prefix=COUNT, **form),
    "c": lambda m, n, **form: sl.prompts.repeated(m, "1", n, prefix=COPY, **form),
    "d": lambda m, n, **form: sl.prompts.repeated(
        m, "1", n, prefix=COPY, separator=",", **form
    ),
}
NORMS = {"linf": np.inf, "l1": 1, "l2": 2}


def two_passes(
    plain: Any, sequence: GrowingSequence, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """v and v* by layer, (layer, d), each from a plain forward pass of its own."""
    pair = sequence.pair(length)
    return tuple(
        last_streams(plain, ids).double().numpy() for ids in (pair.v, pair.v_star)
    )  # type: ignore[return-value]


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "form", [{}, {"suffix": "="}, {"ending": "1"}], ids=["bare", "suffix", "ending"]
)
@pytest.mark.parametrize("panel", PANELS)
def test_figure_5_equals_two_plain_passes(
    panel: str, form: dict[str, str], tiny: Any, plain_tiny: Any
) -> None:
    sequence = PANELS[panel](tiny, 96, **form)
    ds = sl.collapse(tiny, sequence)
    # Junctions, where the sequence goes on with another token than it would repeat, are among them.
    for length in {1, 3, 96, *Random(panel).sample(range(2, 96), 5)}:
        assert (
            distances_equal(ds.sel(length=length), plain_tiny, sequence.pair(length))[
                1:
            ].min()
            > 0
        )


@pytest.mark.few(1)
@pytest.mark.parametrize("family", few(FAMILIES))
def test_families_equal_two_plain_passes(
    family: str, bridge_of: Any, plain_of: Any
) -> None:
    model, plain = bridge_of(family), plain_of(family)
    for form in (
        {},
        {"separator": 13},
        {"separator": 13, "every": 2, "suffix": [20, 21, 22]},
    ):
        sequence = sequence_for(model, family, CONTENT * 2, **form)
        ds = sl.collapse(model, sequence, norm="l1")
        assert sl.results.provenance(ds)["passes"] == "shared"
        assert ds["kl"].max() > 0  # every family's logits are understood
        for length in (1, 3, 4, 9, 16):
            distances_equal(
                ds.sel(length=length), plain, sequence.pair(length), norm="l1"
            )


def uniform_attention_gpt2() -> Any:
    """One block, no positions, equal attention to everything seen, no MLP: D has a closed form."""
    config = GPT2Config(
        vocab_size=30,
        n_embd=8,
        n_layer=1,
        n_head=2,
        n_positions=64,
        bos_token_id=2,
        eos_token_id=1,
    )
    model = random_model(config, seed=5)
    with torch.no_grad():
        model.transformer.wpe.weight.zero_()
        attention = model.transformer.h[0].attn.c_attn
        attention.weight[:, :16] = 0
        attention.bias[:16] = 0
        model.transformer.h[0].mlp.c_proj.weight.zero_()
        model.transformer.h[0].mlp.c_proj.bias.zero_()
    return model


@pytest.fixture(scope="module")
def uniform(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """The model above, as Hugging Face has it and as a bridge."""
    plain, folder = uniform_attention_gpt2(), tmp_path_factory.mktemp("uniform")
    plain.save_pretrained(folder)
    return plain, sl.load(
        folder, verify=False
    )  # an MLP of zeros leaves its norm without effect


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    "content", [[7] * 30, [7, 8, 9, 9, 8, 7] * 5], ids=["repeated", "varied"]
)
def test_uniform_attention_in_closed_form(
    norm: str, content: list[int], uniform: tuple[Any, Any]
) -> None:
    """v − v* = W_O W_V (mean of n − a) / (n + 1): for repeated a after one other token, ‖…‖ / (n (n + 1))."""
    plain, model = uniform
    ds = sl.collapse(model, sl.prompts.build(model, content, prefix=[2]), norm=norm)
    block = plain.transformer.h[0]
    with torch.no_grad():
        u = block.ln_1(plain.transformer.wte.weight).double().numpy()
    w = (
        block.attn.c_attn.weight[:, 16:].detach().double().numpy()
        @ block.attn.c_proj.weight.detach().double().numpy()
    )
    for length in (1, 2, 7, 30):
        n = length + 1
        mean = u[[2, *content[:length]]].mean(axis=0)
        expected = np.linalg.norm(
            (mean - u[content[length - 1]]) @ w, ord=NORMS[norm]
        ) / (n + 1)
        assert ds["distance"].sel(layer=1, length=length).item() == pytest.approx(
            expected, rel=2e-4
        )
        assert ds["distance"].sel(layer=0, length=length).item() == 0
    if content[1] == 7:
        first = np.linalg.norm((u[2] - u[7]) @ w, ord=NORMS[norm])
        found = ds["distance"].sel(layer=1).values
        np.testing.assert_allclose(
            found, [first / (n * (n + 1)) for n in range(2, 32)], rtol=2e-3
        )


def test_heads_both_ways(tiny: Any, plain_tiny: Any) -> None:
    sequence, lengths = PANELS["b"](tiny, 40), [5, 40]
    sliced = sl.collapse(tiny, sequence, lengths=lengths, by_head="slice")
    valued = sl.collapse(tiny, sequence, lengths=lengths, by_head="value")
    assert sliced["head_distance"].dims == ("layer", "head", "length")
    assert valued["head_distance"].dims == ("block", "head", "length")
    for length in lengths:
        v, star = two_passes(plain_tiny, sequence, length)
        slices = np.abs(v - star)[:-1].reshape(7, 4, 32).max(axis=-1)
        np.testing.assert_allclose(
            sliced["head_distance"].sel(length=length),
            slices,
            atol=1e-5 * np.abs(v).max(),
        )
        for block in range(6):
            out = plain_tiny.model.layers[block].self_attn.o_proj
            pair = sequence.pair(length)
            z = [
                passing(plain_tiny, ids, out)[0][0][-1].reshape(4, 32)
                for ids in (pair.v, pair.v_star)
            ]
            expected = (z[0] - z[1]).abs().amax(-1).numpy()
            found = valued["head_distance"].sel(length=length, block=block)
            np.testing.assert_allclose(
                found, expected, atol=2e-5 * z[0].abs().max().item()
            )
    for ds, axis in ((sliced, "layer"), (valued, "block")):
        assert ds["head_mean"].dims == (axis, "length")
        np.testing.assert_allclose(ds["head_mean"], ds["head_distance"].mean("head"))
        np.testing.assert_allclose(ds["head_min"], ds["head_distance"].min("head"))
        np.testing.assert_allclose(ds["head_max"], ds["head_distance"].max("head"))
    # The whole vector's L∞ is the largest of its slices'.
    np.testing.assert_allclose(sliced["head_max"], sliced["distance"])


@pytest.mark.slow
def test_contrast_and_unrelated_are_other_prompts(tiny: Any, plain_tiny: Any) -> None:
    sequence = PANELS["d"](tiny, 30, suffix="=")
    ds = sl.collapse(
        tiny,
        sequence,
        lengths=[6, 29],
        baselines=["contrast", "unrelated"],
        n_samples=2,
        seed=11,
    )
    rng = Random("unrelated 11")
    others = [sequence.unrelated(rng) for _ in range(2)]
    for length in (6, 29):
        v = last_streams(plain_tiny, sequence.pair(length).v)
        other = last_streams(plain_tiny, sequence.contrast(length).ids(sequence.trunk))
        allowed = 2e-5 * v.abs().max().item()
        expected = (v - other).abs().amax(-1)
        np.testing.assert_allclose(
            ds["contrast"].sel(length=length), expected[:-1], atol=allowed
        )
        assert expected[0] > 0 or sequence.suffix
        for draw, sequence_2 in enumerate(others):
            far = (
                (v - last_streams(plain_tiny, sequence_2.pair(length).v)).abs().amax(-1)
            )
            np.testing.assert_allclose(
                ds["unrelated"].sel(length=length).isel(draw=draw),
                far[:-1],
                atol=allowed,
            )
            np.testing.assert_allclose(
                ds["unrelated_y"].sel(length=length).isel(draw=draw), far[-1], atol=1e-4
            )
    same_seed = sl.prompts.digits(tiny, 30, seed=0)
    ds = sl.collapse(tiny, same_seed, baselines=["unrelated"], seed=0, lengths=[30])
    assert (
        ds["unrelated"].sel(layer=6) > 1
    ).all()  # not drawn from the same stream as the sequence itself


def test_the_next_token(tiny: Any, plain_tiny: Any) -> None:
    sequence = PANELS["c"](tiny, 40)
    ds = sl.collapse(tiny, sequence, lengths=[1, 2, 39])
    for length in (1, 2, 39):
        p, q = (
            plain_tiny(torch.tensor([ids])).logits[0, -1].double().softmax(-1).detach()
            for ids in (sequence.pair(length).v, sequence.pair(length).v_star)
        )
        here = ds.sel(length=length)
        assert here["probability_l1"].item() == pytest.approx(
            (p - q).abs().sum().item(), abs=2e-5
        )
        assert here["kl"].item() == pytest.approx(
            (p * (p / q).log()).sum().item(), abs=2e-5, rel=1e-4
        )
        assert here["same_argmax"].item() is (p.argmax() == q.argmax()).item()
        gap = (p / q).log()
        assert here["largest_log_odds_change"].item() == pytest.approx(
            (gap.max() - gap.min()).item(), rel=1e-3, abs=1e-4
        )
    assert ds["kl"].attrs["units"] == "nats"


def test_precision(tiny: Any, plain_tiny: Any) -> None:
    sequence = PANELS["c"](tiny, 40)
    exact = sl.collapse(tiny, sequence, lengths=[40])
    v, star = (
        last_streams(plain_tiny, ids)
        for ids in (sequence.pair(40).v, sequence.pair(40).v_star)
    )
    gap = (v - star)[6].abs()
    c = gap.argmax()
    unit = float(np.spacing(np.float32(max(abs(v[6, c]), abs(star[6, c])))))
    assert exact["ulps"].sel(layer=6).item() == pytest.approx(
        gap[c].item() / unit, rel=1e-3
    )
    assert exact["ulps"].attrs["units"] == "ulp (float32)"
