"""Factors on attention logits against plain Hugging Face models that were changed by hand."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, Llama4TextConfig, Ministral3Config
from transformers.models.llama4.modeling_llama4 import Llama4TextAttention

import squashlens as sl
from squashlens import hooks as change
from squashlens.errors import RangeError
from squashlens.hooks.temperatures import ADAPTIVE
from tests.cases import COMMON, FAMILIES, MORE, few, save_random
from tests.hooks.passes import logits
from tests.references import with_attention

IDS = torch.tensor([[2, 5, 9, 11, 9, 30, 31, 9, 17, 4, 8, 8, 8, 8]])
Row = Callable[[list[float], int], float]  # the factor for a row: its visible logits, and the query's position
RULES: dict[str, Row] = {
    "log": lambda row, i: math.log(len(row)) / math.log(4),
    "qwen": lambda row, i: math.log(i + 1, 4) if i + 1 > 4 else 1.0,
    "llama4": lambda row, i: math.log(math.floor((i + 1.0) / 4) + 1.0) * 0.1 + 1.0,
    "ministral3": lambda row, i: 1 + 0.1 * math.log(1 + math.floor(i / 4)),
}


def adaptive(row: list[float], i: int, coefficients: tuple[float, ...] = ADAPTIVE) -> float:
    """The source's figure 4, without its 1e-9, for one row."""
    top = max(row)
    weights = [math.exp(s - top) for s in row]
    weights = [w / sum(weights) for w in weights]
    entropy = sum(-w * math.log(w) for w in weights if w)
    value = sum(c * entropy**power for power, c in enumerate(reversed(coefficients)))
    return max(value, 1.0) if entropy > 0.5 else 1.0


def by_hand(plain: Any, factor: Row) -> torch.Tensor:
    """Logits of a plain model whose logits of attention are multiplied row by row, in plain Python."""

    def attention(
        module: Any, query: Any, key: Any, value: Any, mask: Any, *, scaling: Any = None, softcap: Any = None,
        s_aux: Any = None, **_: Any
    ) -> Any:  # fmt: skip
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1).double() for x in (key, value))
        logits = query.double() @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
        n = query.shape[2]
        seen = torch.ones(n, n).tril().bool() if mask is None else mask[0, 0, :, :n] == 0
        out = torch.zeros_like(logits)
        for head in range(logits.shape[1]):
            for i in range(n):
                row = logits[0, head, i][seen[i]].tolist() + ([] if s_aux is None else [s_aux[head].item()])
                weights = (torch.tensor(row).double() * factor(row, i)).softmax(-1)
                out[0, head, i][seen[i]] = weights[: int(seen[i].sum())]  # without a learned sink's
        return (out @ value).to(query.dtype).transpose(1, 2).contiguous(), None

    return logits(with_attention(plain, "squashlens_by_hand", attention), ids=IDS)


@pytest.mark.few(2)
@pytest.mark.parametrize("family", ["gpt_oss", *few([*FAMILIES, *MORE])])
def test_every_rule_is_a_plain_model_changed_by_hand(family: str, bridge_of: Any, plain_of: Any) -> None:
    """Windows, soft caps, parallel blocks, learned positions: the factor is that of the row, whatever the family."""
    model, plain = bridge_of(family), plain_of(family)
    untouched = by_hand(plain, lambda row, i: 1.0)
    torch.testing.assert_close(logits(model, ids=IDS), untouched, rtol=1e-4, atol=2e-5)
    hooks: dict[Any, Row] = {change.log_scaling(rule, 4): of for rule, of in RULES.items()}  # type: ignore[arg-type]
    hooks[change.adaptive_temperature()] = adaptive
    hooks[change.adaptive_temperature(coefficients=(1.5, 0.25))] = lambda row, i: adaptive(row, i, (1.5, 0.25))
    for hook, factor in hooks.items():
        expected = by_hand(plain, factor)
        torch.testing.assert_close(logits(model, hook, ids=IDS), expected, rtol=1e-3, atol=1e-4)
        assert (expected - untouched).abs().max() > 1e-3, hook.name


def test_the_rule_of_ministral_is_that_of_its_own_module(tmp_path: Any) -> None:
    """The same weights with and without its scaling; the hook makes one of the other, in 14 tokens with steps at 4."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "original_max_position_embeddings": 4}
    for beta in (0.0, 0.1):
        config = Ministral3Config(**COMMON, rope_parameters=rope | {"llama_4_scaling_beta": beta})
        save_random(config, tmp_path / str(beta))
    native = AutoModelForCausalLM.from_pretrained(tmp_path / "0.1", attn_implementation="eager").eval()
    model = sl.load(tmp_path / "0.0", device="cpu")
    with torch.no_grad():
        expected = native(IDS, use_cache=False).logits
    assert (logits(model, ids=IDS) - expected).abs().max() > 1e-3
    torch.testing.assert_close(
        logits(model, change.log_scaling("ministral3", 4), ids=IDS), expected, rtol=1e-4, atol=1e-5
    )


def test_the_rule_of_llama_4_is_that_of_its_own_module() -> None:
    """Attention without rotary embedding, with and without its scaling, which has steps of 4 tokens here.

    A logit of attention relative to that of the first key is the logarithm of the weights' quotient; the scaling
    multiplies it by the factor of its row. The other tests compare the hook with the same `RULES`.
    """
    config: Any = Llama4TextConfig(
        hidden_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_hidden_layers=1,
        no_rope_layers=[0], floor_scale=4,
    )  # fmt: skip
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    tokens = 14
    module: Any = Llama4TextAttention(config, 0).double().eval()
    stream = torch.randn(1, tokens, 32, dtype=torch.float64)
    mask = torch.full((1, 1, tokens, tokens), -torch.inf, dtype=torch.float64).triu(1)
    relative = {}
    for scaled in (True, False):
        module.attn_temperature_tuning = scaled
        with torch.no_grad():
            weights = module(hidden_states=stream, position_embeddings=None, attention_mask=mask)[1]
        logits_of = weights.float().double().log()[0]
        relative[scaled] = logits_of - logits_of[..., :1]
    for i in range(1, tokens):
        for j in range(1, i + 1):
            expected = RULES["llama4"]([], i) * relative[False][:, i, j]
            torch.testing.assert_close(relative[True][:, i, j], expected, rtol=1e-4, atol=1e-5)
    assert (relative[True] - relative[False]).nan_to_num(0, 0, 0).abs().max() > 1e-2


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=40), st.integers(0, 3))
def test_the_entropy_of_a_row_never_grows(row: list[float], masked: int) -> None:
    """And masked keys, wherever they stand and however they are written, change nothing."""
    edit: Any = change.adaptive_temperature().edit
    hidden = torch.tensor([[*row, *[-torch.inf, torch.finfo(torch.float32).min, -torch.inf][:masked]]])[None, None]
    scaled = edit(hidden)[0, 0, 0]
    assert torch.equal(scaled[len(row) :], hidden[0, 0, 0, len(row) :])
    factor = adaptive(torch.tensor(row).tolist(), 0)
    torch.testing.assert_close(scaled[: len(row)].double(), torch.tensor(row).double() * factor, rtol=2e-4, atol=1e-5)
    before, after = (torch.special.entr(x.double().softmax(-1)).sum() for x in (hidden[0, 0, 0], scaled))
    assert after <= before + 1e-6


def test_derivatives_go_through_the_entropy(bridge_of: Any) -> None:
    """Finite differences in float64, also past masked keys, whose logits are −∞."""
    edit: Any = change.adaptive_temperature().edit
    scores = torch.randn(1, 1, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores = (scores / 4).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    lower = torch.ones(5, 5).tril().bool()

    def weights(free: torch.Tensor) -> torch.Tensor:
        return edit(scores.masked_scatter(lower, free)).softmax(-1)

    free = scores[0, 0][lower].clone().requires_grad_()
    assert torch.autograd.gradcheck(weights, free)
    assert any(adaptive(scores[0, 0, i, : i + 1].tolist(), i) > 1 for i in range(5))
    model = bridge_of("gemma2", torch.float64)
    with sl.applied(model, change.adaptive_temperature()):
        truth = sl.jacobian_norms(model, IDS)
        certified = sl.certified_bound(model, IDS)
    assert (truth.values > 0).all()
    assert (certified.values >= truth.values * (1 - 1e-9)).all()


def test_half_precision_and_logits_out_of_range(bridge_of: Any) -> None:
    model = bridge_of("llama", torch.bfloat16)
    for hook in (change.log_scaling("log", 4), change.adaptive_temperature()):
        assert logits(model, hook).isfinite().all()
    with pytest.raises(RangeError, match="exceed the range of torch.bfloat16"):
        logits(model, change.adaptive_temperature(coefficients=(1e300,)))
