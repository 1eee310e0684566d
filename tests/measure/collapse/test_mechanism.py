"""The proof's steps against a plain model's own patterns, its bound written out in loops, and shares that add up."""

from typing import Any

import numpy as np
import pytest
import torch

import squashlens as sl
from tests.cases import FAMILIES, few, sequence_for
from tests.references import passing, plain_outputs


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "form", [{}, {"separator": 13}, {"ending": 7}], ids=["bare", "commas", "ending"]
)
@pytest.mark.parametrize("family", few(FAMILIES))
def test_attention_equals_the_plain_patterns(
    family: str, form: dict[str, Any], bridge_of: Any, plain_of: Any
) -> None:
    model, plain = bridge_of(family), plain_of(family)
    sequence = sequence_for(model, family, **form)
    ds = sl.collapse_mechanism(model, sequence)
    for length in (1, 3, 8):
        pair = sequence.pair(length)
        v, star = (
            plain_outputs(plain, torch.tensor([ids])).attentions
            for ids in (pair.v, pair.v_star)
        )
        for block in range(3):
            a, b = (x[block][0, :, -1].detach().double() for x in (v, star))
            here = ds.sel(block=block, length=length)
            expected = (a - b[:, :-1]).abs().sum(dim=-1)
            np.testing.assert_allclose(here["attention_tv"], expected, atol=2e-5)
            np.testing.assert_allclose(here["self_weight"], b[:, -1], atol=1e-5)
            assert expected.max() > 1e-3


@pytest.mark.few(2)
@pytest.mark.parametrize("family", few(FAMILIES))
def test_bound_is_the_proofs_last_line(
    family: str, bridge_of: Any, plain_of: Any
) -> None:
    """Σ_h max_i ‖W_O^h W_V norm(v_i)‖₁ (δ_h + α*_h), every norm from the plain model's own projections."""
    model, plain = bridge_of(family), plain_of(family)
    sequence = sequence_for(model, family, separator=13)
    ds = sl.collapse_mechanism(model, sequence)
    for length in (1, 4, 8):
        pair, attention = sequence.pair(length), attention_of(plain)
        ((_, mixed),), ((entering, out),) = (
            passing(plain, ids, attention) for ids in (pair.v, pair.v_star)
        )
        observed = (mixed[-1].double() - out[-1].double()).abs().sum().item()
        assert ds["observed"].sel(length=length).item() == pytest.approx(
            observed, abs=1e-5
        )
        largest = per_head_values(attention, entering)
        weights = ds["attention_tv"].sel(block=0, length=length) + ds[
            "self_weight"
        ].sel(block=0, length=length)
        assert ds["bound"].sel(length=length).item() == pytest.approx(
            float((largest * weights.values).sum()), rel=1e-4
        )
    assert (ds["observed"] <= ds["bound"]).all()
    assert (ds["observed"] > 0).all()


def attention_of(plain: Any) -> Any:
    return (
        plain.transformer.h[0].attn
        if hasattr(plain, "transformer")
        else plain.model.layers[0].self_attn
    )


def per_head_values(attention: Any, u: torch.Tensor, heads: int = 4) -> np.ndarray:
    """max over tokens of ‖x_i^h‖₁, (head), with loops over tokens and heads, of what enters attention."""
    with torch.no_grad():
        if hasattr(attention, "c_attn"):
            values = attention.c_attn(u)[:, 32:].double()
            out = attention.c_proj.weight.double()
        else:
            values = attention.v_proj(u).double()
            out = attention.o_proj.weight.double().T
    width = out.shape[0] // heads
    groups = values.shape[1] // width
    largest = np.zeros(heads)
    for token in values:
        for head in range(heads):
            kv = head // (heads // groups)
            given = (
                token[kv * width : (kv + 1) * width]
                @ out[head * width : (head + 1) * width]
            )
            largest[head] = max(largest[head], given.abs().sum().item())
    return largest


@pytest.mark.few(2)
@pytest.mark.parametrize("norm", ["linf", "l1", "l2"])
def test_shares_come_from_the_plain_streams(
    norm: str, bridge_of: Any, plain_of: Any
) -> None:
    """Removing a part lowers the norm by about its share, to first order: here checked by finite differences."""
    model, plain = bridge_of("llama"), plain_of("llama")
    sequence = sequence_for(model, "llama")
    ds = sl.collapse_mechanism(model, sequence, norm=norm)
    np.testing.assert_allclose(ds["share"].sum("part"), 1, rtol=1e-6)
    np.testing.assert_allclose(ds["share"].sel(block=0, part="residual"), 0, atol=1e-12)
    pair, order = sequence.pair(5), {"linf": np.inf, "l1": 1, "l2": 2}[norm]
    for block in range(3):
        both = (parts_of(plain, block, ids) for ids in (pair.v, pair.v_star))
        parts = [v - star for v, star in zip(*both, strict=True)]
        whole, step = sum(parts), 1e-7
        for name, part in zip(("residual", "attention", "mlp"), parts, strict=True):
            up = np.linalg.norm(whole + step * part, ord=order)
            down = np.linalg.norm(whole - step * part, ord=order)
            expected = (up - down) / (2 * step) / np.linalg.norm(whole, ord=order)
            found = ds["share"].sel(part=name, block=block, length=5).item()
            assert found == pytest.approx(expected, abs=2e-3)


def parts_of(plain: Any, block: int, ids: Any) -> list[np.ndarray]:
    """What the residual stream, the attention and the MLP give to the stream after a block, at the last token."""
    layer = plain.model.layers[block]
    (residual, _), (_, attention), (_, mlp) = passing(
        plain, ids, layer, layer.self_attn, layer.mlp
    )
    return [part[-1].double().numpy() for part in (residual, attention, mlp)]


def test_uniform_attention_gives_known_weights(bridge_of: Any, tiny: Any) -> None:
    """With one token nothing else is attended to: α = 1, and δ + α* = 2 α* for two equal tokens without positions."""
    sequence = sl.prompts.repeated(tiny, "1", 3)
    uniform = sl.hooks.Hook(
        "uniform",
        "blocks.{block}.attn.hook_pattern",
        lambda p: (
            torch.ones_like(p).tril() / (torch.arange(p.shape[-1]) + 1.0)[:, None]
        ),
    )
    with sl.applied(tiny, uniform):
        ds = sl.collapse_mechanism(tiny, sequence)
    for length in (1, 2, 3):
        n = length + 1  # with BOS
        np.testing.assert_allclose(
            ds["attention_tv"].sel(length=length), n * (1 / n - 1 / (n + 1)), rtol=1e-5
        )
        np.testing.assert_allclose(
            ds["self_weight"].sel(length=length), 1 / (n + 1), rtol=1e-5
        )
    assert sl.results.provenance(ds)["passes"].startswith("separate")
